"""Peers whose backlog is so long that no client should wait for their acknowledgement.

Each reachable node is watched in rounds. A round ends once the node has all entries that were owed to it when the round
began. A new node is trusted to catch up soon. If a round takes longer than its patience, the node is behind: it came
back with a long backlog, or has stopped taking in entries. Once a round is short, the node has caught up; so a client
that waits for it then does not wait for a backlog that has built up meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import trio

Owed = Callable[[str], Mapping[str, int]]
"""SID -> the context of this node's entries that the node is to get, as far as this node hears of its ACKs."""


@dataclass(frozen=True, slots=True)
class _Round:
    began: float
    owed: Mapping[str, int]
    patience_s: float
    is_first: bool = True
    is_late: bool = False  # the previous round was longer than its patience


class LaggingPeers:
    """The nodes that have yet to catch up. Belongs to the event loop.

    `coming_s` is the patience, in seconds, with a node that has just become reachable; `staying_s` that with others.
    """

    def __init__(self, owed: Owed, coming_s: float, staying_s: float) -> None:
        self._owed = owed
        self._coming_s = coming_s
        self._staying_s = staying_s
        self._rounds: dict[str, _Round] = {}  # of the nodes that can be reached

    def __contains__(self, sid: str) -> bool:
        """Return True if the node lags, so that no client should wait for it."""
        going = self._rounds.get(sid)
        return going is not None and (going.is_late or self._is_long(going))

    def is_new(self, sid: str) -> bool:
        """Return True if the node has just become reachable and is not known to have caught up yet."""
        going = self._rounds.get(sid)
        return going is not None and going.is_first

    def came(self, sid: str) -> None:
        """Note that a node is reachable again, or reports its context anew; a running round keeps its start time."""
        going, owed = self._rounds.get(sid), dict(self._owed(sid))
        self._rounds[sid] = (
            replace(going, owed=owed) if going else _Round(trio.current_time(), owed, patience_s=self._coming_s)
        )

    def went(self, sid: str) -> None:
        """Note that a node cannot be reached any more."""
        self._rounds.pop(sid, None)

    def look(self, sid: str, held: Mapping[str, int]) -> None:
        """End the node's round if its disk now holds (`held`) all that it was owed. Call this about every second."""
        going = self._rounds.get(sid)
        if going is not None and all(held.get(origin, 0) >= seq for origin, seq in going.owed.items()):
            is_late = self._is_long(going)
            self._rounds[sid] = _Round(
                trio.current_time(), dict(self._owed(sid)), self._staying_s, is_first=False, is_late=is_late
            )

    def _is_long(self, going: _Round) -> bool:
        return trio.current_time() > going.began + going.patience_s
