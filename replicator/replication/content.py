"""Message texts between nodes, beside the log: for what is missing or damaged at one of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import assert_never

from protocol.codec import ProtocolError
from protocol.commands import Content, FetchGuid, FetchHash, FetchUid, RefusalCode, Refused, Reply
from replicator.replication.link import LinkDownError, PeerLink
from replicator.store import reading
from replicator.store.content import read_text
from replicator.store.store import Store


async def fetch(links: Iterable[PeerLink], content_hash: bytes) -> bytes | None:
    """A text from the first neighbour that has it whole."""
    for link in links:
        try:
            match await link.request(FetchHash(content_hash)):
                case Content(message) if hashlib.sha256(message).digest() == content_hash:
                    return message
                case _:
                    continue
        except LinkDownError:
            continue
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
