"""Attachments of this node's large messages, read chunk by chunk; each chunk is checked against its hash before use.

A damaged or missing chunk is read from a neighbour at once; the whole attachment is then fetched and replaced here.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeAlias

import trio

from replicator.errors import ContentUnavailableError, DiskFullError, MailError, UnavailableError
from replicator.replication import timing
from replicator.replication.bodies.from_peers.partial_downloads import PartialDownloads
from replicator.replication.parallel import in_turns
from replicator.runtime.environment import Environment
from replicator.runtime.metrics import AttachmentMetrics
from replicator.store.attachments.construction import Construction, Holding, Replacement
from replicator.store.attachments.files import MissingError
from replicator.store.attachments.store import Attachments
from replicator.store.bodies.attachment_ranges import CHUNK_BYTES, Attached

log = logging.getLogger(__name__)

READ_AHEAD = 8  # chunks requested in parallel: 1 MiB in memory, one round trip for each
HEALING_MAX = 1000  # damaged attachments in the queue; a scrub finds any more

ChunkSource: TypeAlias = Callable[[Attached, int], Awaitable[bytes | None]]
"""A function that fetches and verifies a chunk, given an attachment and a chunk number. None: no asked node has it."""


class DiskHangsError(ContentUnavailableError):
    """An attachment directory that does not respond, so that its content is unknown."""


class NodeAttachments:
    """This node's attachments: reading, fetching and healing. Belongs to the event loop.

    `elsewhere` asks the neighbours.
    """

    def __init__(
        self, store: Attachments, environment: Environment, elsewhere: ChunkSource, metrics: AttachmentMetrics
    ) -> None:
        self.store = store
        self.metrics = metrics
        self._run_in_thread = environment.run_in_thread
        self._run_until_cancelled = environment.run_until_cancelled
        self._elsewhere = elsewhere
        self._damaged_in, self._damaged_out = trio.open_memory_channel[tuple[Attached, Holding]](HEALING_MAX)
        self._damaged: set[bytes] = set()  # hashes of attachments that wait to be healed
        self._interrupted = PartialDownloads(environment.run_in_thread)
        self._obtaining: dict[bytes, trio.Lock] = {}  # by hash: of two callers, the second finds the attachment here

    async def run(self) -> None:
        """Replace damaged attachments with whole content, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._interrupted.run)
            async for attached, holding in self._damaged_out:
                with suppress(MailError):
                    await self.heal(attached, holding, self._elsewhere)
                self._damaged.discard(attached.hash)

    @property
    def to_heal(self) -> int:
        """Number of attachments known to be damaged that wait to be healed or are being healed."""
        return len(self._damaged)

    # ---- reading

    async def chunk(self, attached: Attached, holding: Holding | None, number: int) -> bytes:
        """Return one verified chunk; without a holding, from another node. Raises ContentUnavailableError."""
        if holding is not None:
            try:
                return await self.own_chunk(attached, holding, number)
            except DiskHangsError as error:  # no repair is queued: writing would hang, too
                log.warning("reading attachment %s from other nodes: %s", attached.hash.hex(), error)
            except ContentUnavailableError:
                self._note_damage(attached, holding)
        try:
            data = await self._there(attached, number, self._elsewhere)
        except UnavailableError as error:
            raise ContentUnavailableError(str(error)) from error
        if data is None:
            raise ContentUnavailableError("a part of this message is damaged at every reachable node")
        return data

    async def own_chunk(self, attached: Attached, holding: Holding | None, number: int) -> bytes:
        """Return one verified chunk from this node's disk. Raises ContentUnavailableError."""
        data = None if holding is None else await self._here(holding, number)
        if data is None or not attached.verify(number, data):
            raise ContentUnavailableError("a part of this message is damaged at this node")
        return data

    async def kept_chunk(self, keepers: Iterable[Holding], attached: Attached, number: int) -> bytes | None:
        """Return one verified chunk from the first of these places on this disk that has it whole; None: none has."""
        for holding in keepers:
            with suppress(ContentUnavailableError):
                return await self.own_chunk(attached, holding, number)
        return None

    def _note_damage(self, attached: Attached, holding: Holding) -> None:
        if attached.hash in self._damaged:
            return
        log.warning("attachment %s is damaged or missing", attached.hash.hex())
        self.metrics.damaged.inc()
        with suppress(trio.WouldBlock):
            self._damaged_in.send_nowait((attached, holding))
            self._damaged.add(attached.hash)

    async def read(self, what: Holding | bytes, start: int) -> bytes | None:
        """Return a chunk of a held attachment, or of the one with this hash, for another node. None: it is not here.

        The chunk is unverified; the other node checks it.
        """
        return None if start % CHUNK_BYTES else await self._here(what, start // CHUNK_BYTES)

    async def is_whole(self, attached: Attached, holding: Holding) -> bool:
        """Return True if every chunk of the attachment is here and matches its hash."""
        try:
            for number in range(attached.chunk_count):
                await self.own_chunk(attached, holding, number)
        except ContentUnavailableError:
            return False
        return True

    async def are_there(self, holdings: Iterable[Holding]) -> bool:
        """Return True if `Attachments.is_held` holds for all of these."""
        try:
            for holding in holdings:
                if not await self._run_in_thread(partial(self.store.is_held, holding)):
                    return False
        except (OSError, ValueError):
            return False
        return True

    async def _here(self, what: Holding | bytes, number: int) -> bytes | None:
        """Read a chunk from disk, unverified; None: it is not here or cannot be read. Raises DiskHangsError.

        A read that hangs is abandoned; the node's shutdown does not wait for it either.
        """
        read = partial(self.store.read, what, number * CHUNK_BYTES, CHUNK_BYTES)
        with trio.move_on_after(timing.ATTACHMENTS_READ_TIMEOUT_S):
            try:
                return await self._run_until_cancelled(read)
            except (MissingError, OSError, ValueError):
                return None
        raise DiskHangsError(
            "attachments cannot be read at this node: the disk has not answered for"
            f" {timing.ATTACHMENTS_READ_TIMEOUT_S:.0f} s"
        )

    async def _there(self, attached: Attached, number: int, source: ChunkSource) -> bytes | None:
        """Fetch a chunk; None: no node has it. Raises UnavailableError if that cannot be known now."""
        with trio.move_on_after(timing.ATTACHMENTS_CHUNK_TIMEOUT_S):
            return await source(attached, number)
        raise UnavailableError("no node has sent a part of this message in time; try later")

    # ---- holding

    async def obtain(self, attached: Attached, source: ChunkSource) -> Holding | None:
        """Hold an attachment, fetched if it is not here. None: no node has it. Raises DiskFullError, UnavailableError.

        The holding is in flight until it is released or settled. Content that was here already is not verified.
        """
        lock = self._obtaining.setdefault(attached.hash, trio.Lock())
        try:
            async with lock:
                with told():
                    held = await self._run_in_thread(partial(self.store.link, attached.hash))
                if held is not None:
                    return held
                return await self._build(attached, source)
        finally:
            if self._obtaining.get(attached.hash) is lock and not lock.statistics().tasks_waiting and not lock.locked():
                del self._obtaining[attached.hash]

    async def _build(self, attached: Attached, source: ChunkSource) -> Holding | None:
        construction = self._interrupted.take(attached.hash)
        if construction is None:
            with told():
                construction = await self._run_in_thread(self.store.build)
        is_interrupted = True
        try:
            written = -(-construction.size_bytes // CHUNK_BYTES)  # the last chunk is shorter
            is_whole = await self._write(attached, source, construction, written)
            is_interrupted = False
            if not is_whole:
                return None
            with told():
                return await self._run_in_thread(construction.finish)
        except DiskFullError:
            is_interrupted = False
            raise
        finally:
            if not (is_interrupted and self._interrupted.keep(attached.hash, construction)):
                await self._abandon(construction)

    async def heal(self, attached: Attached, holding: Holding, source: ChunkSource) -> bool:
        """Replace damaged content with whole content and return True, or False if that is impossible.

        Raises DiskFullError, UnavailableError.
        """

        async def best(attached: Attached, number: int) -> bytes | None:
            with suppress(ContentUnavailableError):
                return await self.own_chunk(attached, holding, number)
            return await source(attached, number)

        with told():
            try:
                replacement = await self._run_in_thread(partial(self.store.replace, holding))
            except MissingError:
                return False
            try:
                if not await self._write(attached, best, replacement):
                    return False
                await self._run_in_thread(replacement.finish)
            except (MissingError, ValueError):  # the attachment was removed meanwhile
                return False
            finally:
                await self._abandon(replacement)
        log.warning("attachment %s is whole again", attached.hash.hex())
        self.metrics.healed.inc()
        return True

    async def let_go(self, holdings: Iterable[Holding]) -> None:
        """Release holdings that no body has recorded. A sweep finds those that cannot be released now."""
        left = list(holdings)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + timing.ATTACHMENTS_LET_GO_TIMEOUT_S):
            while left:
                try:
                    await self._run_in_thread(partial(self.store.unlink, left[-1]))
                except OSError as error:
                    log.warning("cannot release an attachment: %s; `replicator scrub` will release it", error)
                self.store.settle(left.pop().holder)
        for holding in left:
            self.store.settle(holding.holder)

    async def _write(
        self, attached: Attached, source: ChunkSource, into: Construction | Replacement, written: int = 0
    ) -> bool:
        """Write the chunks after the first `written`; return False if one cannot be fetched.

        Raises DiskFullError, UnavailableError.
        """
        for first in range(written, attached.chunk_count, READ_AHEAD):
            some = await self._ahead(attached, range(first, min(first + READ_AHEAD, attached.chunk_count)), source)
            if some is None:
                return False
            with told():
                await self._run_in_thread(partial(_write_all, into, some))
        return True

    async def _abandon(self, what: Construction | Replacement) -> None:
        """Discard unfinished content; finished content stays."""
        with trio.CancelScope(shield=True):
            await self._run_in_thread(what.abandon)

    async def _ahead(self, attached: Attached, numbers: range, source: ChunkSource) -> list[bytes] | None:
        found = dict[int, bytes]()

        async def fetch(number: int) -> None:
            data = await self._there(attached, number, source)
            if data is not None:
                found[number] = data

        await in_turns(fetch, numbers, READ_AHEAD)
        return [found[number] for number in numbers] if len(found) == len(numbers) else None


def _write_all(into: Construction | Replacement, chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        into.write(chunk)


@contextmanager
def told() -> Iterator[None]:
    """Translate errors of the file system into errors for clients."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFullError("the disk of this node is full; try later") from error
        where = f"{error.filename}: " if error.filename else ""
        raise UnavailableError(f"attachments cannot be written at this node: {where}{error.strerror}") from error
    except MissingError as error:
        raise UnavailableError(f"attachments cannot be written at this node: {error} was removed") from error
