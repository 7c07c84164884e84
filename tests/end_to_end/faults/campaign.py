"""Long campaigns of real processes, each drawn from a seed: `make soak-processes ROUNDS=n FIRST_SEED=n`.

A round draws a few overlapping faults while clients work; then all is mended, and checked. A seed fixes which faults
are drawn, but not the timing of the processes: a seed that has failed need not fail again.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from itertools import combinations

import pytest

from benchmarks.clusters.cluster import Cluster, Node
from tests.end_to_end.helpers.bad_links import BadLinks
from tests.end_to_end.helpers.idler import Idler
from tests.end_to_end.helpers.load import CHANGES, SHORT_TIMEOUTS, Load
from tests.end_to_end.helpers.stalls import stalls
from tests.lying import Liar
from tests.mutating import Flipper, Mutator

FIRST = int(os.environ.get("FIRST_SEED", "0"))
ROUNDS = range(FIRST, FIRST + int(os.environ.get("ROUNDS", "10")))
NODES = int(os.environ.get("NODES", "3"))
FAULTS = 6  # in a round
RATE = 0.1  # of changed commands, and of lies
HELD_MAX_S = 1.0  # of the processor's time: half the shortened timeout after which peers give a node up
PAUSE_MAX_S = 8.0  # more than `handshake` and `timeout` together


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    users = [f"user{seed}" for seed in ROUNDS]
    directory = tmp_path_factory.mktemp("campaign") / "nodes"
    with Cluster(directory, users, size=NODES, proxied=True, extra=SHORT_TIMEOUTS) as started:
        yield started


class Chaos:
    """Faults drawn from a seed; each is printed, for people who look into a failure."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._links = BadLinks(cluster)
        self._random = random.Random(seed)
        self._sids = [node.sid for node in cluster.nodes]
        self._paused: set[str] = set()
        self._faults = (
            self._part,
            self._hold,
            self._silence,
            self._slow,
            self._spoil,
            self._lie,
            self._mend,
            self._kill,
            self._kill,
            self._pause,
        )

    @property
    def serving(self) -> list[str]:
        return [node.sid for node in self._cluster.running if node.sid not in self._paused]

    def add_fault(self) -> None:
        self._random.choice(self._faults)()

    def end(self) -> None:
        """Mend all links, and let all nodes run and tell the truth."""
        self._links.mend()
        for pair in combinations(self._sids, 2):
            self._cluster.link(*pair).delay(0)
            self._cluster.link(*pair).throttle(float("inf"))
        self._cluster.heal()
        for node in self._cluster.nodes:
            self._revive(node)

    def _some(self) -> list[str]:
        return self._random.sample(self._sids, self._random.randint(1, len(self._sids)))

    def _dice(self) -> random.Random:
        """Return dice for the threads of links, whose timing must not influence which faults are drawn."""
        return random.Random(self._random.random())

    def _print(self, what: str) -> None:
        print(what)  # noqa: T201 - shown if the round fails

    def _part(self) -> None:
        groups = {sid: self._random.randrange(3) for sid in self._sids}
        self._print(f"part {groups}")
        self._cluster.partition(*([sid for sid in groups if groups[sid] == group] for group in range(3)))

    def _hold(self) -> None:
        pair = self._random.sample(self._sids, 2)
        self._print(f"hold {pair}")
        self._cluster.link(*pair).hold()

    def _silence(self) -> None:
        speaker, hearer = self._random.sample(self._sids, 2)
        self._print(f"{hearer} does not hear {speaker}")
        self._cluster.silence(speaker, hearer)

    def _slow(self) -> None:
        pair = self._random.sample(self._sids, 2)
        delay_s, bytes_per_s = self._random.uniform(0, 0.3), self._random.uniform(20_000, 1_000_000)
        self._print(f"{pair}: {delay_s:.3f} s, {bytes_per_s:.0f} bytes/s")
        self._cluster.link(*pair).delay(delay_s)
        self._cluster.link(*pair).throttle(bytes_per_s)

    def _spoil(self) -> None:
        (one, other), kind = self._random.sample(self._sids, 2), self._random.choice((Mutator, Flipper))
        self._print(f"{one} and {other}: {kind.__name__}")
        self._links.spoil(one, other, kind(self._dice(), RATE))

    def _lie(self) -> None:
        sid = self._random.choice(self._sids)
        self._print(f"{sid} lies")
        self._links.let_lie(sid, Liar(self._dice(), RATE, self._print))

    def _mend(self) -> None:
        self._print("mend")
        self._links.mend()
        self._cluster.heal()

    def _kill(self) -> None:
        """Kill some nodes at once, perhaps all, and start them one after the other."""
        victims = [self._cluster.node(sid) for sid in self._some()]
        self._print(f"kill {[node.sid for node in victims]}")
        for node in victims:
            self._paused.discard(node.sid)
            node.kill()
        for node in victims:
            self._revive(node)

    def _pause(self) -> None:
        sid = self._random.choice(self._sids)
        if sid not in self._paused and len(self.serving) > 1:
            self._print(f"pause {sid}")
            self._paused.add(sid)
            self._cluster.node(sid).pause()
            threading.Event().wait(self._random.uniform(0, PAUSE_MAX_S))

    def _revive(self, node: Node) -> None:
        if not node.is_running:
            node.start()
        elif node.sid in self._paused:
            self._paused.discard(node.sid)
            node.resume()


@pytest.mark.parametrize("seed", ROUNDS)
def test_nodes_become_equal_after_overlapping_faults(cluster: Cluster, seed: int) -> None:
    chaos, user = Chaos(cluster, seed), f"user{seed}"
    with Load(cluster, user) as load, Idler(cluster.nodes[seed % NODES], user):
        for worker in load.workers_at(None):
            worker.is_patient = True  # links that break and return this fast may use up all the time of a change
        load.do(2)
        for _ in range(FAULTS):
            load.ask(CHANGES)
            chaos.add_fault()
            load.wait(chaos.serving, left=CHANGES // 2)
        chaos.end()
        load.wait()
        load.do(2)
        load.check()
    for node in cluster.nodes:  # of each, since its last start
        held = stalls(node)
        assert not held.longer_than(HELD_MAX_S), f"a task of {node.sid} held the event loop: {held}"
