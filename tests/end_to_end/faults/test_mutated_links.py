"""Three node processes on lines that change single fields of commands for a while, and then carry them as they are.

Then all nodes must become equal by themselves, and have all that clients were told they have.
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
CHANGES = 40  # of each client while lines change what they carry


class Lines:
    """All lines of a cluster. Nodes on one machine do not compress what they say."""

    def __init__(self, cluster: Cluster, seed: str) -> None:
        self.mutator = Mutator(random.Random(seed), RATE)
        self.are_bad = False
        self._turn = threading.Lock()  # each line has a thread of its own
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
    lines = Lines(cluster, "mutated links")
    cluster.wait_together()
    with Load(cluster, USER) as load:
        load.do(6)
        for worker in load.at(None):
            worker.is_patient = True  # a reply that was changed never comes
        cluster.partition(*([sid] for sid in SIDS))
        load.do(6)
        lines.are_bad = True
        cluster.heal()
        load.ask(CHANGES)
        threading.Event().wait(MUTATED_S)
        lines.are_bad = False
        assert lines.mutator.counts.total() > 20
        load.wait(within_s=EQUAL_S)
        cluster.wait_until_equal(EQUAL_S)
        load.do(2)
        load.check()
