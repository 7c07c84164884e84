"""Bodies from other nodes, or from elsewhere on this disk, prepared for writing: all their attachments are held here.

A body counts as prepared only when every attachment is whole on this disk, wherever else it exists: acknowledgements
depend on that.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import trio

from protocol.commands import Parts
from replicator.errors import ContentUnavailableError, MailError, UnavailableError
from replicator.replication import timing
from replicator.replication.bodies.attachments import ChunkSource, NodeAttachments
from replicator.replication.bodies.from_peers.peer_fetch import Links, chunk_from, fetch_chunk
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.runtime.environment import ThreadRunner
from replicator.store.attachments.construction import Holding
from replicator.store.bodies.attachment_ranges import Attached
from replicator.store.bodies.body_reader import LargeBody, recipe_of
from replicator.store.bodies.body_rows import StoredBody, holdings_of, keepers_of, replace_body, unrecorded
from replicator.store.bodies.recipe import Recipe
from replicator.store.db.damage import DatabaseDamagedError
from replicator.store.store import Store

log = logging.getLogger(__name__)

HASH_IN_THREAD_BYTES = 1 << 18  # larger bodies are hashed and compressed in a thread
LOST_MAX = 10_000  # lost bodies remembered, so that each is logged once

Keepers: TypeAlias = Callable[[bytes], Awaitable[Iterable[Holding]]]
"""A function that tells where on this disk an attachment is kept under its holders' names, given its hash."""


@dataclass(frozen=True, slots=True)
class LocalChunks:
    """A source of verified chunks from this disk only. See `reader.Chunks`."""

    attachments: NodeAttachments = field(repr=False)

    async def chunk(self, attached: Attached, holding: Holding | None, number: int) -> bytes:
        """See `NodeAttachments.own_chunk`."""
        return await self.attachments.own_chunk(attached, holding, number)


class Downloader:
    """A downloader of bodies that are to be written, with their attachments held. Belongs to the event loop.

    `links` returns the links to the neighbours.
    """

    def __init__(self, store: Store, attachments: NodeAttachments, run_in_thread: ThreadRunner, links: Links) -> None:
        self._store = store
        self._attachments = attachments
        self._run_in_thread = run_in_thread
        self._links = links
        self._lost: set[bytes] = set()  # hashes of bodies that were logged as lost
        self._unknown: list[Holding] = []  # holdings that could not be checked against the records of bodies

    async def run(self) -> None:
        """Retry releases that were postponed, until cancelled."""
        while True:
            await trio.sleep(timing.DOWNLOAD_UNKNOWN_RETRY_S)
            unknown, self._unknown = self._unknown, []
            await self._let_go(unknown)

    @asynccontextmanager
    async def obtain(
        self, messages: Iterable[bytes | Parts | None], link: PeerLink | None = None, keepers: Keepers | None = None
    ) -> AsyncIterator[list[StoredBody]]:
        """Prepare those messages whose attachments can all be had, for writing within the block.

        Missing attachments come from the link's peer, then from other neighbours; without a link, from the places on
        this disk that `keepers` names. Messages that are None or could not be provided are left out. Raises
        DiskFullError, and UnavailableError if a retry may succeed.
        """
        source = partial(self._from, link) if link else partial(self._kept_here, keepers or self._keepers)
        held: list[Holding] = []
        taken: list[StoredBody] = []
        try:
            for message in messages:
                stored = None if message is None else await self._take(message, source, held)
                if stored is not None:
                    taken.append(stored)
            yield taken
        finally:
            await self.let_go(held)

    async def hold(self, message: Parts, link: PeerLink) -> list[Holding]:
        """Hold the attachments of a message, from the link's peer or others, until released.

        Empty: some are unavailable. Content that was here already is not verified. Raises DiskFullError,
        UnavailableError.
        """
        held: list[Holding] = []
        try:
            recipe = recipe_of(message)
            if recipe is None or await self._hold(recipe, partial(self._from, link), held) is None:
                return []
            held, all_held = [], held
            return all_held
        finally:
            await self.let_go(held)

    async def let_go(self, held: Sequence[Holding]) -> None:
        """Settle the holdings that a body has recorded and release the others; retry later if that cannot be known."""
        with trio.CancelScope(shield=True):
            await self._let_go(held)

    async def _let_go(self, held: Sequence[Holding]) -> None:
        surplus = await self._unrecorded(held) if held else []
        if surplus is None:
            self._unknown += held
            return
        for holding in held:
            if holding not in surplus:
                self._attachments.store.settle(holding.holder)
        await self._attachments.let_go(surplus)

    async def _unrecorded(self, held: Sequence[Holding]) -> list[Holding] | None:
        """Return the holdings that no body has recorded; None: that cannot be known now."""
        with suppress(MailError), trio.move_on_after(timing.DOWNLOAD_FLUSH_TIMEOUT_S):
            # A cancelled or refused caller may have left a job in the queue that still writes its body.
            await self._store.flush()
            return await self._store.read(partial(unrecorded, holdings=held))
        return None

    def note_lost(self, lost: Iterable[Parts], sid: str) -> None:
        """Log and count messages from a node that are written without a body.

        No reachable node has all their attachments. Each counts once, even if it comes from several nodes.
        """
        if len(self._lost) > LOST_MAX:
            self._lost.clear()
        for parts in lost:
            if parts.content_hash in self._lost:
                continue
            self._lost.add(parts.content_hash)
            log.warning("no reachable node has all parts of a message from %s, body %s", sid, parts.content_hash.hex())
            self._attachments.metrics.lost.inc()

    async def _take(self, message: bytes | Parts, source: ChunkSource, held: list[Holding]) -> StoredBody | None:
        if isinstance(message, bytes):
            return await self._prepared(message)
        recipe = recipe_of(message)
        if recipe is None:
            return None
        found = await self._hold(recipe, source, held)
        if found is None:
            return None
        content_hash = await self._hash_here(recipe, found)
        if content_hash is None and await self._heal(recipe, found, source):
            content_hash = await self._hash_here(recipe, found)
        if content_hash is not None and content_hash != message.content_hash:
            log.warning("body %s counts as lost: its parts do not match its hash", message.content_hash.hex())
        if content_hash != message.content_hash:
            return None
        stored = StoredBody.of_recipe(message, found.values())
        await self.displace_lost(stored)
        return stored

    async def displace_lost(self, stored: StoredBody) -> None:
        """Replace a recorded body whose attachments are gone, since `write_body` would keep it. Raises MailError.

        `write_body` itself replaces bodies that are damaged in the database or superseded by one without attachments.
        """
        if not stored.holdings:
            return
        with suppress(DatabaseDamagedError):
            recorded = await self._store.read(partial(holdings_of, content_hash=stored.content_hash))
            if recorded and not await self._attachments.are_there(recorded):
                await self._store.write(lambda tx: replace_body(tx.connection, stored))

    async def let_go_removed(self, holdings: Iterable[Holding]) -> None:
        """Release the holdings of bodies that were removed, except those in flight, whose owners release them."""
        busy = self._attachments.store.in_flight()
        await self._attachments.let_go([holding for holding in holdings if holding.holder not in busy])

    async def _hold(self, recipe: Recipe, source: ChunkSource, held: list[Holding]) -> dict[bytes, Holding] | None:
        """Hold each attachment once; None: one is unavailable. Appends every holding to `held`, in either case."""
        found: dict[bytes, Holding] = {}
        for attached in recipe.distinct:
            holding = await self._attachments.obtain(attached, source)
            if holding is None:
                return None
            held.append(holding)
            if holding.hash != attached.hash:
                return None
            found[attached.hash] = holding
        return found

    async def _heal(self, recipe: Recipe, found: dict[bytes, Holding], source: ChunkSource) -> bool:
        for attached in recipe.distinct:
            holding = found[attached.hash]
            is_whole = await self._attachments.is_whole(attached, holding)
            if not is_whole and not await self._attachments.heal(attached, holding, source):
                return False
        return True

    async def _hash_here(self, recipe: Recipe, found: dict[bytes, Holding]) -> bytes | None:
        """Return the SHA-256 of the assembled body; None: an attachment that was here already is damaged."""
        hasher = hashlib.sha256()
        body = LargeBody(recipe, LocalChunks(self._attachments), found)
        try:
            async with aclosing(body.read(0, recipe.length)) as chunks:
                async for chunk in chunks:
                    hasher.update(chunk)
        except ContentUnavailableError:
            return None
        return hasher.digest()

    async def _prepared(self, body: bytes) -> StoredBody:
        if len(body) <= HASH_IN_THREAD_BYTES:
            return StoredBody.of(body)
        return await self._run_in_thread(partial(StoredBody.of, body))

    async def _from(self, link: PeerLink, attached: Attached, number: int) -> bytes | None:
        """Fetch a chunk from the peer that named the attachment, else from others. Raises UnavailableError."""
        later: UnavailableError | None = None
        try:
            chunk = await chunk_from(link, attached, number)
        except LinkDownError:
            chunk, later = None, UnavailableError(f"the link to {link.sid} broke while it carried a message's parts")
        except UnavailableError as error:
            chunk, later = None, error
        if chunk is None:
            chunk = await fetch_chunk(self._links(), attached, number)
        if chunk is None and later is not None:
            raise later
        return chunk

    async def _kept_here(self, keepers: Keepers, attached: Attached, number: int) -> bytes | None:
        """Read a chunk of an attachment that is kept under its S-name only (see `Holding.kept`)."""
        return await self._attachments.kept_chunk(await keepers(attached.hash), attached, number)

    async def _keepers(self, attachment_hash: bytes) -> list[Holding]:
        return await self._store.read(partial(keepers_of, attachment_hash=attachment_hash))
