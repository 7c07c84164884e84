"""Parts whose fetching was interrupted, by a link that broke for one: what came of them is kept for a while.

Else a part that takes longer than a bad line lasts would never be here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from replicator.environment import ThreadRunner
from replicator.store.attachments.construction import Construction

KEPT_MAX = 16  # parts
KEPT_S = 600.0
LOOK_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class _Kept:
    construction: Construction = field(repr=False)
    until: float


class PartialDownloads:
    """Belongs to the event loop."""

    def __init__(self, run_in_thread: ThreadRunner) -> None:
        self._run_in_thread = run_in_thread
        self._kept: dict[bytes, _Kept] = {}  # by the hash of the part

    async def run(self) -> None:
        """Abandon what nobody went on with, until cancelled; then all."""
        try:
            while True:
                await trio.sleep(LOOK_EVERY_S)
                now = trio.current_time()
                await self._abandon([part for part, kept in self._kept.items() if kept.until < now])
        finally:
            await self._abandon(list(self._kept))

    def take(self, part: bytes) -> Construction | None:
        """What there is of a part; the caller's from now on."""
        kept = self._kept.pop(part, None)
        return kept.construction if kept else None

    def keep(self, part: bytes, construction: Construction) -> bool:
        """Whether it is kept, and no more the caller's."""
        if construction.is_over or not construction.size_bytes or len(self._kept) >= KEPT_MAX:
            return False
        self._kept[part] = _Kept(construction, trio.current_time() + KEPT_S)
        return True

    async def _abandon(self, parts: list[bytes]) -> None:
        with trio.CancelScope(shield=True):
            for part in parts:
                if (construction := self.take(part)) is not None:
                    await self._run_in_thread(construction.abandon)
