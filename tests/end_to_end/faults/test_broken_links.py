"""Three node processes with clients by LMTP and IMAP, while links and nodes fail: no acknowledged change is lost.

The tests compare what clients were told with what they find in the end (design sections 3 and 11).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from itertools import combinations

import pytest

from benchmarks.clusters.cluster import Cluster
from tests.end_to_end.helpers.idler import Idler
from tests.end_to_end.helpers.load import CHANGES, SHORT_TIMEOUTS, SIDS, Load

STOPPED_S = 30.0
USERS = 100  # more than tests in a session: each has one of its own


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    users = [f"user{number}" for number in range(USERS)]
    directory = tmp_path_factory.mktemp("bad-links") / "nodes"
    with Cluster(directory, users, proxied=True, extra=SHORT_TIMEOUTS) as started:
        yield started


@pytest.fixture
def load(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Load]:
    """Clients of a user of the test's own; after the test all links are mended, and the nodes must become equal."""
    user = f"user{request.session.items.index(request.node) % USERS}"
    with Load(cluster, user) as load, Idler(cluster.nodes[1], user) as idler:
        load.do(6)
        yield load
        cluster.heal()
        load.wait()
        load.do(2)
        load.check()
    assert idler.heard[b"EXISTS"]


def isolate(cluster: Cluster) -> None:
    cluster.partition(["dc1"], ["dc2", "dc3"])


def part_all(cluster: Cluster) -> None:
    cluster.partition(["dc1"], ["dc2"], ["dc3"])


def make_a_line(cluster: Cluster) -> None:
    """Leave dc1 - dc2 - dc3."""
    cluster.link("dc1", "dc3").cut()


def silence_one_way(cluster: Cluster) -> None:
    """Let dc1 hear the others, which do not hear it."""
    cluster.silence("dc1", "dc2")
    cluster.silence("dc1", "dc3")


def silence(cluster: Cluster) -> None:
    """Hold all bytes to and from dc3 without closing its connections."""
    for other in ("dc1", "dc2"):
        cluster.link(other, "dc3").hold()


@pytest.mark.parametrize(
    "break_lines",
    [
        isolate,
        *(pytest.param(one, marks=pytest.mark.long) for one in (silence, part_all, make_a_line, silence_one_way)),
    ],
)
def test_partitions_work_alone_and_become_equal_afterwards(
    cluster: Cluster, load: Load, break_lines: Callable[[Cluster], None]
) -> None:
    load.ask(CHANGES)
    break_lines(cluster)
    load.wait()
    load.do(CHANGES)


@pytest.mark.long
def test_slow_links_lose_nothing(cluster: Cluster, load: Load) -> None:
    links = [cluster.link(*pair) for pair in combinations(SIDS, 2)]
    for link in links:
        link.delay(0.08)
        link.throttle(50_000)
    load.do(CHANGES // 2)
    for link in links:
        link.delay(0)
        link.throttle(math.inf)


@pytest.mark.long
def test_killed_root_comes_back_with_all_that_it_acknowledged(cluster: Cluster, load: Load) -> None:
    """dc1 is the root."""
    load.ask(CHANGES)
    load.wait(["dc1"], left=CHANGES // 2)
    cluster.node("dc1").kill()
    load.wait(["dc2", "dc3"])
    cluster.node("dc1").start()


@pytest.mark.long
def test_node_paused_for_half_a_minute_rejoins_a_partitioned_cluster(cluster: Cluster, load: Load) -> None:
    """Meanwhile the other two are parted, and one of them is killed."""
    load.ask(CHANGES)
    load.wait(["dc3"], left=CHANGES // 2)
    for worker in load.workers_at(["dc3"]):
        worker.is_patient = True
    cluster.node("dc3").pause()
    began = time.monotonic()
    load.wait(["dc1", "dc2"])
    cluster.partition(["dc1"], ["dc2"], ["dc3"])
    load.do(CHANGES, ["dc1", "dc2"])
    load.ask(CHANGES)
    load.wait(["dc2"], left=CHANGES // 2)
    cluster.node("dc2").kill()
    cluster.heal()
    cluster.node("dc2").start()
    load.wait(["dc1", "dc2"])
    # Nodes have real timeouts, and the pause must outlast all of them.
    threading.Event().wait(began + STOPPED_S - time.monotonic())
    cluster.node("dc3").resume()
