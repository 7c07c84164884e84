"""Requests for message bodies between nodes, outside the log: for missing or damaged bodies, and for attachments.

A body with attachments travels as its recipe; a node that lacks attachments requests their chunks (`attachments`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar, assert_never

import trio

from protocol.commands import (
    Content,
    FetchBodies,
    FetchGuid,
    FetchHash,
    FetchPart,
    FetchUid,
    Parts,
    RefusalCode,
    Refused,
    Reply,
)
from replicator.errors import UnavailableError
from replicator.replication import timing
from replicator.replication.bodies.from_peers import small_fetch
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.store.bodies.attachment_ranges import CHUNK_BYTES, Attached
from replicator.store.bodies.body_rows import read_body
from replicator.store.db import queries
from replicator.store.db.queries import Connection
from replicator.store.store import Store

T = TypeVar("T")

AnyFetch: TypeAlias = FetchHash | FetchBodies | FetchGuid | FetchUid | FetchPart

ReadChunk: TypeAlias = Callable[[bytes, int], Awaitable[bytes | None]]
"""A function that reads a chunk of an attachment, given its hash and an octet offset. None: the chunk is not here."""


Links: TypeAlias = Callable[[], Iterable[PeerLink]]
"""A function that returns the current links to the neighbours."""


class Fetched(NamedTuple):
    """A body, and the link to the neighbour that has it with its attachments."""

    message: bytes | Parts
    link: PeerLink


async def fetch(links: Iterable[PeerLink], content_hash: bytes) -> Fetched | None:
    """Fetch a body from the first neighbour that has it, waiting until each link answers or breaks.

    None: no reachable neighbour has it. Raises UnavailableError if that cannot be known now.
    """
    return await _first(links, partial(_fetch, content_hash=content_hash))


async def fetch_chunk(links: Iterable[PeerLink], attached: Attached, number: int) -> bytes | None:
    """Fetch a chunk of an attachment from the first neighbour that has it whole. None and errors as for `fetch`."""
    return await _first(links, partial(chunk_from, attached=attached, number=number))


async def chunk_from(link: PeerLink, attached: Attached, number: int) -> bytes | None:
    """Fetch a chunk of an attachment from this neighbour; None: the neighbour lacks it, or its copy is damaged.

    Raises LinkDownError, UnavailableError.
    """
    async with link.chunk_turn:
        reply = await link.request(FetchPart(attached.hash, number * CHUNK_BYTES))
    match reply:
        case Content(chunk) if attached.verify(number, chunk):
            return chunk
        case reply:
            _check_refusal(link, reply)
    return None


def _check_refusal(link: PeerLink, reply: Reply) -> None:
    """Raise UnavailableError if a neighbour's refusal does not mean that it lacks the content."""
    if isinstance(reply, Refused) and reply.code != RefusalCode.NO_CONTENT:
        raise UnavailableError(f"{link.sid} cannot supply the content now: {reply.text}")


async def _first(links: Iterable[PeerLink], ask: Callable[[PeerLink], Awaitable[T | None]]) -> T | None:
    found: list[T] = []
    unavailable: list[UnavailableError] = []

    async def attempt(link: PeerLink, answered: trio.Event, scope: trio.CancelScope) -> None:
        answer: T | None = None
        try:
            answer = await ask(link)
        except LinkDownError:
            pass
        except UnavailableError as error:
            unavailable.append(error)
        if answer is not None:
            found.append(answer)
            scope.cancel()
        answered.set()

    async with trio.open_nursery() as nursery:
        for link in links:
            answered = trio.Event()
            nursery.start_soon(attempt, link, answered, nursery.cancel_scope)
            with trio.move_on_after(timing.PEER_FETCH_NEXT_AFTER_S):
                await answered.wait()
    if unavailable and not found:
        raise unavailable[0]
    return found[0] if found else None


async def _fetch(link: PeerLink, content_hash: bytes) -> Fetched | None:
    match await link.request(FetchHash(content_hash)):
        case Content(message) if hashlib.sha256(message).digest() == content_hash:
            return Fetched(message, link)
        case Parts() as parts if parts.content_hash == content_hash:
            return Fetched(parts, link)
        case reply:
            _check_refusal(link, reply)
    return None


async def answer_fetch(store: Store, link: PeerLink, command: AnyFetch, read_chunk: ReadChunk) -> Reply:
    """Answer a peer's request from this node's content.

    Raises ProtocolError for an unknown mailbox number, and for hashes that are none.
    """
    found: bytes | Parts | None = None
    match command:
        case FetchBodies(hashes):
            return await small_fetch.answer(store, hashes)
        case FetchPart(part, start):
            found = await read_chunk(part, start)
        case FetchHash(content_hash):
            found = await store.read(partial(read_body, content_hash=content_hash))
        case FetchGuid(guid):
            found = await _read(store, lambda reader: queries.content_hash_of_guid(reader, guid))
        case FetchUid(number, uid):
            key = link.key_of(number)
            found = await _read(store, lambda reader: queries.content_hash_of_uid(reader, key.mailbox_id, uid))
        case _:
            assert_never(command)
    if found is None:
        return Refused(RefusalCode.NO_CONTENT, "this node does not have this content")
    return Content(found) if isinstance(found, bytes) else found


async def _read(store: Store, find: Callable[[Connection], bytes | None]) -> bytes | Parts | None:
    wanted = await store.read(find)
    return None if wanted is None else await store.read(partial(read_body, content_hash=wanted))
