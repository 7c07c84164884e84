"""Parts of stored messages that an APPEND takes over by their URLs (RFC 4469), read piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

import trio

from protocol.units import KIB
from replicator.errors import FolderNotFoundError
from replicator.imap.rendering.fetch_answers import section
from replicator.imap.session import Session
from replicator.imap.wire.commands.command_parser import CommandSyntaxError
from replicator.imap.wire.fetch_items import BodySection, Span
from replicator.imap.wire.message_urls import MAX_URL, MessageUrl, MessageUrlError, printed_reason, printed_url
from replicator.imap.wire.refusals import CommandFailedError
from replicator.mail.mailstore import BodyReader
from replicator.mail.view import Message

_PIECE_BYTES = 64 * KIB


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Octets of a stored message. `content`: the octets, or their span in `body`."""

    body: BodyReader
    content: bytes | Span

    @property
    def size_bytes(self) -> int:
        """Number of the octets."""
        content = self.content
        return content.end - content.start if isinstance(content, Span) else len(content)

    async def read(self) -> AsyncGenerator[bytes, None]:
        """Yield the octets in small pieces, as they are stored. Raises ContentUnavailableError."""
        if isinstance(self.content, Span):
            async with aclosing(self.body.read(self.content.start, self.content.end)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        for start in range(0, len(self.content), _PIECE_BYTES):
            await trio.lowlevel.checkpoint()
            yield self.content[start : start + _PIECE_BYTES]


async def stored_part(session: Session, url: bytes) -> StoredPart:
    r"""Return what the URL names; `\Seen` stays as it is. Raises CommandFailedError, ContentUnavailableError."""
    if len(url) > MAX_URL:
        raise CommandFailedError(f"A URL may have {MAX_URL} octets, not {len(url)}", "LIMIT")
    selected = session.selection_or_none
    try:
        found = MessageUrl.parse(url, None if selected is None else selected.folder.name)
        item = replace(_section(session, found.section), partial=found.partial)
        message = await _message(session, found)
        body = await session.mail.read_body(message)
        content = await _content(session, body, item)
    except (MessageUrlError, FolderNotFoundError) as error:
        raise CommandFailedError(printed_reason(error), f"BADURL {printed_url(url)}") from error
    return StoredPart(body, content)


def _section(session: Session, text: str) -> BodySection:
    try:
        return session.services.parser.section(text)
    except CommandSyntaxError as error:
        raise MessageUrlError(str(error)) from error


async def _message(session: Session, url: MessageUrl) -> Message:
    folder = await session.folder(url.mailbox)
    view = await session.mail.open_mailbox(folder)
    if url.uidvalidity not in {None, view.uidvalidity}:
        raise MessageUrlError(f"the UIDVALIDITY of {url.mailbox!r} is {view.uidvalidity}")
    message = view.messages.get(url.uid)
    if message is None:
        raise MessageUrlError(f"{url.mailbox!r} has no message with UID {url.uid}")
    return message


async def _content(session: Session, body: BodyReader, item: BodySection) -> bytes | Span:
    parsing, with_structure = session.services.parsing, bool(item.part)
    async with parsing.opened(body, with_structure=with_structure) as parsed:
        content = await parsing.run(parsed, partial(section, parsed, item), with_structure=with_structure)
    if content is None:
        raise MessageUrlError("the message has no such part")
    return content
