"""Requests for small bodies between nodes, many at a time (FETCH BODIES; docs/protocol.md, "Content").

The bodies travel packed, as the peer's database has them, and are written as they came.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias, cast
from weakref import WeakKeyDictionary

import msgpack
import trio
import zstandard

from protocol.commands import Content, FetchBodies
from protocol.stream_codec import ProtocolError
from protocol.units import KIB
from replicator.replication import timing
from replicator.replication.links.handshake import BODIES
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.store.bodies.body_rows import StoredBody, most_packed_bytes, read_packed
from replicator.store.db.entry_validation import HASH_BYTES
from replicator.store.store import Store

TOGETHER = 64  # bodies in one request
TOGETHER_BYTES = 64 * KIB  # of them, packed: other replies queue behind no more (`link.OUTPUT_BYTES`)
SMALL_BYTES = 64 * KIB  # of such a body, unpacked

_REPLY_BYTES = TOGETHER_BYTES + most_packed_bytes(SMALL_BYTES) + 8 * TOGETHER  # at most, with MessagePack's lengths

Keep: TypeAlias = Callable[[list[StoredBody]], Awaitable[None]]
"""A function that writes bodies that have come."""


class SmallFetch:
    """Fetches small bodies from neighbours, each time from another one first. Belongs to the event loop."""

    def __init__(self, links: Callable[[], Sequence[PeerLink]]) -> None:
        self._links = links
        self._times = 0
        self._slow: WeakKeyDictionary[PeerLink, float] = WeakKeyDictionary()  # until when a slow link is passed over

    async def fetch(self, hashes: Sequence[bytes], keep: Keep) -> None:
        """Fetch bodies, and have `keep` write those of each reply. Raises what `keep` raises.

        Left out are large bodies, and those that no neighbour has sent soon: whether one of them has these,
        `peer_fetch.fetch` tells.
        """
        links = [link for link in self._links() if BODIES in link.hello.capabilities]
        self._times += 1
        first = self._times % max(1, len(links))
        for link in (*links[first:], *links[:first]):
            if hashes and self._slow.get(link, 0) <= trio.current_time():
                hashes = await self._fetch_from(link, hashes, keep)

    async def _fetch_from(self, link: PeerLink, hashes: Sequence[bytes], keep: Keep) -> Sequence[bytes]:
        """Fetch what this neighbour sends of these bodies; return the hashes of the others."""
        others: list[bytes] = []
        while hashes:
            some = hashes[:TOGETHER]
            answered, bodies = await self._ask(link, some)
            if not answered:
                break
            await keep(bodies)
            came = {body.content_hash for body in bodies}
            others += [content_hash for content_hash in some[:answered] if content_hash not in came]
            hashes = hashes[answered:]
        return [*others, *hashes]

    async def _ask(self, link: PeerLink, hashes: Sequence[bytes]) -> tuple[int, list[StoredBody]]:
        """Return how many of the first hashes a neighbour answers, and the bodies that come; (0, []): no answer."""
        with trio.move_on_after(timing.SMALL_FETCH_PATIENCE_S) as scope:
            try:
                reply = await link.request(FetchBodies(b"".join(hashes)))
            except LinkDownError:
                return 0, []
        if scope.cancelled_caught:
            self._slow[link] = trio.current_time() + timing.SMALL_FETCH_SLOW_S
            return 0, []
        if not isinstance(reply, Content):
            return 0, []
        return await link.run_in_thread(partial(unpacked, reply.message, hashes))


def unpacked(packed: bytes, hashes: Sequence[bytes]) -> tuple[int, list[StoredBody]]:
    """Return how many of the first hashes a reply answers, and the bodies in it that match theirs.

    (0, []) if it cannot be read, or is larger than a node sends.
    """
    if len(packed) > _REPLY_BYTES:
        return 0, []
    try:
        answers = msgpack.unpackb(packed, use_list=False, max_array_len=len(hashes), max_map_len=0, max_ext_len=0)
    except (msgpack.UnpackException, ValueError):
        return 0, []
    if not isinstance(answers, tuple):
        return 0, []
    decompressor = zstandard.ZstdDecompressor()
    bodies = (
        StoredBody.of_packed(content_hash, answer, SMALL_BYTES, decompressor)
        for content_hash, answer in zip(hashes, answers, strict=False)
        if type(answer) is bytes
    )
    return len(answers), [body for body in bodies if body is not None]


async def answer(store: Store, joined: bytes) -> Content:
    """Answer FETCH BODIES: the first of the bodies, packed; nil for each that is not here, or large.

    Raises ProtocolError.
    """
    if len(joined) % HASH_BYTES:
        raise ProtocolError(f"FETCH BODIES with {len(joined)} bytes, which are not whole hashes")
    end = min(len(joined), TOGETHER * HASH_BYTES)
    hashes = [joined[start : start + HASH_BYTES] for start in range(0, end, HASH_BYTES)]
    read = partial(read_packed, hashes=hashes, max_packed_bytes=TOGETHER_BYTES, max_body_bytes=SMALL_BYTES)
    return Content(cast("bytes", msgpack.packb(await store.read(read))))
