"""SEARCH (RFC 3501 section 6.4.4): messages that the view alone cannot decide are read, one at a time."""

from __future__ import annotations

from functools import partial

import trio

from replicator.errors import ContentUnavailableError
from replicator.imap.handlers.fetch import MANY_RANGES
from replicator.imap.matching.bounds import WorkExceededError, WorkMeter
from replicator.imap.matching.phases import Search
from replicator.imap.session import Completion, Session
from replicator.imap.wire import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import search_response
from replicator.imap.wire.search_keys import count_keys, count_ranges
from replicator.view import Message


async def search(session: Session, command: c.Search) -> Completion:
    """Run SEARCH and UID SEARCH. Raises BadCharsetError and, beyond a limit, CommandFailedError.

    Messages whose body no reachable node has match nothing; the answer is NO then, after the results.
    """
    limit = session.limits.imap_search_keys
    if (keys := count_keys(command.program.key)) > limit:
        raise session.refusal(
            "imap_search_keys", f"A SEARCH may have {limit} keys, not {keys}; search in several steps"
        )
    work = WorkMeter(session.limits.imap_search_work)
    try:
        numbers, unreadable = await _found(session, command, work)
    except WorkExceededError as error:
        text = f"The SEARCH takes more than {work.limit} steps; search fewer messages, or with fewer keys"
        raise session.refusal("imap_search_work", text) from error
    await session.write(search_response(numbers))
    if unreadable:
        raise CommandFailedError(
            f"No node in reach has the bodies of {unreadable} messages; try again later", "UNAVAILABLE"
        )
    return Completion("Searched")


async def _found(session: Session, command: c.Search, work: WorkMeter) -> tuple[list[list[int]], int]:
    """Return the numbers of the messages found, ascending, and how many could not be read."""
    selection = session.selection
    numbering, view = selection.numbering, selection.view
    prepare = partial(Search, command.program, view, numbering.uids, numbering.recent, work)
    is_long = count_ranges(command.program.key) > MANY_RANGES
    evaluation = await session.services.parsing.apart(prepare) if is_long else prepare()
    numbers, unreadable = list[list[int]](), 0
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
        numbers.append(sorted(found) if command.by_uid else numbering.numbers(found))
    return numbers, unreadable


async def _matches(session: Session, message: Message, evaluation: Search) -> bool:
    parsing, bodies = session.services.parsing, evaluation.reads_bodies
    kept = await session.mail.read_body(message)
    async with parsing.opened(kept, with_structure=bodies, with_bodies=bodies) as body:
        work = partial(evaluation.matches, message, body)
        return await parsing.run(body, work, with_structure=bodies, values=evaluation.keys)
