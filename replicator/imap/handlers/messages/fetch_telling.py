"""Answers of FETCH from bodies, formatted and sent."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import aclosing

import trio

from protocol.values import UidSet
from replicator.errors import ContentUnavailableError
from replicator.imap.handlers.messages.binary import decoded
from replicator.imap.handlers.messages.fetch_plan import FetchPlan
from replicator.imap.handlers.messages.fetch_reading import BYTES_BETWEEN_CHECKPOINTS, Found
from replicator.imap.session import Session
from replicator.imap.wire.connection import ConnectionEndedError
from replicator.imap.wire.fetch_items import Chunk, Decoded, Value
from replicator.imap.wire.responses import fetch_response, without_nul
from replicator.mail.mailstore import BodyReader

log = logging.getLogger(__name__)

_FLAGS = b"FLAGS"
_MODSEQ = b"MODSEQ"


async def tell(session: Session, plan: FetchPlan, some: Iterable[Found], seen: UidSet) -> None:
    """Send a slice. `seen` are UIDs that this FETCH marked as seen; their new flags are sent too."""
    selection, tells_changes = session.selection, plan.tells_flags or plan.tells_modseq
    told_bytes = 0
    for number, found, body, said in some:
        message = selection.view.messages.get(found.uid, found)  # with its present flags
        now: dict[bytes, Value] = {}
        if tells_changes or message.uid in seen:
            now = {_FLAGS: selection.printed_flags(message), _MODSEQ: (message.modseq,)}
        values = [(name, now.get(name, value)) for name, value in said]
        if message.uid in seen:
            if not plan.tells_flags:
                values.append((_FLAGS, now[_FLAGS]))
            if session.aware.condstore:  # RFC 7162 section 3.2.4
                values += [] if plan.tells_uid else [(b"UID", message.uid)]
                values += [] if plan.tells_modseq else [(_MODSEQ, (message.modseq,))]
        if plan.tells_flags or message.uid in seen:
            await session.write(selection.unheard_keywords([message]))
        with session.connection.whole_response():
            told_bytes += await _send(session, body, fetch_response(number, values))
        if told_bytes >= BYTES_BETWEEN_CHECKPOINTS or not plan.is_quick:
            told_bytes = 0
            await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()


async def _send(session: Session, body: BodyReader, chunks: list[Chunk]) -> int:
    """Send an answer; octets of a large body are read while they are sent. Return the number of those in memory.

    If they cannot be read after all, the connection ends, because their length was already announced (RFC 3501 section
    4.3).
    """
    for chunk in chunks:
        if isinstance(chunk, bytes):
            await session.write([chunk])
            continue
        try:
            if isinstance(chunk, Decoded):
                async with aclosing(decoded(chunk, body)) as octets:
                    async for some in octets:
                        await session.write([some])
            else:
                async with aclosing(body.read(chunk.start, chunk.end)) as octets:
                    async for some in octets:
                        await session.write([without_nul(some)])
        except ContentUnavailableError as error:
            log.warning("closing a connection: cannot read a body that was being sent: %s", error)
            raise ConnectionEndedError(f"cannot read a body that was being sent: {error}") from error
    return sum(len(chunk) for chunk in chunks if isinstance(chunk, bytes))
