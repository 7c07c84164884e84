"""A checkpoint round: a checkpoint of every chain whose head has none, then the manifest of all (design section 6).

Each object is read whole and then uploaded, so that no read transaction lasts as long as an upload: while one is open,
SQLite cannot truncate the write-ahead log. Small ones are read into memory, many at once, a large one to this node's
disk.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, Protocol

import trio

from protocol.units import KIB, MIB
from replicator.replication import timing
from replicator.replication.parallel import in_turns
from replicator.runtime.environment import Environment
from replicator.runtime.objects import deadline
from replicator.store.checkpoints import catalog
from replicator.store.checkpoints.archive import Archive
from replicator.store.checkpoints.catalog import Round
from replicator.store.checkpoints.manifest import Manifest, write_manifest
from replicator.store.db import queries
from replicator.store.db.damage import DatabaseDamagedError
from replicator.store.db.entry_validation import NamedHead
from replicator.store.db.queries import Connection
from replicator.store.db.transaction import Transaction
from replicator.store.store import Reader, Store

log = logging.getLogger(__name__)

SCRATCH_STEP_BYTES = MIB  # per turn of the reader's thread, when writing the scratch file, and per read of it
SMALL_BYTES = 64 * KIB  # of an object that is held in memory: a mailbox of some 500 messages
READ_AT_ONCE = 32  # chains, in one turn of the reader's thread
UPLOADS_AT_ONCE = 8


class Which(Protocol):
    """A query for a slice of chains by id: `catalog.unsaved` or `catalog.unlisted`."""

    def __call__(self, connection: Connection, after: bytes) -> list[bytes]:
        """Return the ids of the next chains after this id; empty: there are no more."""
        ...


class CheckpointWriter:
    """A writer of checkpoint rounds, one at a time.

    `saved` and `saved_bytes` count the checkpoints of the last round.
    """

    def __init__(self, store: Store, archive: Archive, environment: Environment) -> None:
        self.saved = self.saved_bytes = 0
        self._store = store
        self._archive = archive
        self._clock_ms = environment.clock_ms

    async def publish(self, number: int) -> None:
        """Run the round of this number, and publish its manifest as pending.

        Raises ObjectStoreError or MailError; checkpoints saved by then stay saved.
        """
        settled, position = self._store.settled(), self._store.tail.end
        begun = Round(number, None, in_force=False, context=settled, covered={}, position=position, heads=0)
        self.saved = self.saved_bytes = 0
        async with self._store.reader() as reader:
            await self._save_each(reader, number, catalog.unsaved)
            while (made := await self._publish(reader, begun)) is None:
                await self._save_each(reader, number, catalog.unlisted)
        log.info("wrote %d checkpoints, %d bytes; the manifest is %s", self.saved, self.saved_bytes, made.name)

    # ---- checkpoints

    async def _save_each(self, reader: Reader, number: int, which: Which) -> None:
        """Save all chains, resting after each few for as long as they took.

        Raises DatabaseDamagedError after saving all others: without the damaged chain, no manifest is published.
        """
        after, damage = b"", None
        while some := await reader.read(partial(which, after=after)):
            after, waiting = some[-1], deque(some)
            while waiting:
                began = trio.current_time()
                damage = await self._save_first(reader, waiting, number) or damage
                await trio.sleep(trio.current_time() - began)
        if damage is not None:
            raise damage

    async def _save_first(self, reader: Reader, waiting: deque[bytes], number: int) -> DatabaseDamagedError | None:
        """Save the first of the chains, and take them out; return what is wrong with a damaged one among them."""
        some = await reader.read(partial(_read_first, waiting=waiting, now_ms=self._clock_ms()))
        await self._save_small(some.small, number)
        damages = some.damages
        if some.large is not None:
            try:
                await self._save_large(reader, some.large, number)
            except DatabaseDamagedError as error:
                damages.append(error)
        for damage in damages:
            log.warning("skipped the checkpoint of a damaged mailbox or folder tree: %s", damage)
        return damages[-1] if damages else None

    async def _save_small(self, objects: Iterable[_Small], number: int) -> None:
        """Upload the objects, and note those that have been. Raises the first error of the object store."""
        done: list[_Small] = []

        async def save(one: _Small) -> None:
            with deadline(timing.CHECKPOINT_WRITER_SAVE_TIMEOUT_S):
                await self._archive.save(one.head, [one.data])
            done.append(one)

        try:
            await in_turns(save, objects, UPLOADS_AT_ONCE)
        finally:
            if done:
                await self._note([one.head for one in done], sum(len(one.data) for one in done), number)

    async def _save_large(self, reader: Reader, chain_id: bytes, number: int) -> None:
        async with self._store.scratch() as file:
            async with _transaction(reader):
                begin = partial(catalog.checkpoint_of, chain_id=chain_id, now_ms=self._clock_ms())
                made = await reader.read(begin)
                if made is None:
                    return
                size_bytes = await _set_down(reader, made.data, file)
            with deadline(timing.CHECKPOINT_WRITER_SAVE_TIMEOUT_S):
                await self._archive.save(made.head, _taken_up(file))
        await self._note([made.head], size_bytes, number)

    async def _note(self, heads: list[NamedHead], size_bytes: int, number: int) -> None:
        def note(tx: Transaction) -> None:
            for head in heads:
                catalog.note_saved(tx, head, number)

        await self._store.write(note)
        self.saved += len(heads)
        self.saved_bytes += size_bytes

    # ---- the manifest

    async def _publish(self, reader: Reader, begun: Round) -> Manifest | None:
        """Publish the manifest of the round; None: some chain must be saved first.

        Such a chain lost its checkpoint since it was saved, or was installed since.
        """
        covered = await self._covered(reader)
        with deadline(timing.CHECKPOINT_WRITER_SAVE_TIMEOUT_S):
            made = await self._archive.next_manifest(begun.context, self._clock_ms())
        async with self._store.scratch() as file:
            async with _transaction(reader):
                if await reader.read(partial(catalog.unlisted, after=b"")):
                    return None
                heads = await reader.read(partial(catalog.count_heads, number=begun.number))
                listed = await reader.read(partial(catalog.heads_in, number=begun.number))
                await _set_down(reader, write_manifest(made, listed), file)
            begun = begun._replace(covered=covered, heads=heads)
            await self._store.write(partial(catalog.begin_manifest, begun=begun))
            with deadline(timing.CHECKPOINT_WRITER_SAVE_TIMEOUT_S):
                await self._archive.publish(made, _taken_up(file))
        await self._store.write(partial(catalog.note_manifest, number=begun.number, made_ms=made.made_ms))
        return made

    async def _covered(self, reader: Reader) -> dict[str, int]:
        """Return the context of the log and all chains.

        A node that has settled it stands at or after every checkpoint.
        """
        covered = await reader.read(queries.log_context)
        after: bytes | None = b""
        while after is not None:
            seen, after = await reader.read(partial(catalog.contexts, after=after))
            for origin, seq in seen.items():
                covered[origin] = max(seq, covered.get(origin, 0))
        return covered


@dataclass(frozen=True, slots=True)
class _Small:
    """A chain's head, and the object that holds its state."""

    head: NamedHead
    data: bytes


@dataclass(slots=True)
class _Some:
    """The result of one turn of the reader's thread: small objects, and the id of a chain whose object is large."""

    small: list[_Small] = field(default_factory=list)
    large: bytes | None = None
    damages: list[DatabaseDamagedError] = field(default_factory=list)


def _read_first(connection: Connection, waiting: deque[bytes], now_ms: int) -> _Some:
    """Read the first `READ_AT_ONCE` chains, up to one whose object is large, and take them out of `waiting`."""
    some = _Some()
    with queries.at_one_moment(connection):
        for _ in range(min(READ_AT_ONCE, len(waiting))):
            chain_id = waiting.popleft()
            try:
                made = catalog.checkpoint_of(connection, chain_id, now_ms)
                data = None if made is None else made.joined(SMALL_BYTES)
            except DatabaseDamagedError as error:
                some.damages.append(error)
                continue
            if made is not None and data is None:
                some.large = chain_id
                break
            if made is not None and data is not None:
                some.small.append(_Small(made.head, data))
    return some


@asynccontextmanager
async def _transaction(reader: Reader) -> AsyncIterator[None]:
    """Open a read transaction, so that all reads within the block see one moment."""
    await reader.read(lambda connection: connection.execute("BEGIN"))
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await reader.read(lambda connection: connection.execute("COMMIT"))


async def _set_down(reader: Reader, data: Iterator[bytes], file: BinaryIO) -> int:
    """Write the data to the file in the reader's thread; return its size in bytes."""
    while await reader.read(lambda _: _write_step(data, file)):
        pass
    return file.tell()


def _write_step(data: Iterator[bytes], file: BinaryIO) -> bool:
    """Write the next step of the data; return False after the last one, with the file flushed."""
    written = 0
    while written < SCRATCH_STEP_BYTES:
        piece = next(data, None)
        if piece is None:
            file.flush()
            return False
        written += file.write(piece)
    return True


def _taken_up(file: BinaryIO) -> Iterator[bytes]:
    """Yield the file's content from its beginning."""
    file.seek(0)
    yield from iter(partial(file.read, SCRATCH_STEP_BYTES), b"")
