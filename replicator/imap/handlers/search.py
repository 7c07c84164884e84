"""SEARCH (RFC 3501 section 6.4.4): messages that the view alone cannot decide are read, one at a time.

With result options (RFC 4731), the answer is an ESEARCH response; SAVE keeps what was found for `$` (RFC 5182).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import trio

from replicator.errors import ContentUnavailableError
from replicator.imap.handlers.fetch import MANY_RANGES
from replicator.imap.matching.bounds import WorkExceededError, WorkMeter
from replicator.imap.matching.phases import Basis, Search
from replicator.imap.session import Completion, Session
from replicator.imap.wire import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import esearch_response, search_response
from replicator.imap.wire.search_keys import ReturnOption, SearchProgram, count_keys, count_ranges
from replicator.view import Message

NUMBERED_AT_ONCE = 5000  # messages found, whose sequence numbers are looked up in some milliseconds

_SAVE_ALONE = frozenset({ReturnOption.SAVE})
_ALL_COUNT = frozenset({ReturnOption.ALL, ReturnOption.COUNT})


class Found(NamedTuple):
    """UIDs of the messages that match, ascending, and the number of messages that could not be read."""

    uids: Sequence[int]
    unreadable: int


async def search(session: Session, command: c.Search) -> Completion:
    """Run SEARCH and UID SEARCH. Raises BadCharsetError and, beyond a limit, CommandFailedError.

    Messages whose body no reachable node has match nothing; the answer is NO then, after the results.
    """
    selection, returns = session.selection, command.returns
    saved = selection.saved
    if returns is not None and ReturnOption.SAVE in returns:
        selection.saved = ()  # stays so if the answer is NO (RFC 5182 section 2.1)
    found = await find(session, command.program, saved)
    numbers = found.uids if command.by_uid else await _sequence_numbers(session, found.uids)
    if returns is None:
        respond = partial(search_response, numbers)
    else:
        respond = partial(esearch_response, session.tag, numbers, returns, by_uid=command.by_uid)
    if returns != _SAVE_ALONE:  # RFC 5182 section 2.1: no response then
        many = len(numbers) > NUMBERED_AT_ONCE
        await session.write(await session.services.parsing.apart(respond) if many else respond())
    if found.unreadable:
        raise CommandFailedError(
            f"No node in reach has the bodies of {found.unreadable} messages; try again later", "UNAVAILABLE"
        )
    if returns is not None and ReturnOption.SAVE in returns:
        selection.saved = _to_save(found.uids, returns)
    return Completion("Searched")


async def find(session: Session, program: SearchProgram, saved: Sequence[int]) -> Found:
    """Return the messages that match; `saved` are the UIDs that `$` means.

    Raises BadCharsetError and, beyond a limit, CommandFailedError.
    """
    limit = session.limits.imap_search_keys
    if (keys := count_keys(program.key)) > limit:
        raise session.refusal(
            "imap_search_keys", f"A SEARCH may have {limit} keys, not {keys}; search in several steps"
        )
    work = WorkMeter(session.limits.imap_search_work)
    try:
        return await _found(session, program, saved, work)
    except WorkExceededError as error:
        text = f"The SEARCH takes more than {work.limit} steps; search fewer messages, or with fewer keys"
        raise session.refusal("imap_search_work", text) from error


async def _found(session: Session, program: SearchProgram, saved: Sequence[int], work: WorkMeter) -> Found:
    numbering, view = session.selection.numbering, session.selection.view
    basis = Basis(numbering.uids, numbering.recent, saved, session.services.clock_ms())
    prepare = partial(Search, program, view, basis, work)
    is_long = count_ranges(program.key, len(saved)) > MANY_RANGES
    evaluation = await session.services.parsing.apart(prepare) if is_long else prepare()
    uids, unreadable = array("I"), 0
    for found, doubtful in evaluation.decide():
        await trio.lowlevel.checkpoint()
        for uid in doubtful:
            await trio.lowlevel.checkpoint()
            if (message := view.messages.get(uid)) is None:
                continue
            try:
                if await _matches(session, message, evaluation) and uid in view.messages:
                    found.add(uid)
            except ContentUnavailableError:
                unreadable += 1
        uids.extend(sorted(found))
    return Found(uids, unreadable)


async def _matches(session: Session, message: Message, evaluation: Search) -> bool:
    parsing, bodies = session.services.parsing, evaluation.reads_bodies
    kept = await session.mail.read_body(message)
    async with parsing.opened(kept, with_structure=bodies, with_bodies=bodies) as body:
        work = partial(evaluation.matches, message, body)
        return await parsing.run(body, work, with_structure=bodies, values=evaluation.keys)


async def _sequence_numbers(session: Session, uids: Sequence[int]) -> Sequence[int]:
    numbers = array("I")
    for start in range(0, len(uids), NUMBERED_AT_ONCE):
        numbers.extend(session.selection.numbering.numbers(uids[start : start + NUMBERED_AT_ONCE]))
        await trio.lowlevel.checkpoint()
    return numbers


def _to_save(uids: Sequence[int], returns: frozenset[ReturnOption]) -> Sequence[int]:
    """Return what `$` means after a SEARCH with SAVE (RFC 5182 section 2.4)."""
    if returns & _ALL_COUNT or returns == _SAVE_ALONE or not uids:
        return uids
    ends = {uids[0]} if ReturnOption.MIN in returns else set()
    return sorted(ends | ({uids[-1]} if ReturnOption.MAX in returns else set()))
