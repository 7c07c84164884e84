"""The route by which mail leaves a node.

| route | answers |
|---|---|
| `GET /api/v1/users/USER/folders/NAME/mail?uid=` | the mail of a folder by UID, or one of it, as MessagePack |

The answer is a sequence of values. Each mail begins with an array `[uid, [flag, ...], received_ms, size_bytes,
sha256]`; binary values follow that are together the mail, byte for byte. A string instead of them, or of the rest of
them, tells why the body cannot be read; the next mail follows. Nil is the end: without it the answer was broken off.
Mail that comes after the request is left out. The route needs the role `operate`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from http import HTTPStatus
from itertools import islice

import msgpack

from protocol.units import KIB
from protocol.values import UID_MAX
from replicator.errors import MailError
from replicator.http.message import MSGPACK_TYPE, PieceStream, ProblemError, Request
from replicator.http.parameters import number
from replicator.http.routing import Route
from replicator.http.services import HttpServices, known_user
from replicator.mail.mailstore import BodyReader, MailStore, canonical_name
from replicator.mail.view import MailboxView, Message

TOGETHER_MESSAGES, TOGETHER_BYTES = 50, 256 * KIB
"""Small bodies that are read together, and held in memory."""

PIECE_BYTES = 64 * KIB
"""Octets that are sent at once, at least, unless the answer ends."""


async def get_mail(services: HttpServices, request: Request) -> PieceStream:
    """Return the mail of a folder, or one of it."""
    folder = await services.mail.folder(known_user(services, request), canonical_name(request.path["name"]))
    view = await services.mail.open_mailbox(folder)
    uid = number(request, "uid", UID_MAX, minimum=1)
    if uid is not None and uid not in view.messages:
        raise ProblemError(HTTPStatus.NOT_FOUND, f"{folder.user}'s {folder.name} has no mail with the UID {uid}")
    first, last = (1, view.uidnext - 1) if uid is None else (uid, uid)
    return PieceStream(_pieces(services.mail, view, first, last), MSGPACK_TYPE)


async def _pieces(mail: MailStore, view: MailboxView, first: int, last: int) -> AsyncGenerator[bytes, None]:
    """Yield the answer in pieces of some size."""
    gathered, size_bytes = list[bytes](), 0
    async with aclosing(_values(mail, view, first, last)) as values:
        async for value in values:
            packed = msgpack.packb(value)
            gathered.append(packed)
            size_bytes += len(packed)
            if size_bytes >= PIECE_BYTES:
                yield b"".join(gathered)
                gathered, size_bytes = [], 0
    yield b"".join([*gathered, msgpack.packb(None)])


async def _values(mail: MailStore, view: MailboxView, first: int, last: int) -> AsyncGenerator[object, None]:
    """Yield the values of all messages in this range of UIDs, as they are by then."""
    while messages := [view.messages[uid] for uid in islice(_uids(view, first, last), TOGETHER_MESSAGES)]:
        try:
            together = await mail.read_bodies(messages, TOGETHER_BYTES)
        except MailError:  # each is read by itself, and found to be unreadable or not
            together = {}
        for message in messages:
            yield _head(message)
            async with aclosing(_body(mail, message, together.get(message.content_hash))) as values:
                async for value in values:
                    yield value
        first = messages[-1].uid + 1


def _uids(view: MailboxView, first: int, last: int) -> Iterator[int]:
    uids: Iterator[int] = view.messages.irange(first, last)
    return uids


def _head(message: Message) -> Sequence[object]:
    flags = sorted(message.flags)
    return message.uid, flags, message.received_ms, message.size_bytes, message.content_hash


async def _body(mail: MailStore, message: Message, body: BodyReader | None) -> AsyncGenerator[bytes | str, None]:
    """Yield the octets of a message, and why there are no more if they cannot be read."""
    try:
        if body is None:
            body = await mail.read_body(message)
        async with aclosing(body.read(0, message.size_bytes)) as pieces:
            async for piece in pieces:
                yield piece
    except MailError as error:
        yield str(error)


MAIL_ROUTES: tuple[Route[HttpServices], ...] = (
    Route("GET", "/api/v1/users/{user}/folders/{name}/mail", get_mail, query=frozenset({"uid"}), is_private=True),
)
