"""Message texts at this node: taken in from clients and peers, kept, opened to be read, and healed.

What is small lies in the database; of what is large the parts lie in the attachment store (`replicator.store.recipe`).
Parts are held before a text is written, since the disk must have them first. What is not recorded in the end, because
the text was there already or the change was refused, is let go on leaving the block that took it in; what a crash
leaves is found by a scrub.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import TypeAlias

import trio

from protocol.codec import ProtocolError
from protocol.commands import Parts
from replicator.environment import Environment
from replicator.errors import ContentUnavailableError, DiskFullError, MailError
from replicator.mailstore import ReceivedText, Text
from replicator.replication.content import chunk_from, fetch, fetch_chunk
from replicator.replication.intake import Received, Sink
from replicator.replication.link import PeerLink
from replicator.replication.parted import PartedText, PlainText
from replicator.replication.parts import PartStore, Source
from replicator.store.attached import Attached
from replicator.store.attachments.construction import Holding
from replicator.store.content import (
    MAX_TEXT_BYTES,
    StoredText,
    holdings_of,
    keepers_of,
    read_text,
    replace_text,
    unrecorded,
)
from replicator.store.damage import DatabaseDamagedError
from replicator.store.recipe import Recipe
from replicator.store.store import Store
from replicator.store.transaction import Transaction

HASH_IN_THREAD_BYTES = 1 << 18  # larger texts are hashed and compressed in a thread

WriteText: TypeAlias = Callable[[Transaction, StoredText], None]

Links = Callable[[], Iterable[PeerLink]]


class Texts:
    """Belongs to the event loop. `links` are those to the neighbours."""

    def __init__(self, store: Store, environment: Environment, inline_max_bytes: int, links: Links) -> None:
        self._store = store
        self._run_in_thread = environment.run_in_thread
        self._inline_max_bytes = inline_max_bytes
        self._links = links
        self.parts = PartStore(store.attachments, environment.run_in_thread, self._elsewhere)

    # ---- taking in

    @asynccontextmanager
    async def receive(self) -> AsyncIterator[Sink]:
        """See `MailStore.receive`."""
        sink = Sink(self.parts.attachments, self._run_in_thread, self._inline_max_bytes)
        try:
            yield sink
        finally:
            await sink.close()
            await self._let_go(sink.holdings)

    @asynccontextmanager
    async def prepared(self, text: bytes | ReceivedText) -> AsyncIterator[StoredText]:
        """A text, or what a sink has given, ready to be written within the block. Raises MailError."""
        if isinstance(text, Received):
            yield text.stored
            return
        assert isinstance(text, bytes), "what `receive` has given"
        if len(text) <= self._inline_max_bytes:
            yield StoredText.of(text)
            return
        async with self.receive() as sink:
            await sink.write(text)
            yield (await sink.finish()).stored

    @asynccontextmanager
    async def taking(
        self, messages: Iterable[bytes | Parts], link: PeerLink | None = None
    ) -> AsyncIterator[list[StoredText]]:
        """Those of the messages that can be had with all their parts, ready to be written within the block.

        Parts that are not here come from the link's peer, or from others; without a link they do not. Raises
        ProtocolError for parts that do not give the message, MailError where the disk does not take them.
        """
        held: list[Holding] = []
        taken: list[StoredText] = []
        try:
            for message in messages:
                stored = await self._take(message, link, held)
                if stored is not None:
                    taken.append(stored)
            yield taken
        finally:
            await self._let_go(held)

    async def _take(self, message: bytes | Parts, link: PeerLink | None, held: list[Holding]) -> StoredText | None:
        if isinstance(message, bytes):
            return await self._prepared(message)
        try:
            recipe = Recipe.unpack(message.recipe)
        except ValueError as error:
            raise ProtocolError(f"the recipe of {message.content_hash.hex()}: {error}") from None
        if recipe.length != message.size or message.size > MAX_TEXT_BYTES:
            raise ProtocolError(f"the recipe of {message.content_hash.hex()} is of {recipe.length} octets")
        found = await self._hold(recipe, partial(self._from, link) if link else None, held)
        if found is None:
            return None
        text = PartedText(recipe, self.parts, {holding.hash: holding for holding in found})
        try:
            content_hash = await self._hash_of(text, recipe.length)
        except ContentUnavailableError:  # a part that is here is damaged, and nobody has it whole
            return None
        if content_hash != message.content_hash:
            raise ProtocolError(f"the parts of {message.content_hash.hex()} give another message")
        return StoredText.of_parts(message, found)

    async def _hold(self, recipe: Recipe, source: Source | None, held: list[Holding]) -> list[Holding] | None:
        """Hold each part once; None: one of them is not to be had. `held` gets what is held in any case."""
        found: list[Holding] = []
        for attached in distinct(recipe):
            holding = await self.parts.obtain(attached, source)
            if holding is None:
                return None
            held.append(holding)
            if holding.hash != attached.hash:
                return None
            found.append(holding)
        return found

    async def _hash_of(self, text: PartedText, length: int) -> bytes:
        hasher = hashlib.sha256()
        async with aclosing(text.read(0, length)) as chunks:
            async for chunk in chunks:
                hasher.update(chunk)
        return hasher.digest()

    async def _prepared(self, text: bytes) -> StoredText:
        if len(text) <= HASH_IN_THREAD_BYTES:
            return StoredText.of(text)
        return await self._run_in_thread(partial(StoredText.of, text))

    async def _let_go(self, held: Sequence[Holding]) -> None:
        """Those that no text has by now; the others belong to theirs."""
        if not held:
            return
        with trio.CancelScope(shield=True), suppress(MailError):  # else they stay in flight, and a scrub leaves them
            surplus = await self._store.read(partial(unrecorded, holdings=held))
            for holding in held:
                if holding not in surplus:
                    self.parts.attachments.settle(holding.holder)
            await self.parts.let_go(surplus)

    # ---- from other nodes

    async def fetch(self, content_hash: bytes, write: WriteText) -> bool:
        """Get a text from a neighbour and write it. Whether it could be had. Raises MailError."""
        return await self._fetch(content_hash, write) is not None

    async def heal(self, content_hash: bytes) -> bool:
        """Put a text that a neighbour has in the place of a damaged or missing one. Raises MailError."""
        return await self.fetch(content_hash, _replace)

    async def take_over(self, messages: Iterable[bytes | Parts]) -> bool:
        """Put these texts, as far as their parts are here, in the place of missing ones; whether there were any."""
        async with self.taking(messages) as taken:
            for stored in taken:
                await self._store.write(partial(_replace, stored=stored))
            return bool(taken)

    async def fetch_to_read(self, content_hash: bytes) -> Text | None:
        """As `heal`; what can be read although the disk does not take it is read all the same. Raises MailError."""
        message: bytes | Parts | None = None
        with suppress(DiskFullError, DatabaseDamagedError):
            message = await self._fetch(content_hash, _replace)
        if message is None:
            found = await fetch(self._links(), content_hash)
            message = found.message if found else None
        return PlainText(message) if isinstance(message, bytes) else await self.open(content_hash)

    async def _fetch(self, content_hash: bytes, write: WriteText) -> bytes | Parts | None:
        found = await fetch(self._links(), content_hash)
        if found is None:
            return None
        with suppress(ProtocolError):
            async with self.taking([found.message], found.link) as taken:
                for stored in taken:
                    await self._store.write(partial(_write, write, stored))
                    return found.message
        return None

    async def _from(self, link: PeerLink, attached: Attached, number: int) -> bytes | None:
        """A chunk from the peer that has named the part, else from others. Raises LinkDownError."""
        chunk = await chunk_from(link, attached, number)
        return chunk if chunk is not None else await self._elsewhere(attached, number)

    async def _elsewhere(self, attached: Attached, number: int) -> bytes | None:
        return await fetch_chunk(self._links(), attached, number)

    # ---- reading

    async def open(self, content_hash: bytes) -> Text | None:
        """A text that is here; None: it is not, or its recipe is damaged. Damaged parts are healed as they are read."""
        message, found = await self._kept(content_hash)
        if message is None or isinstance(message, bytes):
            return None if message is None else PlainText(message)
        recipe = _recipe_of(message)
        if recipe is None or any(attached.hash not in found for attached in distinct(recipe)):
            return None
        text = PartedText(recipe, self.parts, found)
        if recipe.skeleton() is None:  # its header goes on for so long
            async with aclosing(text.read(0, recipe.length)) as chunks:
                return PlainText(b"".join([chunk async for chunk in chunks]))
        return text

    async def parts_of(self, content_hash: bytes) -> list[tuple[Attached, Holding | None]] | None:
        """The parts of a text, and what holds each here; None if its recipe is damaged."""
        message, found = await self._kept(content_hash)
        if not isinstance(message, Parts):
            return []  # it is gone by now
        recipe = _recipe_of(message)
        return None if recipe is None else [(attached, found.get(attached.hash)) for attached in distinct(recipe)]

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


def _recipe_of(parts: Parts) -> Recipe | None:
    try:
        recipe = Recipe.unpack(parts.recipe)
    except ValueError:
        return None
    return recipe if recipe.length == parts.size else None


def distinct(recipe: Recipe) -> list[Attached]:
    """The attachments of a text, each once, however often it is in it."""
    return list({attached.hash: attached for attached in recipe.attached}.values())


def _write(write: WriteText, stored: StoredText, tx: Transaction) -> None:
    write(tx, stored)


def _replace(tx: Transaction, stored: StoredText) -> None:
    replace_text(tx.connection, stored)
