"""Message texts at this node: taken in from clients, kept, opened to be read, and healed; from peers: see `download`.

What is small lies in the database; of what is large the parts lie in the attachment store (`store.bodies.recipe`).
Parts are held before a text is written, since the disk must have them first. What is not recorded in the end, because
the text was there already or the change was refused, is let go on leaving the block that took it in; what a crash
leaves is found by a scrub.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeAlias

import trio

from protocol.commands import Parts
from replicator.environment import Environment
from replicator.errors import ContentUnavailableError, DiskFullError, MailError, UnavailableError
from replicator.mailstore import ReceivedText, Text
from replicator.metrics import AttachmentMetrics
from replicator.replication.bodies.attachments import PartStore, Source
from replicator.replication.bodies.download import Downloader
from replicator.replication.bodies.peer_fetch import Fetched, Links, fetch, fetch_chunk
from replicator.replication.bodies.reader import PartedText, PlainText, recipe_of
from replicator.replication.bodies.upload import Received, Room, Sink
from replicator.store.attachments.construction import Holding
from replicator.store.bodies.attachment_ranges import Attached
from replicator.store.bodies.body_rows import (
    StoredText,
    holdings_of,
    keepers_of,
    read_text,
    replace_text,
)
from replicator.store.db.damage import DatabaseDamagedError
from replicator.store.db.transaction import Transaction
from replicator.store.store import Store

FETCH_PATIENCE_S = 300.0  # for a text or its recipe: of several neighbours the first may take long to refuse
PATIENCE_S = 25.0  # the same, where somebody waits for it
WANTED_MAX = 1000  # texts that were read from other nodes and are to be kept here; of more a scrub is to be told

WriteText: TypeAlias = Callable[[StoredText, Transaction], None]


class BodyStore:
    """Belongs to the event loop. `links` are those to the neighbours."""

    def __init__(
        self, store: Store, environment: Environment, inline_max_bytes: int, links: Links, metrics: AttachmentMetrics
    ) -> None:
        self._store = store
        self._run_in_thread = environment.run_in_thread
        self._inline_max_bytes = inline_max_bytes
        self._links = links
        self.parts = PartStore(store.attachments, environment, self._elsewhere, metrics)
        self.downloader = Downloader(store, self.parts, environment.run_in_thread, links)
        self._room = Room(store.attachments)
        self._wanted_in, self._wanted_out = trio.open_memory_channel[bytes](WANTED_MAX)

    async def run(self) -> None:
        """Heal what was found to be damaged or missing, and let go of what is left, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.parts.run)
            nursery.start_soon(self.downloader.run)
            async for content_hash in self._wanted_out:
                with suppress(MailError, sqlite3.Error):
                    await self.heal(content_hash)

    # ---- taking in

    @asynccontextmanager
    async def receive(self) -> AsyncIterator[Sink]:
        """See `MailStore.receive`."""
        sink = Sink(self.parts.attachments, self._room, self._run_in_thread, self._inline_max_bytes)
        try:
            yield sink
        finally:
            await sink.close()
            await self.downloader.let_go(sink.holdings)

    @asynccontextmanager
    async def prepared(self, text: bytes | ReceivedText) -> AsyncIterator[StoredText]:
        """A text, or what a sink has given, ready to be written within the block. Raises MailError."""
        if isinstance(text, Received):
            await self.downloader.displace_lost(text.stored)
            yield text.stored
            return
        assert isinstance(text, bytes), "what `receive` has given"
        if len(text) <= self._inline_max_bytes:
            yield StoredText.of(text)
            return
        async with self.receive() as sink:
            await sink.write(text)
            stored = (await sink.finish()).stored
            await self.downloader.displace_lost(stored)
            yield stored

    # ---- from other nodes

    async def fetch(self, content_hash: bytes, write: WriteText) -> bool:
        """Get a text from a neighbour and write it. Whether it could be had. Raises MailError."""
        return await self._fetch(content_hash, write, FETCH_PATIENCE_S)

    async def heal(self, content_hash: bytes) -> bool:
        """As `bring_back`, once. What does not come now counts as what nobody has. Raises MailError."""
        try:
            return await self.bring_back(content_hash)
        except UnavailableError:
            return False

    async def bring_back(self, content_hash: bytes) -> bool:
        """Put a text that a neighbour has in the place of a damaged or missing one; False: nobody has it.

        Raises MailError: UnavailableError where it may be had later.
        """
        return await self._fetch(content_hash, _replace, PATIENCE_S)

    async def heal_part(self, attached: Attached, holding: Holding) -> bool:
        """Put whole content from a neighbour in the place of a damaged part. Whether that could be done."""
        try:
            return await self.parts.heal(attached, holding, self._elsewhere)
        except UnavailableError:
            return False

    async def take_over(self, messages: Iterable[bytes | Parts], source: Source | None = None) -> bool:
        """Put these texts, as far as their parts can be had, in the place of missing ones; whether there were any."""
        async with self.downloader.taking(messages, source=source) as taken:
            for stored in taken:
                await self._store.write(partial(_replace, stored))
            return bool(taken)

    async def fetch_to_read(self, content_hash: bytes) -> Text | None:
        """A text that is not here, from a neighbour; it is kept if that works. Raises MailError.

        Of one in parts these come as they are read; that they are lacking here is noted, so that all of it comes.
        """
        try:
            found = await fetch(self._links(), content_hash)
        except UnavailableError as error:
            raise ContentUnavailableError(str(error)) from error
        if found is None:
            return None
        if isinstance(found.message, bytes):
            with suppress(DiskFullError, DatabaseDamagedError):  # it can be read all the same
                stored = await self._run_in_thread(partial(StoredText.of, found.message))
                await self._store.write(partial(_replace, stored))
            return PlainText(found.message)
        with suppress(trio.WouldBlock):
            self._wanted_in.send_nowait(content_hash)
        recipe = recipe_of(found.message)
        return None if recipe is None else PartedText(recipe, self.parts, {})

    async def is_to_be_had(self, content_hash: bytes) -> bool:
        """Whether a text is whole here, or a neighbour has it, as far as its answers tell; nothing is changed.

        Raises MailError: UnavailableError where that cannot be known now.
        """
        message, holdings = await self._kept(content_hash)
        if message is None:
            found = await self._found(content_hash, PATIENCE_S)
            message = found and found.message
        if not isinstance(message, Parts):
            return message is not None
        recipe = recipe_of(message)
        return recipe is not None and all(
            [await self._is_at_hand(attached, holdings.get(attached.hash)) for attached in recipe.distinct]
        )

    async def _is_at_hand(self, attached: Attached, holding: Holding | None) -> bool:
        is_whole = holding is not None and await self.parts.is_whole(attached, holding)
        return is_whole or await self._elsewhere(attached, 0) is not None

    async def _fetch(self, content_hash: bytes, write: WriteText, patience_s: float) -> bool:
        found = await self._found(content_hash, patience_s)
        if found is None:
            return False
        async with self.downloader.taking([found.message], found.link) as taken:
            for stored in taken:
                await self._store.write(partial(write, stored))
            return bool(taken)

    async def _found(self, content_hash: bytes, patience_s: float) -> Fetched | None:
        """A text at a neighbour. None: nobody has it. Raises UnavailableError where that cannot be known in time."""
        with trio.move_on_after(patience_s):
            return await fetch(self._links(), content_hash)
        raise UnavailableError("a message text does not come from other nodes in time; try later")

    async def _elsewhere(self, attached: Attached, number: int) -> bytes | None:
        return await fetch_chunk(self._links(), attached, number)

    # ---- reading

    async def open(self, content_hash: bytes) -> Text | None:
        """A text that is here; None: it is not, or its recipe is damaged. Damaged parts are healed as they are read."""
        message, found = await self._kept(content_hash)
        if message is None or isinstance(message, bytes):
            return None if message is None else PlainText(message)
        recipe = recipe_of(message)
        if recipe is None or any(attached.hash not in found for attached in recipe.distinct):
            return None
        return PartedText(recipe, self.parts, found)

    async def parts_of(self, content_hash: bytes) -> list[tuple[Attached, Holding | None]] | None:
        """The parts of a text, and what holds each here; None if its recipe is damaged."""
        message, found = await self._kept(content_hash)
        if not isinstance(message, Parts):
            return []  # it is gone by now
        recipe = recipe_of(message)
        return None if recipe is None else [(attached, found.get(attached.hash)) for attached in recipe.distinct]

    async def _kept(self, content_hash: bytes) -> tuple[bytes | Parts | None, dict[bytes, Holding]]:
        message, holdings = await self._store.read(
            lambda reader: (read_text(reader, content_hash), holdings_of(reader, content_hash))
        )
        return message, {holding.hash: holding for holding in holdings}

    async def read_part(self, part: bytes, start: int) -> bytes | None:
        """A chunk of a part for another node; None: it is not here.

        Where the hash leads it is found before any text has it: the message may be on its way to the mailbox's master.
        """
        chunk = await self.parts.read(part, start)
        keepers = [] if chunk is not None else await self._store.read(partial(keepers_of, part_hash=part))
        for holding in keepers:
            chunk = chunk if chunk is not None else await self.parts.read(holding, start)
        return chunk


def _replace(stored: StoredText, tx: Transaction) -> None:
    replace_text(tx.connection, stored)
