"""The parts of messages whose entries came: fetched, and held until the entries are on disk.

An entry waits for parts that nobody has as long as a client may wait for it: with fewer copies of the parts than were
asked for he must not hear OK. Later it is written without the text, which all are then asked for (`bodies.backfill`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from protocol.commands import Parts
from protocol.values import Dot
from replicator.errors import DiskFullError, UnavailableError
from replicator.replication.bodies.download import Downloader
from replicator.replication.links.entry_codec import Announced, Arrived
from replicator.replication.links.link import PeerLink
from replicator.replication.log.disk_shortage import DiskShortage
from replicator.replication.writes.requests import transfer_s
from replicator.replication.writes.router import REQUEST_TIMEOUT_S
from replicator.store.bodies.body_rows import StoredText
from resync.clock import COUNTER_BITS

log = logging.getLogger(__name__)

PARTED_BYTES = 1 << 20  # of large messages whose parts are taken in before any of them is acknowledged
LOST_RETRY_S = 5.0  # until it is looked again for parts that nobody had
RETRY_S, FULL_RETRY_MOST_S = 1.0, 60.0  # with a full disk twice as long each time
LOST_MARGIN_S = 10.0
CLOCKS_APART_MS = 3_600_000  # of two nodes at the ends of a line of many: of neighbours it is five minutes at most
UNAVAILABLE_S = 600.0  # then what nobody gives counts as lost: someone's disk may be ill for good


def lost_after_s(parts: Parts) -> float:
    """When nobody waits any more for an OK that would rest on a message."""
    return REQUEST_TIMEOUT_S + transfer_s(parts) + LOST_MARGIN_S


class BodyCompletion:
    """Completes what comes on one link, which must be read on meanwhile: parts come on it, too."""

    def __init__(
        self, downloader: Downloader, link: PeerLink, clock_ms: Callable[[], int], disk_shortage: DiskShortage
    ) -> None:
        self._downloader = downloader
        self._link = link
        self._clock_ms = clock_ms
        self._disk_shortage = disk_shortage

    @asynccontextmanager
    async def completed(
        self, batch: Sequence[Arrived | Announced], is_missing: Callable[[Dot], bool] = lambda _: True
    ) -> AsyncIterator[Sequence[Arrived | Announced]]:
        """With all parts of the messages that can be had, which are held within the block.

        Entries that come by another way meanwhile, so that they are not missing any more, are left out.
        """
        began, full_s = trio.current_time(), RETRY_S
        try:
            while True:
                batch = [item for item in batch if is_missing(item.dot)]
                parted = _parted(batch)
                if not parted:
                    yield batch
                    return
                async with AsyncExitStack() as stack:
                    taken = await self._take(stack, [parts for parts, _ in parted.values()], began)
                    if isinstance(taken, DiskFullError):  # what comes in vain comes again
                        self._note_shortage(batch)
                        pause_s = full_s = min(2 * full_s, FULL_RETRY_MOST_S)
                    elif taken is None:  # says nothing about the room
                        pause_s = RETRY_S
                    else:
                        self._note_shortage(())
                        whole = {text.content_hash: text for text in taken}
                        lost = [parted[content_hash] for content_hash in parted.keys() - whole.keys()]
                        if not any(self._is_awaited(parts, numbered_ms, began) for parts, numbered_ms in lost):
                            yield [item.completed(whole) if isinstance(item, Arrived) else item for item in batch]
                            self._downloader.note_lost([parts for parts, _ in lost], self._link.sid)
                            return
                        pause_s = LOST_RETRY_S
                        log.warning("not all parts of %d messages from %s are to be had yet", len(lost), self._link.sid)
                await trio.sleep(pause_s)
        finally:
            self._note_shortage(())

    def _note_shortage(self, batch: Sequence[Arrived | Announced]) -> None:
        sizes = {
            item.dot: (item.entry.user, sum(parts.size for parts in item.parted))
            for item in batch
            if isinstance(item, Arrived) and item.parted
        }
        self._disk_shortage.note(self, sizes, self._disk_shortage.attachments)

    async def _take(
        self, stack: AsyncExitStack, wanted: list[Parts], began: float
    ) -> list[StoredText] | DiskFullError | None:
        """None, or an error: it is to be tried again, since the link stays up for what needs no parts."""
        try:
            return await stack.enter_async_context(self._downloader.taking(wanted, self._link))
        except (DiskFullError, UnavailableError) as error:
            log.warning("parts of messages from %s are asked for again: %s", self._link.sid, error)
            if isinstance(error, DiskFullError):
                return error
            return [] if trio.current_time() > began + UNAVAILABLE_S else None

    def _is_awaited(self, parts: Parts, numbered_ms: int, began: float) -> bool:
        """Whether a client may wait for the entry, which came when this began: not if it was numbered long ago."""
        patience_s = lost_after_s(parts)
        age_ms = self._clock_ms() - numbered_ms
        return trio.current_time() < began + patience_s and age_ms < patience_s * 1000 + CLOCKS_APART_MS


def _parted(batch: Iterable[Arrived | Announced]) -> dict[bytes, tuple[Parts, int]]:
    """The messages in parts, by their hashes, and when the last entry that brings each was numbered, in ms."""
    found: dict[bytes, tuple[Parts, int]] = {}
    for item in batch:
        if isinstance(item, Arrived):
            numbered_ms = item.entry.time >> COUNTER_BITS
            for parts in item.parted:
                _, newest_ms = found.get(parts.content_hash, (parts, 0))
                found[parts.content_hash] = parts, max(newest_ms, numbered_ms)
    return found


def of_some_size(batch: Sequence[Arrived | Announced]) -> Iterator[Sequence[Arrived | Announced]]:
    """In pieces whose large messages are no more than `PARTED_BYTES` together, or a single one."""
    start, size_bytes = 0, 0
    for at, item in enumerate(batch):
        own_bytes = sum(parts.size for parts in item.parted) if isinstance(item, Arrived) else 0
        if own_bytes and size_bytes + own_bytes > PARTED_BYTES and at > start:
            yield batch[start:at]
            start, size_bytes = at, 0
        size_bytes += own_bytes
    if start < len(batch):
        yield batch[start:]
