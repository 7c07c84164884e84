"""THREAD (RFC 5256 section 3)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial

import trio

from replicator.imap.handlers.searches.header_reading import read_slice
from replicator.imap.handlers.searches.results import check_readable, check_sortable, find, limited_work
from replicator.imap.header_cache import slices
from replicator.imap.ordering.header_facts import MESSAGE_ID, REFERENCES, SENT_MS, SUBJECT
from replicator.imap.ordering.references import MessageIds, by_references, by_refs
from replicator.imap.ordering.sorting import sent_or_received
from replicator.imap.ordering.threads import NO_REFERENCES, Node, Threadable, by_ordered_subject, printed
from replicator.imap.rendering.header_columns import Column, ColumnValue
from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.responses import thread_response
from replicator.imap.work_meter import WorkMeter

NUMBERED_AT_ONCE = 1000  # message ids, in a millisecond
THREADED_HERE = 200  # messages; more are threaded in a thread of execution

_A = c.ThreadAlgorithm
_NO_SUBJECT = ("", False)


async def thread(session: Session, command: c.Thread) -> Completion:
    """Run THREAD and UID THREAD. Raises as SEARCH does.

    A message whose header no reachable node has is a thread of its own.
    """
    with limited_work(session, "THREAD") as work:
        found = await find(session, command.program, session.selection.saved, work)
        check_sortable(session, found)
        ids = MessageIds(work)
        messages, headless = await _threadables(session, found.uids, command.algorithm, ids, work)
        arrange = _arranger(command.algorithm, messages, len(ids), work)
        number = session.selection.numbering.number

        def response() -> list[bytes]:
            return thread_response(printed(arrange(), int if command.by_uid else number))

        # The numbering does not change meanwhile: nothing is announced while a command runs.
        apart = session.services.parsing.apart
        await session.write(await apart(response) if len(messages) > THREADED_HERE else response())
    check_readable(found)
    return Completion(f"Threaded, without the headers of {headless} messages" if headless else "Threaded")


def _arranger(
    algorithm: c.ThreadAlgorithm, messages: Sequence[Threadable], ids: int, work: WorkMeter
) -> Callable[[], list[Node]]:
    if algorithm is _A.ORDEREDSUBJECT:
        return partial(by_ordered_subject, messages)
    return partial(by_references if algorithm is _A.REFERENCES else by_refs, messages, ids, work)


async def _threadables(
    session: Session, uids: Sequence[int], algorithm: c.ThreadAlgorithm, ids: MessageIds, work: WorkMeter
) -> tuple[list[Threadable], int]:
    """Return what the algorithm needs to know of the messages, and the number of those without a readable header."""
    with_subject, with_ids = algorithm is not _A.REFS, algorithm is not _A.ORDEREDSUBJECT
    wanted: list[Column[ColumnValue]] = [SENT_MS]
    wanted.extend((SUBJECT,) if with_subject else ())
    wanted.extend((MESSAGE_ID, REFERENCES) if with_ids else ())
    threadables, headless, numbered = list[Threadable](), 0, 0
    for some in slices(uids):
        messages, columns, unreadable, _ = await read_slice(session, some, wanted, work)
        headless += len(unreadable)
        subjects: Sequence[tuple[str, bool]] = columns.of(SUBJECT) if with_subject else [_NO_SUBJECT] * len(messages)
        own: Sequence[bytes | None] = columns.of(MESSAGE_ID) if with_ids else [None] * len(messages)
        references: Sequence[tuple[bytes, ...]] = columns.of(REFERENCES) if with_ids else [()] * len(messages)
        dates = sent_or_received(messages, columns)
        for message, date_ms, subject, one, others in zip(messages, dates, subjects, own, references, strict=True):
            own_id = None if one is None else ids.number(one)
            referred = array("I", map(ids.number, others)) if others else NO_REFERENCES
            threadables.append(Threadable(message.uid, date_ms, *subject, own_id, referred))
            numbered += len(others)
            if numbered > NUMBERED_AT_ONCE:
                await trio.lowlevel.checkpoint()
                numbered = 0
    return threadables, headless
