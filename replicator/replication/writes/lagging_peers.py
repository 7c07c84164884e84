"""Nodes for which nobody is to wait: they have so much to take in that what is new does not come to them soon.

Each node that can be reached is watched in rounds: one ends once the node has what was to be sent to it when the round
began. A node that has just come is trusted to have caught up soon. If a round takes longer than its patience the node
is behind, be it that it came back with much to take in, or that it takes in nothing any more; once a round is short it
has caught up. So whoever waits for it then does not wait for a backlog that grew meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import trio

Owed = Callable[[str], Mapping[str, int]]
"""SID -> up to where that node is to have what is here, by origin, as far as this node hears of that."""


@dataclass(frozen=True, slots=True)
class _Round:
    began: float
    owed: Mapping[str, int]
    patience_s: float
    is_first: bool = True
    is_late: bool = False  # the round before was long


class LaggingPeers:
    """Knows which nodes have yet to catch up. Belongs to the event loop.

    `coming_s`: the patience with a node that has just come; `staying_s`: with one that was there.
    """

    def __init__(self, owed: Owed, coming_s: float, staying_s: float) -> None:
        self._owed = owed
        self._coming_s = coming_s
        self._staying_s = staying_s
        self._rounds: dict[str, _Round] = {}  # of those that can be reached

    def __contains__(self, sid: str) -> bool:
        """Whether nobody is to wait for the node."""
        going = self._rounds.get(sid)
        return going is not None and (going.is_late or self._is_long(going))

    def is_new(self, sid: str) -> bool:
        """Whether it has come, and nobody knows yet whether it has caught up."""
        going = self._rounds.get(sid)
        return going is not None and going.is_first

    def came(self, sid: str) -> None:
        """A node can be reached again, or says anew what it has. A round that goes on is not younger for that."""
        going, owed = self._rounds.get(sid), dict(self._owed(sid))
        self._rounds[sid] = (
            replace(going, owed=owed) if going else _Round(trio.current_time(), owed, patience_s=self._coming_s)
        )

    def went(self, sid: str) -> None:
        """It cannot be reached."""
        self._rounds.pop(sid, None)

    def look(self, sid: str, held: Mapping[str, int]) -> None:
        """So much is on that node's disk now. To be called every second or so."""
        going = self._rounds.get(sid)
        if going is not None and all(held.get(origin, 0) >= seq for origin, seq in going.owed.items()):
            is_late = self._is_long(going)
            self._rounds[sid] = _Round(
                trio.current_time(), dict(self._owed(sid)), self._staying_s, is_first=False, is_late=is_late
            )

    def _is_long(self, going: _Round) -> bool:
        return trio.current_time() > going.began + going.patience_s
