"""Nodes in network namespaces of their own, between which packets get lost without any error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trustme

from benchmarks.clusters.cluster import Cluster, Site
from tests.end_to_end.helpers.certificates import certificate
from tests.end_to_end.helpers.idler import Idler
from tests.end_to_end.helpers.load import CHANGES, SHORT_TIMEOUTS, SIDS, Load
from tests.end_to_end.helpers.namespaces import Network, reason_unavailable

MISSING = reason_unavailable()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"nodes in network namespaces are left out: {MISSING}")


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(list(SIDS)) as network:
        yield network


@pytest.fixture(scope="module")
def cluster(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with TLS on their links, which it needs between hosts; doors are on each node's own loopback."""
    directory, ca = tmp_path_factory.mktemp("namespaces"), trustme.CA()
    sites = {}
    for sid in SIDS:
        tls = certificate(ca, directory, sid)
        extra = f'[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\nca = "{tls.ca}"\n'
        sites[sid] = Site(network.prefix(sid), network.addresses[sid], extra, partial(network.sockets_at, sid))
    users = ["parted", "deaf", "lossy", "pulled"]
    with Cluster(directory / "nodes", users, extra=SHORT_TIMEOUTS, sites=sites) as started:
        yield started


def part(network: Network) -> None:
    network.part("dc1", "dc2")
    network.part("dc1", "dc3")


def deafen(network: Network) -> None:
    """Lose all packets from dc1 to dc3."""
    network.lose("dc1", "dc3")


def make_lossy(network: Network) -> None:
    """Lose some packets between dc1 and dc2, more in one direction, and some from dc3 to dc1."""
    network.lose("dc1", "dc2", 20)
    network.lose("dc2", "dc1", 5)
    network.lose("dc3", "dc1", 10)


def pull(network: Network) -> None:
    network.pull("dc2")


@pytest.mark.long
@pytest.mark.parametrize(
    ("user", "break_network"),
    [("parted", part), ("lossy", make_lossy), ("deaf", deafen), ("pulled", pull)],
)
def test_nodes_work_on_and_become_equal_after_packet_loss(
    cluster: Cluster, network: Network, user: str, break_network: Callable[[Network], None]
) -> None:
    with Load(cluster, user) as load, Idler(cluster.nodes[1], user) as idler:
        load.do(2)
        load.ask(CHANGES)
        break_network(network)
        load.wait()
        load.do(CHANGES // 2)
        network.mend()
        load.check()
    assert idler.heard[b"EXISTS"]
