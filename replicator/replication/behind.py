"""Nodes that came back with much to take in: what is new stands behind all of that, and nobody is to wait for it.

A node that comes is trusted to have caught up soon. If it takes longer than the patience to take in what was there when
it came, it is behind, and goes on in rounds: to what was there when the last round ended. Once a round takes no longer
than the patience it has caught up; so whoever waits for it then does not wait for a backlog that grew meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import trio

OwnEntries = Callable[[], Mapping[str, int]]
"""Up to where this node has numbered, in this run and in past ones, by origin: of those it hears who has them."""


@dataclass(frozen=True, slots=True)
class _Round:
    began: float
    wanted: Mapping[str, int]
    is_first: bool = True


class Behind:
    """Knows which nodes have yet to catch up. Belongs to the event loop. `patience_s`: of a round."""

    def __init__(self, own_entries: OwnEntries, patience_s: float) -> None:
        self._own_entries = own_entries
        self._patience_s = patience_s
        self._rounds: dict[str, _Round] = {}  # of those that have not caught up

    def __contains__(self, sid: str) -> bool:
        """Whether it has not caught up, and has had time to."""
        going = self._rounds.get(sid)
        return going is not None and not (going.is_first and self._is_young(going))

    def came(self, sid: str) -> None:
        """A node can be reached again, or says anew what it has."""
        self._rounds[sid] = _Round(trio.current_time(), dict(self._own_entries()))

    def went(self, sid: str) -> None:
        """It cannot be reached."""
        self._rounds.pop(sid, None)

    def has(self, sid: str, held: Mapping[str, int]) -> None:
        """So much of what this node numbered is on that node's disk."""
        going = self._rounds.get(sid)
        if going is None or any(held.get(origin, 0) < seq for origin, seq in going.wanted.items()):
            return
        if self._is_young(going):
            del self._rounds[sid]
        else:
            self._rounds[sid] = replace(
                going, began=trio.current_time(), wanted=dict(self._own_entries()), is_first=False
            )

    def _is_young(self, going: _Round) -> bool:
        return trio.current_time() <= going.began + self._patience_s
