"""Nodes that share many mailboxes and trees, and exchange logs in any order, become equal."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.store.db import queries
from tests.effort import examples
from tests.store import consistency
from tests.store.memory_cluster import Cluster


@given(st.integers(2, 3), st.integers(0, 60), st.randoms(use_true_random=False))
@settings(max_examples=examples(20, 40), deadline=None)
def test_nodes_converge_whatever_order_logs_are_exchanged_in(size: int, steps: int, rng: random.Random) -> None:
    cluster = Cluster(size)
    for _ in range(steps):
        key = rng.choice(cluster.keys)
        match rng.randrange(8):
            case 0:
                cluster.hand_over(key, rng)
            case 1 | 2:
                cluster.exchange(rng, rng.randrange(1, 9))
            case _:
                cluster.change(key, rng)
    cluster.settle()
    assert len({tuple(node.digests().items()) for node in cluster.nodes}) == 1
    for node in cluster.nodes:
        assert queries.log_counts(node.connection)[1] == 0, "an entry still waits"
        consistency.check(node.connection)
        node.connection.close()
