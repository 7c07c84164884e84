"""Three node processes on links that change single fields of commands for a while, and then no longer.

Afterwards all nodes must become equal by themselves, and have all that clients heard OK for.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import Cluster
from protocol.framing import Frame
from tests.end_to_end.helpers.load import Load
from tests.mutating import MutatedStream, Mutator, whole

SIDS = ("dc1", "dc2", "dc3")
USER = "alice"
RATE = 0.15
MUTATED_S = 20.0
EQUAL_S = 180.0
CHANGES = 40  # of each client while links change commands


class Links:
    """The links of a cluster, whose commands are changed while `are_bad`; nodes on one machine do not compress them."""

    def __init__(self, cluster: Cluster, seed: str) -> None:
        self.mutator = Mutator(random.Random(seed), RATE)
        self.are_bad = False
        self._turn = threading.Lock()  # each link has a thread of its own
        for pair in combinations(SIDS, 2):
            link = cluster.link(*pair)
            link.carry_through(self._stream)
            link.cut()
            link.mend()

    def _stream(self) -> MutatedStream:
        return MutatedStream(self._frame)

    def _frame(self, frame: Frame) -> bytes:
        with self._turn:
            return self.mutator.frame(frame) if self.are_bad else whole(frame)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "nodes", [USER], proxied=True) as started:
        yield started


@pytest.mark.long
def test_nodes_recover_from_mutated_commands_without_a_restart(cluster: Cluster) -> None:
    links = Links(cluster, "mutated links")
    cluster.wait_together()
    with Load(cluster, USER) as load:
        load.do(6)
        for worker in load.workers_at(None):
            worker.is_patient = True  # a reply that was changed never comes
        cluster.partition(*([sid] for sid in SIDS))
        load.do(6)
        links.are_bad = True
        cluster.heal()
        load.ask(CHANGES)
        threading.Event().wait(MUTATED_S)
        links.are_bad = False
        assert links.mutator.counts.total() > 20
        load.wait(within_s=EQUAL_S)
        cluster.wait_until_equal(EQUAL_S)
        load.do(2)
        load.check()
