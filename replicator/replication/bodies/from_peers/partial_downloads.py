"""Partially downloaded attachments, kept for a while after an interruption such as a broken link.

Without them, an attachment that takes longer than an unstable link stays up would never arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from replicator.replication import timing
from replicator.runtime.environment import ThreadRunner
from replicator.store.attachments.construction import Construction

KEPT_MAX = 16  # attachments


@dataclass(frozen=True, slots=True)
class _Kept:
    construction: Construction = field(repr=False)
    until: float


class PartialDownloads:
    """Partial downloads by attachment. Belongs to the event loop."""

    def __init__(self, run_in_thread: ThreadRunner) -> None:
        self._run_in_thread = run_in_thread
        self._kept: dict[bytes, _Kept] = {}  # by hash of the attachment

    async def run(self) -> None:
        """Abandon partial downloads that were not resumed in time, until cancelled; then abandon all."""
        try:
            while True:
                await trio.sleep(timing.PARTIAL_DOWNLOADS_LOOK_EVERY_S)
                now = trio.current_time()
                await self._abandon([one for one, kept in self._kept.items() if kept.until < now])
        finally:
            await self._abandon(list(self._kept))

    def take(self, attachment_hash: bytes) -> Construction | None:
        """Return the partial download of an attachment, if any; the caller owns it from now on."""
        kept = self._kept.pop(attachment_hash, None)
        return kept.construction if kept else None

    def keep(self, attachment_hash: bytes, construction: Construction) -> bool:
        """Keep a partial download and return True; on False it stays the caller's."""
        if construction.is_over or not construction.size_bytes or len(self._kept) >= KEPT_MAX:
            return False
        self._kept[attachment_hash] = _Kept(construction, trio.current_time() + timing.PARTIAL_DOWNLOADS_KEPT_S)
        return True

    async def _abandon(self, hashes: list[bytes]) -> None:
        with trio.CancelScope(shield=True):
            for attachment_hash in hashes:
                if (construction := self.take(attachment_hash)) is not None:
                    await self._run_in_thread(construction.abandon)
