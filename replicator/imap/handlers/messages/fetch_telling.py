"""Answers of FETCH, formatted and sent: with outlines and bodies, and for rows alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import aclosing
from itertools import islice

import trio

from protocol.values import UidSet
from replicator.errors import ContentUnavailableError
from replicator.imap.handlers.messages.binary import decoded
from replicator.imap.handlers.messages.fetch_plan import FetchPlan
from replicator.imap.handlers.messages.fetch_reading import Found
from replicator.imap.rendering.row_answers import row_answer
from replicator.imap.session import Session
from replicator.imap.wire.connection import ConnectionEndedError
from replicator.imap.wire.fetch_items import Chunk, Decoded, Value
from replicator.imap.wire.responses import fetch_response, without_body, without_nul
from replicator.mailstore import BodyReader

ROWS_BETWEEN_CHECKPOINTS = 500  # about a millisecond of formatting, without bodies

log = logging.getLogger(__name__)

_FLAGS = b"FLAGS"
_MODSEQ = b"MODSEQ"


async def tell_rows(session: Session, plan: FetchPlan, runs: Iterable[Iterable[int]]) -> int:
    """Send items that no body is needed for. Return the number of messages that are gone."""
    selection, gone = session.selection, 0
    messages, pairs = selection.view.messages, selection.numbering.pairs(runs)
    answer = row_answer(plan.items, lambda message: selection.printed_flags(message).encode("ascii"))
    while some := [*islice(pairs, ROWS_BETWEEN_CHECKPOINTS)]:
        chunks = []
        for number, uid in some:
            if (message := messages.get(uid)) is None:
                gone += 1
                continue
            if plan.tells_flags:
                chunks += selection.unheard_keywords(message)
            chunks.append(answer(number, message))
        await session.write((b"".join(chunks),))
        await trio.lowlevel.checkpoint()
    return gone


async def tell(session: Session, plan: FetchPlan, some: Iterable[Found], seen: UidSet) -> None:
    """Send a slice. `seen` are UIDs that this FETCH marked as seen; their new flags are sent too."""
    selection, tells_changes = session.selection, plan.tells_flags or plan.tells_modseq
    chunks: list[bytes] = []
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
            chunks += selection.unheard_keywords(message)
        response = fetch_response(number, values)
        if body is None:
            chunks += without_body(response)
            continue
        await session.write(chunks)
        chunks = []
        await _send(session, body, response)
        await trio.lowlevel.checkpoint()
    await session.write(chunks)
    await trio.lowlevel.checkpoint()


async def _send(session: Session, body: BodyReader, chunks: list[Chunk]) -> None:
    """Send an answer; octets of a large body are read while they are sent.

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
