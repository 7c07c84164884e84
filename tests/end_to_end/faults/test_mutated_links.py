"""Three node processes that hear falsehoods for a while: changed fields, flipped bits, or lies of one of them.

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
from tests.end_to_end.helpers.bad_links import BadLinks
from tests.end_to_end.helpers.load import Load
from tests.lying import Liar
from tests.mutating import Flipper, Mutator

SIDS = ("dc1", "dc2", "dc3")
USER = "alice"
RATE = 0.15
DECEIVED_S = 20.0
EQUAL_S = 180.0
CHANGES = 40  # of each client while nodes are deceived


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "nodes", [USER], proxied=True) as started:
        yield started


@pytest.mark.long
@pytest.mark.parametrize("kind", [Mutator, Flipper, Liar])
def test_nodes_recover_from_falsehoods_without_a_restart(cluster: Cluster, kind: type[Mutator]) -> None:
    links, dice = BadLinks(cluster), random.Random("deceived nodes")
    cluster.wait_together()
    with Load(cluster, USER) as load:
        load.do(6)
        for worker in load.workers_at(None):
            worker.is_patient = True  # a reply that was changed never comes
        cluster.partition(*([sid] for sid in SIDS))
        load.do(6)
        if kind is Liar:
            links.let_lie("dc2", Liar(dice, RATE))
        else:
            for pair in combinations(SIDS, 2):
                links.spoil(*pair, kind(dice, RATE))
        cluster.heal()
        load.ask(CHANGES)
        threading.Event().wait(DECEIVED_S)
        links.mend()
        assert links.counts.total() > 20
        load.wait(within_s=EQUAL_S)
        cluster.wait_until_equal(EQUAL_S)
        load.do(2)
        load.check()
