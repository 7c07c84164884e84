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
from replicator.store.log.gaps import LogGap, begin_after_hole, look_for_hole
from replicator.store.store import Store

log = logging.getLogger(__name__)

RETRY_MAX_S = 600.0  # longest pause between attempts to make the log begin after a gap


class GapRecovery:
    """Gaps that are known, and their recovery. Belongs to the event loop.

    `start_again` makes all senders determine again what they owe their peers. `patience_s` must be longer than a
    client waits for copies: a peer that takes over this node's state acknowledges the lost entries without having them.
    """

    def __init__(self, store: Store, start_again: Callable[[], None], patience_s: float) -> None:
        self._store = store
        self._patience_s = patience_s
        self._start_again = start_again
        self._known: set[LogGap] = set()
        self._found_in, self._found_out = trio.open_memory_channel[LogGap](math.inf)  # bounded by `_known`

    def hold_back(self, dot: Dot, has: int) -> bool:
        """Return True if a gap makes the entry useless to a peer that has so much of its origin."""
        known = (hole for hole in self._known if hole.origin == dot.origin and has < hole.last)
        return any(self._store.collected.get(dot.origin, 0) < hole.first <= dot.seq for hole in known)

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
        hole: LogGap | None = None
        while at < end and (hole is None or hole.last == at):
            before = at
            part, at = await self._store.read(partial(look_for_hole, origin=origin, after=at))
            if at == before:  # the origin's own row is missing
                break
            if hole is None:
                hole = part
            elif part is not None and part.first == hole.last + 1:
                hole = hole._replace(last=part.last)
        if hole is not None and hole not in self._known:
            self._known.add(hole)
            self._found_in.send_nowait(hole)

    async def run(self) -> None:
        """Recover from each gap that is found, until cancelled."""
        async with trio.open_nursery() as nursery:
            async for hole in self._found_out:
                nursery.start_soon(self._close, hole)

    async def _close(self, hole: LogGap) -> None:
        log.error(
            "%s of %s came to this node's log and cannot be read there any more; what came after is held back from"
            " nodes that lack that; what was lost is told by `replicator check`", _in_words(hole), hole.origin,
        )  # fmt: skip
        pause_s, was_told = self._patience_s, False
        while True:
            await trio.sleep(pause_s)
            why_not = await self._try_to_close(hole)
            if why_not is None:
                break
            if not was_told:
                log.warning("the log of %s does not begin after its hole yet: %s", hole.origin, why_not)
            pause_s, was_told = min(2 * pause_s, RETRY_MAX_S), True
        self._known.discard(hole)
        self._start_again()

    async def _try_to_close(self, hole: LogGap) -> str | None:
        """Try to make the log begin after the gap; return the reason why it cannot, or None.

        None means that the log now begins after the gap, or that there is no gap any more.
        """
        try:
            return await self._store.write(partial(begin_after_hole, hole=hole))
        except MailError as error:
            return str(error)


def _in_words(hole: LogGap) -> str:
    return f"entry {hole.first}" if hole.first == hole.last else f"entries {hole.first} to {hole.last}"
