"""Links between real nodes that change what they carry, and nodes that lie, each for as long as a test wants it."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from itertools import combinations, permutations

from benchmarks.clusters.cluster import Cluster
from benchmarks.clusters.proxy import Direction
from protocol.framing import Frame
from tests.mutating import MutatedStream, Mutator, whole


class BadLinks:
    """The links of a cluster. Nodes on one machine do not compress them."""

    def __init__(self, cluster: Cluster) -> None:
        self.counts: Counter[str] = Counter()  # of all changes, by command
        self._sids = [node.sid for node in cluster.nodes]
        self._mutators: dict[tuple[str, str], Mutator] = {}  # sender and receiver -> what changes the commands
        self._turn = threading.Lock()  # each link has a thread of its own
        for near, far in combinations(sorted(self._sids), 2):
            link = cluster.link(near, far)
            link.carry_through(partial(self._stream, near, far), [Direction.FORTH])
            link.carry_through(partial(self._stream, far, near), [Direction.BACK])
            link.cut()
            link.mend()

    def spoil(self, one: str, other: str, mutator: Mutator) -> None:
        """Change commands in both directions of a link."""
        with self._turn:
            self._mutators |= {(one, other): mutator, (other, one): mutator}

    def let_lie(self, sid: str, mutator: Mutator) -> None:
        """Change what one node says to all others."""
        with self._turn:
            self._mutators |= {way: mutator for way in permutations(self._sids, 2) if way[0] == sid}

    def mend(self) -> None:
        """End all changes and all lies."""
        with self._turn:
            for mutator in {*self._mutators.values()}:
                self.counts += mutator.counts
            self._mutators = {}

    def _stream(self, sender: str, receiver: str) -> MutatedStream:
        return MutatedStream(partial(self._frame, sender, receiver))

    def _frame(self, sender: str, receiver: str, frame: Frame) -> bytes:
        with self._turn:
            mutator = self._mutators.get((sender, receiver))
            return whole(frame) if mutator is None else mutator.frame(frame)
