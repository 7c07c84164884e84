"""SEARCH (RFC 3501 section 6.4.4): messages that the view alone cannot decide are read, one at a time."""

from __future__ import annotations

from functools import partial

import trio

from replicator.errors import ContentUnavailableError
from replicator.imap.matching.phases import Search
from replicator.imap.session import Completion, Session
from replicator.imap.wire import command_types as c
from replicator.imap.wire.refusals import CommandFailedError
from replicator.imap.wire.responses import search_response
from replicator.imap.wire.search_keys import count_keys
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
    selection = session.selection
    numbering, view = selection.numbering, selection.view
    evaluation = Search(command.program, view, numbering.uids, numbering.recent)
    found, doubtful = evaluation.decide()
    unreadable = 0
    for uid in doubtful:
        await trio.lowlevel.checkpoint()
        if (message := view.messages.get(uid)) is None:
            continue
        try:
            if await _matches(session, message, evaluation) and uid in view.messages:
                found.add(uid)
        except ContentUnavailableError:
            unreadable += 1
    numbers = found if command.by_uid else {n for uid in found if (n := numbering.number(uid)) is not None}
    await session.write([search_response(sorted(numbers))])
    if unreadable:
        raise CommandFailedError(
            f"No node in reach has the bodies of {unreadable} messages; try again later", "UNAVAILABLE"
        )
    return Completion("Searched")


async def _matches(session: Session, message: Message, evaluation: Search) -> bool:
    parsing, bodies = session.services.parsing, evaluation.reads_bodies
    kept = await session.mail.read_body(message)
    async with parsing.opened(kept, with_structure=bodies, with_bodies=bodies) as body:
        return await parsing.run(body, partial(evaluation.matches, message, body))
