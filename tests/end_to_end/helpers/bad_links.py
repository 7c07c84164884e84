"""Links between real nodes that change what they carry, and nodes that lie, each for as long as a test wants it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import combinations, permutations

from benchmarks.clusters.cluster import Cluster
from benchmarks.clusters.proxy import Direction
from protocol.commands import Hello
from protocol.framing import Frame, Framer
from protocol.parser import parse
from protocol.stream_codec import WIRE_LIMITS, Encoder, Request
from replicator.replication.links.handshake import BLOCKS
from tests.mutating import MutatedStream, Mutator, whole


class BadLinks:
    """The links of a cluster. Nodes on one machine do not compress them.

    No node hears that another one has blocks, as if they had TLS, or were of an earlier version.
    """

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
        frame = _without_blocks(frame)
        with self._turn:
            mutator = self._mutators.get((sender, receiver))
            return whole(frame) if mutator is None else mutator.frame(frame)


def _without_blocks(frame: Frame) -> Frame:
    """Return the command; if it is a HELLO, without this capability."""
    if b"HELLO " not in frame.text:
        return frame
    item = parse(frame)
    hello = item.command if isinstance(item, Request) else item.reply
    if not isinstance(hello, Hello):
        return frame
    hello = replace(hello, capabilities=tuple(name for name in hello.capabilities if name != BLOCKS))
    framer = Framer(WIRE_LIMITS)
    other = replace(item, command=hello) if isinstance(item, Request) else replace(item, reply=hello)
    framer.receive(Encoder().batch([other]))
    event = framer.next_event()
    assert isinstance(event, Frame)
    return event
