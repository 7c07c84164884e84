"""The message bodies of this node, as everything outside this package uses them.

A small body lies in the database; the attachments of a large one lie in the attachment store (`store.bodies.recipe`).
Attachments are held before their body is written, since they must be on disk first. A holding that is not recorded in
the end, because the body was here already or the change was refused, is released on leaving the block that took it in;
a scrub finds holdings that a crash left.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial

import trio

from protocol.commands import Parts, Reply
from replicator.config import ContentConfig
from replicator.errors import ContentUnavailableError, DatabaseFailedError, DiskFullError, MailError, UnavailableError
from replicator.mail.mailstore import BodyReader, Outliner, ReceivedBody, SearchTextMaker
from replicator.replication import timing
from replicator.replication.bodies.attachments import NodeAttachments
from replicator.replication.bodies.from_peers import peer_fetch
from replicator.replication.bodies.from_peers.backfill import Backfill, WriteBody
from replicator.replication.bodies.from_peers.download import Downloader, Keepers
from replicator.replication.bodies.from_peers.peer_fetch import AnyFetch, Fetched, Links, fetch, fetch_chunk
from replicator.replication.bodies.from_peers.small_fetch import SmallFetch
from replicator.replication.bodies.upkeep.orphan_sweep import AttachmentTotals, OrphanSweep
from replicator.replication.bodies.upkeep.outlines import Outlines
from replicator.replication.bodies.upkeep.retention import Retention
from replicator.replication.bodies.upkeep.search_texts import SearchTexts
from replicator.replication.bodies.upkeep.spare_time import SpareTime
from replicator.replication.bodies.upload import Room, Sink
from replicator.replication.links.link import PeerLink
from replicator.runtime.environment import Environment
from replicator.runtime.metrics import AttachmentMetrics
from replicator.store.attachments.construction import Holding
from replicator.store.attachments.sweep import SweepSlice
from replicator.store.bodies.attachment_ranges import Attached
from replicator.store.bodies.body_reader import LargeBody, PlainBody, recipe_of
from replicator.store.bodies.body_rows import (
    StoredBody,
    holdings_of,
    keepers_of,
    read_body,
    read_small_bodies,
    replace_body,
)
from replicator.store.bodies.outline_rows import outlines
from replicator.store.db.queries import Connection
from replicator.store.db.transaction import Transaction
from replicator.store.store import Reader, Store

WANTED_MAX = 1000  # bodies read from other nodes that wait to be stored here; a scrub finds any more


class Bodies:
    """The message bodies of this node. Belongs to the event loop. `links` returns the links to the neighbours."""

    def __init__(
        self, store: Store, environment: Environment, content: ContentConfig, links: Links, metrics: AttachmentMetrics
    ) -> None:
        self._store = store
        self._run_in_thread = environment.run_in_thread
        self._inline_max_bytes = content.inline_max_bytes
        self._links = links
        self._attachments = NodeAttachments(store.attachments, environment, self._elsewhere, metrics)
        self._downloader = Downloader(store, self._attachments, environment.run_in_thread, links)
        self._room = Room(store.attachments)
        self._backfill = Backfill(store, self.fetch, SmallFetch(lambda: [*links()]).fetch)
        self._retention = Retention(
            store, content.keep_expunged_s, environment.clock_ms, let_go=self._downloader.let_go_removed
        )
        self._orphan_sweep = OrphanSweep(store)
        spare_time = SpareTime(store.tail)
        self._outlines = Outlines(store, environment.run_in_thread, self.open, spare_time)
        self.search_texts = SearchTexts(store, environment, self.open, spare_time)
        self._wanted_in, self._wanted_out = trio.open_memory_channel[bytes](WANTED_MAX)

    async def run(self) -> None:
        """Fetch and heal what is missing or damaged, and remove what is no longer needed, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._attachments.run)
            nursery.start_soon(self._downloader.run)
            nursery.start_soon(self._backfill.run)
            nursery.start_soon(self._retention.run)
            async for content_hash in self._wanted_out:
                with suppress(MailError):
                    await self.heal(content_hash)

    # ---- taking in

    @asynccontextmanager
    async def upload(self) -> AsyncIterator[Sink]:
        """See `MailStore.receive`."""
        sink = Sink(self._attachments.store, self._room, self._run_in_thread, self._inline_max_bytes)
        try:
            yield sink
        finally:
            await sink.close()
            await self._downloader.let_go(sink.holdings)

    @asynccontextmanager
    async def prepared(self, body: bytes | ReceivedBody) -> AsyncIterator[StoredBody]:
        """Prepare a body, given as octets or as a sink's result, for writing within the block. Raises MailError."""
        if isinstance(body, StoredBody):
            await self._downloader.displace_lost(body)
            yield body
            return
        assert isinstance(body, bytes), "what `upload` has given"
        if len(body) <= self._inline_max_bytes:
            yield StoredBody.of(body)
            return
        async with self.upload() as sink:
            await sink.write(body)
            stored = await sink.finish()
            await self._downloader.displace_lost(stored)
            yield stored

    # ---- from other nodes

    def obtain(
        self, messages: Iterable[bytes | Parts | None], link: PeerLink | None = None, keepers: Keepers | None = None
    ) -> AbstractAsyncContextManager[list[StoredBody]]:
        """See `Downloader.obtain`."""
        return self._downloader.obtain(messages, link, keepers)

    async def hold(self, message: Parts, link: PeerLink) -> list[Holding]:
        """See `Downloader.hold`."""
        return await self._downloader.hold(message, link)

    async def let_go(self, held: Sequence[Holding]) -> None:
        """See `Downloader.let_go`."""
        await self._downloader.let_go(held)

    def note_lost(self, lost: Iterable[Parts], sid: str) -> None:
        """See `Downloader.note_lost`."""
        self._downloader.note_lost(lost, sid)

    async def fetch(self, content_hash: bytes, write: WriteBody) -> bool:
        """Fetch a body from a neighbour and write it; return False if no neighbour has it. Raises MailError."""
        return await self._fetch(content_hash, write, timing.BODIES_FETCH_PATIENCE_S)

    async def heal(self, content_hash: bytes) -> bool:
        """Try `bring_back` once; return False also if the body is unavailable now. Raises MailError."""
        try:
            return await self.bring_back(content_hash)
        except UnavailableError:
            return False

    async def bring_back(self, content_hash: bytes) -> bool:
        """Replace a damaged or missing body with a neighbour's; return False if no neighbour has it.

        Raises MailError: UnavailableError if the body may be available later.
        """
        return await self._fetch(content_hash, _replace, timing.BODIES_PATIENCE_S)

    async def heal_attachment(self, attached: Attached, holding: Holding) -> bool:
        """Replace a damaged attachment with a neighbour's whole content; return True if that succeeded."""
        try:
            return await self._attachments.heal(attached, holding, self._elsewhere)
        except UnavailableError:
            return False

    async def take_over(self, messages: Iterable[bytes | Parts], keepers: Keepers | None = None) -> bool:
        """Store those of these bodies whose attachments can all be had, in place of missing ones.

        Returns True if there were any.
        """
        async with self.obtain(messages, keepers=keepers) as taken:
            for stored in taken:
                await self._store.write(partial(_replace, stored))
            return bool(taken)

    async def fetch_to_read(self, content_hash: bytes) -> BodyReader | None:
        """Fetch a body that is not here from a neighbour, and store it if possible. Raises MailError.

        The attachments of a large body arrive as they are read; the body is also queued to be fetched whole.
        """
        try:
            found = await fetch(self._links(), content_hash)
        except UnavailableError as error:
            raise ContentUnavailableError(str(error)) from error
        if found is None:
            return None
        if isinstance(found.message, bytes):
            with suppress(DiskFullError, DatabaseFailedError):  # the body can be read even if it cannot be stored
                stored = await self._run_in_thread(partial(StoredBody.of, found.message))
                await self._store.write(partial(_replace, stored))
            return PlainBody(found.message)
        with suppress(trio.WouldBlock):
            self._wanted_in.send_nowait(content_hash)
        recipe = recipe_of(found.message)
        return None if recipe is None else LargeBody(recipe, self._attachments, {})

    async def is_to_be_had(self, content_hash: bytes) -> bool:
        """Return True if a body is whole here, or available at a neighbour by its answers; changes nothing.

        Raises MailError: UnavailableError if that cannot be known now.
        """
        message, holdings = await self._kept(content_hash)
        if message is None:
            found = await self._found(content_hash, timing.BODIES_PATIENCE_S)
            message = found and found.message
        if not isinstance(message, Parts):
            return message is not None
        recipe = recipe_of(message)
        return recipe is not None and all(
            [await self._is_at_hand(attached, holdings.get(attached.hash)) for attached in recipe.distinct]
        )

    async def _is_at_hand(self, attached: Attached, holding: Holding | None) -> bool:
        return await self.is_whole(attached, holding) or await self._elsewhere(attached, 0) is not None

    async def _fetch(self, content_hash: bytes, write: WriteBody, patience_s: float) -> bool:
        found = await self._found(content_hash, patience_s)
        if found is None:
            return False
        async with self.obtain([found.message], found.link) as taken:
            for stored in taken:
                await self._store.write(partial(write, stored))
            return bool(taken)

    async def _found(self, content_hash: bytes, patience_s: float) -> Fetched | None:
        """Find a body at a neighbour; None: no neighbour has it. Raises UnavailableError if that is unknown in time."""
        with trio.move_on_after(patience_s):
            return await fetch(self._links(), content_hash)
        raise UnavailableError("no other node has sent the body of this message in time; try later")

    async def _elsewhere(self, attached: Attached, number: int) -> bytes | None:
        return await fetch_chunk(self._links(), attached, number)

    # ---- reading

    async def open(self, content_hash: bytes) -> BodyReader | None:
        """Open a body for reading; None: it is not here or its recipe is damaged. Reading heals damaged attachments."""
        message, found = await self._kept(content_hash)
        if message is None or isinstance(message, bytes):
            return None if message is None else PlainBody(message)
        recipe = recipe_of(message)
        if recipe is None or any(attached.hash not in found for attached in recipe.distinct):
            return None
        return LargeBody(recipe, self._attachments, found)

    async def open_small(self, hashes: Sequence[bytes], max_bytes: int) -> dict[bytes, BodyReader]:
        """Open bodies without attachments, together at most so many octets, by their hash: see `read_small_bodies`."""
        found = await self._store.read(partial(read_small_bodies, hashes=hashes, max_bytes=max_bytes))
        return {content_hash: PlainBody(body) for content_hash, body in found.items()}

    async def outlines(self, hashes: Sequence[bytes], version: int) -> dict[bytes, bytes]:
        """Return the outlines of this version that these bodies have, by the hash of the body."""
        return await self._store.read(partial(outlines, hashes=hashes, version=version))

    async def read(self, content_hash: bytes) -> bytes | Parts | None:
        """Return a body as peers get it; None: it is missing or damaged here. Its attachments are not checked."""
        return await self._store.read(partial(read_body, content_hash=content_hash))

    async def attachments_of(self, content_hash: bytes) -> list[tuple[Attached, Holding | None]] | None:
        """Return the attachments of a body with their holdings here; None: its recipe is damaged."""
        message, found = await self._kept(content_hash)
        if not isinstance(message, Parts):
            return []  # the body was removed meanwhile, or is small
        recipe = recipe_of(message)
        return None if recipe is None else [(attached, found.get(attached.hash)) for attached in recipe.distinct]

    async def _kept(self, content_hash: bytes) -> tuple[bytes | Parts | None, dict[bytes, Holding]]:
        message, holdings = await self._store.read(
            lambda reader: (read_body(reader, content_hash), holdings_of(reader, content_hash))
        )
        return message, {holding.hash: holding for holding in holdings}

    async def is_whole(self, attached: Attached, holding: Holding | None) -> bool:
        """Return True if every chunk of the attachment is here and matches its hash."""
        return holding is not None and await self._attachments.is_whole(attached, holding)

    async def answer(self, link: PeerLink, command: AnyFetch) -> Reply:
        """Answer a peer's FETCH from this node's bodies. Raises ProtocolError for an unknown mailbox number."""
        return await peer_fetch.answer_fetch(self._store, link, command, self._chunk_for_peer)

    async def _chunk_for_peer(self, attachment_hash: bytes, start: int) -> bytes | None:
        """Return a chunk of an attachment; None: it is not here.

        An attachment under its H-name is found before any body records it: the message may be on its way to its master.
        """
        chunk = await self._attachments.read(attachment_hash, start)
        keepers: list[Holding] = []
        if chunk is None:
            keepers = await self._store.read(partial(keepers_of, attachment_hash=attachment_hash))
        for holding in keepers:
            chunk = chunk if chunk is not None else await self._attachments.read(holding, start)
        return chunk

    # ---- upkeep

    @property
    def attachments_to_heal(self) -> int:
        """Number of attachments known to be damaged that wait to be healed or are being healed."""
        return self._attachments.to_heal

    @property
    def attachments_held(self) -> AttachmentTotals | None:
        """The attachments of this node's bodies, as the last complete sweep counted them; None: no sweep yet."""
        return self._orphan_sweep.held

    async def outline(self, outliner: Outliner) -> None:
        """See `Outlines.run`."""
        await self._outlines.run(outliner)

    def outdated_outlines(self, connection: Connection) -> int:
        """See `Outlines.outdated`."""
        return self._outlines.outdated(connection)

    async def keep_search_texts(self, maker: SearchTextMaker | None) -> None:
        """See `SearchTexts.run`."""
        await self.search_texts.run(maker)

    async def sweep(self) -> None:
        """See `OrphanSweep.run`."""
        await self._orphan_sweep.run()

    def swept(self, reader: Reader) -> AsyncGenerator[SweepSlice, None]:
        """See `OrphanSweep.swept`."""
        return self._orphan_sweep.swept(reader)


def _replace(stored: StoredBody, tx: Transaction) -> None:
    replace_body(tx.connection, stored)
