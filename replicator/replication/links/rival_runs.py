"""Tells which of two processes that run as one peer is the peer (design section 5, "One node, two processes")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from protocol.commands import Hello, Ping, RefusalCode
from protocol.values import is_older
from replicator.config import PeerConfig
from replicator.replication import timing
from replicator.replication.links.handshake import HelloRefusedError
from replicator.replication.links.link import NO_TRAFFIC, LinkDownError, PeerLink, Traffic

HOW_TO_PART = "stop one of the two; another node needs its own `node.id` and an empty `node.data`"


@dataclass(slots=True)
class TurnedAway:
    """A run of a peer that was refused because another run is known, and the time span of continuous refusals.

    `since` and `until` are in seconds of the event loop's clock.
    """

    origin: str
    since: float
    until: float


@dataclass(slots=True)
class PeerState:
    """State of the link to one configured peer. `has_stopped`: it said so at the end of the last link.

    `established` counts its links so far; `past_traffic` is that of those that have ended. `calls`: the scope of all
    calls to the peer.
    """

    config: PeerConfig
    link: PeerLink | None = None
    since_ms: int | None = None
    error: str | None = None
    lost: tuple[str, float] | None = None  # origin of the previous link, and the time when that link ended
    turned_away: TurnedAway | None = None
    has_stopped: bool = False
    established: int = 0
    past_traffic: Traffic = NO_TRAFFIC
    calls: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def traffic(self) -> Traffic:
        """The traffic of all links to this peer since this node's start."""
        return self.past_traffic if self.link is None else self.past_traffic.plus(self.link.traffic)


class RivalRuns:
    """Refuses runs of peers that are known under another origin, on behalf of the node `sid`.

    `run_of` returns the origin under which a node can be reached, over any number of links; None if it cannot be.
    """

    def __init__(self, sid: str, timeout_s: float, *, run_of: Callable[[str], str | None]) -> None:
        self._sid = sid
        self._timeout_s = timeout_s
        self._run_of = run_of

    async def refuse(self, state: PeerState, hello: Hello) -> None:
        """Return when the peer is not known to run under another origin than that of its HELLO.

        Raises HelloRefusedError if it does. The code is RUNS-TWICE or REPLACED, which may end the refused run, only if
        there is no doubt.
        """
        with trio.move_on_after(min(self._timeout_s + timing.RIVAL_RUNS_GRACE_S, timing.HANDSHAKE_TIMEOUT_S / 2)):
            while (rival := self.rival_of(state, hello.origin)) is not None:
                if state.link is not None and await _answers(state.link):
                    raise self._runs_twice(hello, rival, "is linked to")
                await trio.sleep(timing.RIVAL_RUNS_LOOK_AGAIN_S)
        if (rival := self.rival_of(state, hello.origin)) is None:
            return
        # Silent links end, and all nodes hear of that: a run that is gone does not stay reachable for so long.
        is_certain = self._turn_away(state, hello.origin) > 2 * self._timeout_s and state.link is None
        raise self._runs_twice(hello, rival, "can be reached from", is_certain=is_certain)

    def rival_of(self, state: PeerState, origin: str) -> str | None:
        """Return the other origin under which a peer is known: of a run that is linked, or reachable over other nodes.

        None if there is no other run, or if the link of this run broke only just now.
        """
        if state.lost is not None and state.lost[0] == origin and self._is_recent(state.lost[1]):
            return None
        known = state.link.hello.origin if state.link is not None else self._run_of(state.config.id)
        return known if known != origin else None

    def note_loss(self, state: PeerState, origin: str) -> None:
        """Note that the link to this run has ended, unless that of another run has ended only just now."""
        if state.lost is None or state.lost[0] == origin or not self._is_recent(state.lost[1]):
            state.lost = origin, trio.current_time()

    def _turn_away(self, state: PeerState, origin: str) -> float:
        """Note a refusal of this run of the peer; return for how many seconds it has been refused without a pause."""
        now, before = trio.current_time(), state.turned_away
        pause_s = timing.HANDSHAKE_TIMEOUT_S + 2 * self._timeout_s  # longest time between two calls
        if before is None or before.origin != origin or now - before.until > pause_s:
            before = state.turned_away = TurnedAway(origin, now, now)
        before.until = now
        return now - before.since

    def _is_recent(self, moment: float) -> bool:
        return trio.current_time() - moment < self._timeout_s

    def _runs_twice(self, hello: Hello, rival: str, how: str, *, is_certain: bool = True) -> HelloRefusedError:
        code = RefusalCode.REPLACED if is_older(hello.origin, rival) else RefusalCode.RUNS_TWICE
        text = f"{hello.sid} already runs as {rival}, which {how} {self._sid}; the refused process is {hello.origin}"
        return HelloRefusedError(code if is_certain else RefusalCode.UNAVAILABLE, f"{text}; {HOW_TO_PART}")


async def _answers(link: PeerLink) -> bool:
    """Return True if the peer answers a PING, False if the link has ended."""
    try:
        await link.request(Ping())
    except LinkDownError:
        return False
    return True
