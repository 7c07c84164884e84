"""The route by which mail leaves a node.

| route | answers |
|---|---|
| `GET /api/v1/users/USER/folders/NAME/mail?uid=` | the mail of a folder by UID, or one of it, as MessagePack |

The answer is a sequence of values. Each mail begins with an array `[uid, [flag, ...], received_ms, size_bytes,
sha256]`; binary values follow that are together the mail, byte for byte. A string instead of them, or of the rest of
them, tells why the body cannot be read; the next mail follows. Nil is the end: without it the answer was broken off.
Mail that comes after the request is left out, and so is what is expunged before its turn; mail that a merge gives
another UID meanwhile is sent. The route needs the role `operate`.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import msgpack
import trio

from protocol.units import KIB
from protocol.values import UID_MAX
from replicator.errors import ContentUnavailableError, MailError
from replicator.http.message import MSGPACK_TYPE, PieceStream, ProblemError, Request
from replicator.http.parameters import number
from replicator.http.routing import Route
from replicator.http.services import HttpServices, known_user
from replicator.mail.mailstore import BodyReader, MailStore, canonical_name
from replicator.mail.view import MailboxView, Message

TOGETHER_MESSAGES, TOGETHER_BYTES = 50, 256 * KIB
"""Small bodies that are read together, and held in memory."""

PIECE_BYTES = 64 * KIB
"""Octets that are sent at once, at least, unless the answer ends or they have waited for `PIECE_S`."""

PIECE_S = 5.0
"""Seconds for which octets may wait for others. A body that no node in reach has takes half a minute to be given up."""

NEXT_BODY_S = 2.0
"""Seconds that an answer waits for a body of another node once one was not to be had: a node that has lost its disk
lacks many, and each would take half a minute."""


@dataclass(slots=True)
class _Patience:
    """Seconds that an answer waits for the next body that is not at hand."""

    left_s: float = math.inf  # until `MailStore.read_body` gives up


async def get_mail(services: HttpServices, request: Request) -> PieceStream:
    """Return the mail of a folder, or one of it."""
    folder = await services.mail.folder(await known_user(services, request), canonical_name(request.path["name"]))
    view = await services.mail.open_mailbox(folder)
    uid = number(request, "uid", UID_MAX, minimum=1)
    if uid is not None and uid not in view.messages:
        raise ProblemError(HTTPStatus.NOT_FOUND, f"{folder.user}'s {folder.name} has no mail with the UID {uid}")
    wanted = await services.run_in_thread(partial(sorted, view.snapshot())) if uid is None else [view.messages[uid]]
    return PieceStream(_pieces(services, view, wanted), MSGPACK_TYPE)


async def _pieces(services: HttpServices, view: MailboxView, wanted: Sequence[Message]) -> AsyncGenerator[bytes, None]:
    """Yield the answer in pieces of some size."""
    gathered, size_bytes, since = list[bytes](), 0, trio.current_time()
    async with aclosing(_values(services, view, wanted)) as values:
        async for value in values:
            packed = msgpack.packb(value)
            gathered.append(packed)
            size_bytes += len(packed)
            if size_bytes >= PIECE_BYTES or trio.current_time() >= since + PIECE_S:
                yield b"".join(gathered)
                gathered, size_bytes, since = [], 0, trio.current_time()
    yield b"".join([*gathered, msgpack.packb(None)])


async def _values(services: HttpServices, view: MailboxView, wanted: Sequence[Message]) -> AsyncGenerator[object, None]:
    """Yield the values of those wanted messages that the folder still has, as they are by then, in order of their UIDs.

    Those to which a merge gives another UID meanwhile follow.
    """
    looked_for, patience = list[Message](), _Patience()
    while wanted:
        looked_for += wanted
        missing = set[bytes]()
        for start in range(0, len(wanted), TOGETHER_MESSAGES):
            some = wanted[start : start + TOGETHER_MESSAGES]
            found = [_present(view, one) for one in some]
            missing |= {one.content_hash for one, now in zip(some, found, strict=True) if now is None}
            present = [now for now in found if now is not None]
            async with aclosing(_together(services.mail, present, patience)) as values:
                async for value in values:
                    yield value
        find = partial(_elsewhere, view.snapshot(), missing, looked_for)
        wanted = await services.run_in_thread(find) if missing else ()


def _present(view: MailboxView, message: Message) -> Message | None:
    """Return the message as it is now; None if its UID is nobody's, or another mail's."""
    now = view.messages.get(message.uid)
    return now if now is not None and now.content_hash == message.content_hash else None


def _elsewhere(
    messages: Collection[Message], missing: Collection[bytes], looked_for: Collection[Message]
) -> Sequence[Message]:
    """Return the messages with missing contents that have other UIDs than those at which they were looked for."""
    known = {(one.uid, one.content_hash) for one in looked_for if one.content_hash in missing}
    return sorted(one for one in messages if one.content_hash in missing and (one.uid, one.content_hash) not in known)


async def _together(mail: MailStore, messages: Sequence[Message], patience: _Patience) -> AsyncGenerator[object, None]:
    """Yield the values of a few messages."""
    try:
        together = await mail.read_bodies(messages, TOGETHER_BYTES)
    except MailError:  # each is read by itself, and found to be unreadable or not
        together = {}
    for message in messages:
        yield _head(message)
        async with aclosing(_body(mail, message, together.get(message.content_hash), patience)) as values:
            async for value in values:
                yield value


def _head(message: Message) -> Sequence[object]:
    flags = sorted(message.flags)
    return message.uid, flags, message.received_ms, message.size_bytes, message.content_hash


async def _body(
    mail: MailStore, message: Message, body: BodyReader | None, patience: _Patience
) -> AsyncGenerator[bytes | str, None]:
    """Yield the octets of a message, and why there are no more if they cannot be read."""
    try:
        if body is None:
            body = await _read(mail, message, patience)
        async with aclosing(body.read(0, message.size_bytes)) as pieces:
            async for piece in pieces:
                yield piece
    except MailError as error:
        yield str(error)


async def _read(mail: MailStore, message: Message, patience: _Patience) -> BodyReader:
    """Return the body of a message. Raises MailError; ContentUnavailableError makes the answer less patient."""
    with trio.move_on_after(patience.left_s):
        try:
            return await mail.read_body(message)
        except ContentUnavailableError:
            patience.left_s = NEXT_BODY_S
            raise
    raise ContentUnavailableError("no other node has sent the body of this message soon enough; ask for it by itself")


MAIL_ROUTES: tuple[Route[HttpServices], ...] = (
    Route("GET", "/api/v1/users/{user}/folders/{name}/mail", get_mail, query=frozenset({"uid"}), is_private=True),
)
