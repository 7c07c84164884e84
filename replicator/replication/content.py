"""Message texts between nodes, beside the log: for what is missing or damaged at one of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import assert_never

import trio

from protocol.codec import ProtocolError
from protocol.commands import Content, FetchGuid, FetchHash, FetchUid, RefusalCode, Refused, Reply
from replicator.replication.link import LinkDownError, PeerLink
from replicator.store import reading
from replicator.store.content import read_text
from replicator.store.store import Store

NEXT_AFTER_S = 8.0  # without an answer from one neighbour, the next is asked as well; a slow line has had its time


async def fetch(links: Iterable[PeerLink], content_hash: bytes) -> bytes | None:
    """A text from the first neighbour that gives it whole. Waits as long as a link on which it was asked for lasts."""
    found: list[bytes] = []

    async def ask(link: PeerLink, answered: trio.Event, scope: trio.CancelScope) -> None:
        text = await _fetch(link, content_hash)
        if text is not None:
            found.append(text)
            scope.cancel()
        answered.set()

    async with trio.open_nursery() as nursery:
        for link in links:
            answered = trio.Event()
            nursery.start_soon(ask, link, answered, nursery.cancel_scope)
            with trio.move_on_after(NEXT_AFTER_S):
                await answered.wait()
    return found[0] if found else None


async def _fetch(link: PeerLink, content_hash: bytes) -> bytes | None:
    try:
        match await link.request(FetchHash(content_hash)):
            case Content(message) if hashlib.sha256(message).digest() == content_hash:
                return message
    except LinkDownError:
        pass
    return None


async def answer_fetch(store: Store, link: PeerLink, command: FetchHash | FetchGuid | FetchUid) -> Reply:
    """What this node has. Raises ProtocolError for a mailbox number that is not known."""
    match command:
        case FetchHash(content_hash):
            wanted: bytes | None = content_hash
        case FetchGuid(guid):
            wanted = await store.read(lambda reader: reading.content_hash_of_guid(reader, guid))
        case FetchUid(number, uid):
            key = link.key_of(number)
            if key is None:
                raise ProtocolError(f"mailbox number {number} was not given by an MBOX before")
            wanted = await store.read(lambda reader: reading.content_hash_of_uid(reader, key.mailbox_id, uid))
        case _:
            assert_never(command)
    text = await store.read(lambda reader: read_text(reader, wanted)) if wanted else None
    return Content(text) if text is not None else Refused(RefusalCode.NO_CONTENT, "not at this node")
