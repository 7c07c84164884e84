"""The entries of the log that are not applied, and since when entries of a mailbox or tree have waited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from protocol.values import Dot


@dataclass(slots=True)
class _InChain:
    """The number of a chain's waiting entries, and the time at which the first of them began to wait."""

    entries: int
    since_ms: int


class WaitingEntries(Mapping[Dot, bytes]):
    """Entry -> its mailbox or tree, of those whose effect this node does not show. Belongs to the event loop.

    An entry that waited before this run began to wait, for its age, when the run began.
    """

    def __init__(self, found: Mapping[Dot, bytes], clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._chain_of: dict[Dot, bytes] = {}
        self._chains: dict[bytes, _InChain] = {}  # in the order in which they began to wait
        for dot, chain_id in found.items():
            self.add(dot, chain_id)

    def __getitem__(self, dot: Dot) -> bytes:
        return self._chain_of[dot]

    def __contains__(self, dot: object) -> bool:
        return dot in self._chain_of

    def __iter__(self) -> Iterator[Dot]:
        return iter(self._chain_of)

    def __len__(self) -> int:
        return len(self._chain_of)

    @property
    def chains(self) -> int:
        """Number of mailboxes and trees that have waiting entries."""
        return len(self._chains)

    @property
    def oldest_s(self) -> float:
        """Seconds for which the first of these mailboxes and trees has had waiting entries; 0 if there is none."""
        first = next(iter(self._chains.values()), None)
        return 0.0 if first is None else max(0, self._clock_ms() - first.since_ms) / 1000

    def is_in(self, chain_id: bytes) -> bool:
        """Return True if entries of this mailbox or tree wait."""
        return chain_id in self._chains

    def add(self, dot: Dot, chain_id: bytes) -> None:
        """Add an entry, if it is not there."""
        if dot in self._chain_of:
            return
        self._chain_of[dot] = chain_id
        known = self._chains.get(chain_id)
        if known is None:
            self._chains[chain_id] = _InChain(1, self._clock_ms())
        else:
            known.entries += 1

    def discard(self, dot: Dot) -> None:
        """Take an entry away, if it is there."""
        chain_id = self._chain_of.pop(dot, None)
        if chain_id is None:
            return
        self._chains[chain_id].entries -= 1
        if not self._chains[chain_id].entries:
            del self._chains[chain_id]
