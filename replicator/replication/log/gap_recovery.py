"""Recovery from gaps in this node's log (`store.log.gaps`), which the senders find.

Entries after a gap are of no use to a peer that lacks the entries in the gap, so they are held back from that peer.
Once no client can still be waiting for copies of the lost entries, the log is made to begin after the gap. Peers that
lack the lost entries are then refused with TOO-OLD, and take over this node's state.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

import trio

from protocol.values import Context, Dot
from replicator.errors import MailError
from replicator.replication import timing
from replicator.store.log.gaps import LogGap, begin_after_gap, look_for_gap
from replicator.store.store import Store

log = logging.getLogger(__name__)


class GapRecovery:
    """Gaps that are known, and their recovery. Belongs to the event loop.

    `start_again` makes all senders determine again what they owe their peers. A gap is passed over when no client can
    wait for copies of its entries any more (`GAPS_PATIENCE_S`): a peer that takes over this node's state acknowledges
    the lost entries without having them.
    """

    def __init__(self, store: Store, start_again: Callable[[], None]) -> None:
        self._store = store
        self._start_again = start_again
        self._known: set[LogGap] = set()
        self._found_in, self._found_out = trio.open_memory_channel[LogGap](math.inf)  # bounded by `_known`

    def hold_back(self, dot: Dot, has: int) -> bool:
        """Return True if a gap makes the entry useless to a peer that has so much of its origin."""
        known = (gap for gap in self._known if gap.origin == dot.origin and has < gap.last)
        return any(self._store.collected.get(dot.origin, 0) < gap.first <= dot.seq for gap in known)

    async def look(self, context: Context) -> bool:
        """Look for the first gap of each origin among the entries that a node with this context lacks.

        Return True if, for some origin, the first entry that the node lacks is in a gap. Raises DatabaseFailedError.
        """
        held = False
        for origin, end in list(self._store.context.items()):
            at = context.get(origin, 0)
            if at < end and not self.hold_back(Dot(origin, at + 1), at):
                await self._look_in(origin, at, end)
            held |= at < end and self.hold_back(Dot(origin, at + 1), at)
        return held

    async def _look_in(self, origin: str, at: int, end: int) -> None:
        gap: LogGap | None = None
        while at < end and (gap is None or gap.last == at):
            before = at
            part, at = await self._store.read(partial(look_for_gap, origin=origin, after=at))
            if at == before:  # the origin's own row is missing
                break
            if gap is None:
                gap = part
            elif part is not None and part.first == gap.last + 1:
                gap = gap._replace(last=part.last)
        if gap is not None and gap not in self._known:
            self._known.add(gap)
            self._found_in.send_nowait(gap)

    async def run(self) -> None:
        """Recover from each gap that is found, until cancelled."""
        async with trio.open_nursery() as nursery:
            async for gap in self._found_out:
                nursery.start_soon(self._close, gap)

    async def _close(self, gap: LogGap) -> None:
        log.error(
            "%s of %s can no longer be read from this node's log; nodes that lack this do not get any later"
            " entries for now; run `replicator check` to see what was lost", _in_words(gap), gap.origin,
        )  # fmt: skip
        pause_s, was_told = timing.GAPS_PATIENCE_S, False
        while True:
            await trio.sleep(pause_s)
            why_not = await self._try_to_close(gap)
            if why_not is None:
                break
            if not was_told:
                log.warning("the log of %s cannot begin after its gap yet: %s", gap.origin, why_not)
            pause_s, was_told = min(2 * pause_s, timing.GAPS_RETRY_MAX_S), True
        self._known.discard(gap)
        self._start_again()

    async def _try_to_close(self, gap: LogGap) -> str | None:
        """Try to make the log begin after the gap; return the reason why it cannot, or None.

        None means that the log now begins after the gap, or that there is no gap any more.
        """
        try:
            return await self._store.write(partial(begin_after_gap, gap=gap))
        except MailError as error:
            return str(error)


def _in_words(gap: LogGap) -> str:
    return f"entry {gap.first}" if gap.first == gap.last else f"entries {gap.first} to {gap.last}"
