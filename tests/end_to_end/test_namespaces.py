"""Nodes on machines of their own, as far as the network goes: packets vanish, and nobody is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import trustme

from benchmarks.clusters.cluster import Cluster, Site
from tests.end_to_end.certificates import certificate
from tests.end_to_end.idler import Idler
from tests.end_to_end.load import CHANGES, QUICK_TO_NOTICE, SIDS, Load
from tests.end_to_end.namespaces import Network, why_not

MISSING = why_not()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"nodes in network namespaces are left out: {MISSING}")


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(list(SIDS)) as network:
        yield network


@pytest.fixture(scope="module")
def cluster(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Between machines links need TLS; doors are on each one's own loopback."""
    directory, ca = tmp_path_factory.mktemp("namespaces"), trustme.CA()
    sites = {}
    for sid in SIDS:
        tls = certificate(ca, directory, sid)
        extra = f'[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\nca = "{tls.ca}"\n'
        sites[sid] = Site(network.prefix(sid), network.addresses[sid], extra, partial(network.at, sid))
    users = ["parted", "deaf", "lossy", "pulled"]
    with Cluster(directory / "nodes", users, extra=QUICK_TO_NOTICE, sites=sites) as started:
        yield started


def part(network: Network) -> None:
    network.part("dc1", "dc2")
    network.part("dc1", "dc3")


def deafen(network: Network) -> None:
    """dc3 sends and does not hear dc1."""
    network.lose("dc1", "dc3")


def make_lossy(network: Network) -> None:
    """More is lost one way than the other."""
    network.lose("dc1", "dc2", 20)
    network.lose("dc2", "dc1", 5)
    network.lose("dc3", "dc1", 10)


def pull(network: Network) -> None:
    network.pull("dc2")


@pytest.mark.parametrize(
    ("user", "worsen"),
    [
        ("parted", part),
        ("lossy", make_lossy),
        *(pytest.param(*case, marks=pytest.mark.long) for case in (("deaf", deafen), ("pulled", pull))),
    ],
)
def test_where_packets_vanish_every_part_goes_on_and_all_become_equal(
    cluster: Cluster, network: Network, user: str, worsen: Callable[[Network], None]
) -> None:
    with Load(cluster, user) as load, Idler(cluster.nodes[1], user) as idler:
        load.do(2)
        load.ask(CHANGES)
        worsen(network)
        load.wait()
        load.do(CHANGES // 2)
        network.mend()
        load.check()
    assert idler.heard[b"EXISTS"]
