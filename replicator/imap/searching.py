"""SEARCH (RFC 3501 section 6.4.4): what the view leaves open is decided by reading messages, one at a time."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import trio

from replicator.errors import ContentUnavailableError
from replicator.imap import commands as c
from replicator.imap.message import MessageText
from replicator.imap.refusals import CommandFailedError
from replicator.imap.responses import search_response
from replicator.imap.search import Search
from replicator.imap.search_bounds import is_text
from replicator.imap.session import Completion, Session
from replicator.mailstore import Text, read_all, skeleton_of
from replicator.mime.skeleton import Skeleton
from replicator.view import Message


async def search(session: Session, command: c.Search) -> Completion:
    """SEARCH and UID SEARCH. Raises BadCharsetError.

    Messages whose text is out of reach match nothing; the answer then is NO, after what was found.
    """
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
        raise CommandFailedError(f"The text of {unreadable} messages is at no node in reach; try later", "UNAVAILABLE")
    return Completion("Searched")


async def _matches(session: Session, message: Message, evaluation: Search) -> bool:
    parsing = session.services.parsing
    async with AsyncExitStack() as turn:
        kept = await session.mail.read_text(message)
        if evaluation.reads_bodies and kept.skeleton.gaps:
            await turn.enter_async_context(parsing.whole)
        text = MessageText(await _readable(kept, evaluation))
        return await parsing.run(text, partial(evaluation.matches, message, text))


async def _readable(text: Text, evaluation: Search) -> Skeleton:
    """A text with all that is looked at: where that lies in gaps, the whole text is read into memory."""
    skeleton = await skeleton_of(text, with_structure=evaluation.reads_bodies)
    if not skeleton.gaps or not evaluation.reads_bodies:
        return skeleton
    parts = MessageText(skeleton).structure.walk()
    if all(skeleton.is_whole(part.header.end, part.end) for part in parts if is_text(part)):
        return skeleton
    return Skeleton(await read_all(text))
