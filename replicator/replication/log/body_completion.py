"""Fetches the attachments of messages whose entries have arrived, and holds them until the entries are on disk.

An entry whose attachments no node can supply is held back as long as a client may be waiting for that entry: the client
must not hear OK with fewer copies of the attachments than configured. After that the entry is written without the body,
and `Bodies` asks all nodes for the body.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from typing import NamedTuple

import trio

from protocol.commands import Parts
from protocol.values import Dot
from replicator.errors import DiskFullError, UnavailableError
from replicator.replication import timing
from replicator.replication.bodies import Bodies
from replicator.replication.links.entry_codec import Announced, Arrived
from replicator.replication.links.link import PeerLink
from replicator.replication.log.disk_shortage import DiskShortage
from replicator.replication.writes.requests import transfer_s
from replicator.store.bodies.body_rows import StoredBody
from resync.clock import COUNTER_BITS

log = logging.getLogger(__name__)

LARGE_TOGETHER_BYTES = 1 << 20  # total size of large messages that are completed before any of them is acknowledged
CLOCKS_APART_MS = 3_600_000  # greatest clock difference along a line of many nodes; neighbours: five minutes at most


def lost_after_s(parts: Parts) -> float:
    """Return the time in seconds after which no client waits any longer for an OK that depends on the message."""
    return timing.REQUEST_TIMEOUT_S + transfer_s(parts) + timing.COMPLETION_LOST_MARGIN_S


class BodyCompletion:
    """Completion of the entries that arrive on one link.

    The caller must go on reading the link meanwhile, because attachments arrive on it, too.
    """

    def __init__(
        self, bodies: Bodies, link: PeerLink, clock_ms: Callable[[], int], disk_shortage: DiskShortage
    ) -> None:
        self._bodies = bodies
        self._link = link
        self._clock_ms = clock_ms
        self._disk_shortage = disk_shortage

    @asynccontextmanager
    async def completed(
        self, batch: Sequence[Arrived | Announced], is_missing: Callable[[Dot], bool] = lambda _: True
    ) -> AsyncIterator[Sequence[Arrived | Announced]]:
        """Yield the batch with all attachments that can be obtained; they are held within the block.

        Entries that arrive by another route meanwhile, and so are no longer missing, are left out.
        """
        began, full_s = trio.current_time(), timing.COMPLETION_RETRY_S
        try:
            while True:
                batch = [item for item in batch if is_missing(item.dot)]
                large = _large(batch)
                if not large:
                    yield batch
                    return
                async with AsyncExitStack() as stack:
                    taken = await self._take(stack, [one.parts for one in large.values()], began)
                    if isinstance(taken, DiskFullError):  # every failed attempt transfers the attachments again
                        self._note_shortage(batch)
                        pause_s = full_s = min(2 * full_s, timing.COMPLETION_FULL_RETRY_MOST_S)
                    elif taken is None:  # tells nothing about free space
                        pause_s = timing.COMPLETION_RETRY_S
                    else:
                        self._note_shortage(())
                        whole = {stored.content_hash: stored for stored in taken}
                        lost = [large[content_hash] for content_hash in large.keys() - whole.keys()]
                        if not any(map(self._is_awaited, lost)):
                            yield [item.completed(whole) if isinstance(item, Arrived) else item for item in batch]
                            self._bodies.note_lost([one.parts for one in lost], self._link.sid)
                            return
                        pause_s = timing.COMPLETION_LOST_RETRY_S
                        log.warning("not all parts of %d messages from %s are available yet", len(lost), self._link.sid)
                await trio.sleep(pause_s)
        finally:
            self._note_shortage(())

    def _note_shortage(self, batch: Sequence[Arrived | Announced]) -> None:
        sizes = {
            item.dot: (item.entry.user, sum(parts.size for parts in item.large))
            for item in batch
            if isinstance(item, Arrived) and item.large
        }
        self._disk_shortage.note(self, sizes, self._disk_shortage.attachments)

    async def _take(
        self, stack: AsyncExitStack, wanted: list[Parts], began: float
    ) -> list[StoredBody] | DiskFullError | None:
        """Fetch and hold the wanted attachments; return None or an error if the caller is to try again.

        Failures are not raised, so that the link stays up for entries that need no attachments. Once attachments have
        been unavailable for `timing.COMPLETION_UNAVAILABLE_S`, return an empty list: they count as lost.
        """
        try:
            return await stack.enter_async_context(self._bodies.obtain(wanted, self._link))
        except (DiskFullError, UnavailableError) as error:
            log.warning("cannot fetch parts of messages from %s, trying again: %s", self._link.sid, error)
            if isinstance(error, DiskFullError):
                return error
            return [] if trio.current_time() > began + timing.COMPLETION_UNAVAILABLE_S else None

    def _is_awaited(self, large: _Large) -> bool:
        """Return True if a client may still wait for an entry of the message.

        No client waits for an entry that was numbered, or has arrived, long ago: many such entries delay the log once,
        and not each for as long as a client waits.
        """
        patience_s = lost_after_s(large.parts)
        age_ms = self._clock_ms() - large.numbered_ms
        return trio.current_time() < large.arrived_s + patience_s and age_ms < patience_s * 1000 + CLOCKS_APART_MS


class _Large(NamedTuple):
    """A message without its attachments; when its latest entry was numbered, and when that has arrived."""

    parts: Parts
    numbered_ms: int = 0
    arrived_s: float = -inf


def _large(batch: Iterable[Arrived | Announced]) -> dict[bytes, _Large]:
    """Return the large messages by content hash."""
    found: dict[bytes, _Large] = {}
    for item in batch:
        if isinstance(item, Arrived):
            for parts in item.large:
                _, numbered_ms, arrived_s = found.get(parts.content_hash, _Large(parts))
                numbered_ms = max(numbered_ms, item.entry.time >> COUNTER_BITS)
                found[parts.content_hash] = _Large(parts, numbered_ms, max(arrived_s, item.arrived_s))
    return found


def of_some_size(batch: Sequence[Arrived | Announced]) -> Iterator[Sequence[Arrived | Announced]]:
    """Yield the batch in slices with at most `LARGE_TOGETHER_BYTES` of large messages, or with a single one."""
    start, size_bytes = 0, 0
    for at, item in enumerate(batch):
        own_bytes = sum(parts.size for parts in item.large) if isinstance(item, Arrived) else 0
        if own_bytes and size_bytes + own_bytes > LARGE_TOGETHER_BYTES and at > start:
            yield batch[start:at]
            start, size_bytes = at, 0
        size_bytes += own_bytes
    if start < len(batch):
        yield batch[start:]
