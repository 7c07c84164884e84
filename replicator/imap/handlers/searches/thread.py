"""THREAD (RFC 5256 section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from replicator.imap.handlers.searches.header_reading import read_slice
from replicator.imap.handlers.searches.kept_orders import keep_order, kept_order
from replicator.imap.handlers.searches.results import (
    check_readable,
    check_sortable,
    find,
    limited_work,
    sequence_numbers,
    values_at,
)
from replicator.imap.header_cache import slices
from replicator.imap.ordering.header_facts import REFERENCES
from replicator.imap.ordering.order import Order
from replicator.imap.ordering.references import by_references, by_refs
from replicator.imap.ordering.threadables import Threadables
from replicator.imap.ordering.threads import by_ordered_subject, printed
from replicator.imap.session import Completion, Session
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.responses import thread_response
from replicator.imap.work_meter import WorkMeter

THREADED_HERE = 300  # messages and references; more are threaded in a thread of execution

_A = c.ThreadAlgorithm


async def thread(session: Session, command: c.Thread) -> Completion:
    """Run THREAD and UID THREAD. Raises as SEARCH does.

    A message whose header no reachable node has is a thread of its own.
    """
    with limited_work(session, "THREAD") as work:
        found = await find(session, command.program, session.selection.saved, work)
        check_sortable(session, found)
        uids, headless = found.uids, 0
        if (order := await kept_order(session, uids, command.algorithm)) is None:
            messages, headless = await _threadables(session, uids, command.algorithm, work)
            uids, arrange = messages.uids, partial(_arranged, command.algorithm, messages, work)
            apart = session.services.parsing.apart
            order = await apart(arrange) if messages.size > THREADED_HERE else arrange()
            if not headless:
                await keep_order(session, uids, command.algorithm, order)
    numbers = uids if command.by_uid else await sequence_numbers(session, uids)
    respond = partial(thread_response, await values_at(numbers, order.places), order.forms)
    await session.write(await session.services.parsing.apart_if_many(len(uids), respond))
    check_readable(found)
    return Completion(f"Threaded, without the headers of {headless} messages" if headless else "Threaded")


def _arranged(algorithm: c.ThreadAlgorithm, messages: Threadables, work: WorkMeter) -> Order:
    match algorithm:
        case _A.ORDEREDSUBJECT:
            return printed(by_ordered_subject(messages))
        case _A.REFERENCES:
            return printed(by_references(messages, work))
    return printed(by_refs(messages, work))


async def _threadables(
    session: Session, uids: Sequence[int], algorithm: c.ThreadAlgorithm, work: WorkMeter
) -> tuple[Threadables, int]:
    """Return what the algorithm needs to know of the messages, and the number of those without a readable header."""
    with_subjects, with_ids = algorithm is not _A.REFS, algorithm is not _A.ORDEREDSUBJECT
    threadables, headless = Threadables(work, with_subjects=with_subjects, with_ids=with_ids), 0
    for some in slices(uids):
        messages, columns, unreadable, _ = await read_slice(session, some, threadables.columns, work)
        referred = sum(map(len, columns.of(REFERENCES))) if with_ids else 0
        add = partial(threadables.add, messages, columns)
        await session.services.parsing.apart_if_many(len(messages) + referred, add)
        headless += len(unreadable)
    return threadables, headless
