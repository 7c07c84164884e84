"""The nodes in reach: whose copies count, whether all are there, and when a node has met them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from master_election.links import LinkTable
from protocol.commands import LinkAdvert
from replicator.replication.links.handshake import REBUILDING
from replicator.replication.mastership.reach import Reach
from tests.master_election.adverts import adverts_of
from tests.replication.cluster import cluster, until

TIMEOUT_S = 3


def reach_of(table: LinkTable, *, admitted: bool = True) -> Reach:
    """Return the reach of a node with one peer, dc2."""
    event = trio.Event()
    if admitted:
        event.set()
    return Reach(table, peers={"dc2"}, links=list, removed=(), admitted=event)


def tables(*, linked: bool) -> LinkTable:
    """Return dc1's table, with dc2 in reach or not."""
    near, far = (LinkTable(origin, lambda: 1, 1) for origin in ("dc1.x", "dc2.x"))
    if linked:
        near.neighbour_up("dc2", 100)
        far.neighbour_up("dc1", 100)
        near.receive((*adverts_of(far).values(),), "dc2")
    return near


async def test_node_goes_on_without_peers_that_do_not_come(autojump_clock: MockClock) -> None:  # noqa: ARG001
    reach, began = reach_of(tables(linked=False)), trio.current_time()
    assert not reach.has_all_peers()
    await reach.meet_others(TIMEOUT_S)
    assert reach.met_others.is_set()
    assert trio.current_time() - began == TIMEOUT_S


async def test_node_that_reaches_all_peers_waits_no_longer(autojump_clock: MockClock) -> None:  # noqa: ARG001
    reach, began = reach_of(tables(linked=True)), trio.current_time()
    assert reach.has_all_peers()
    await reach.meet_others(TIMEOUT_S)
    assert trio.current_time() == began


@pytest.mark.parametrize("admitted", [False, True])
async def test_node_has_met_nobody_before_it_serves(*, admitted: bool) -> None:
    reach = reach_of(tables(linked=True), admitted=admitted)
    reach.changed()
    assert reach.met_others.is_set() == admitted


def test_node_of_which_others_tell_is_missed_until_it_is_in_reach() -> None:
    table = tables(linked=True)
    reach = reach_of(table)
    assert reach.has_all_nodes()
    table.receive([LinkAdvert("dc3.x", 1, 1, ())], "dc2")
    assert (reach.has_all_peers(), reach.has_all_nodes()) == (True, False)


def test_peer_that_was_never_met_is_missed() -> None:
    reach = reach_of(tables(linked=False))
    assert (reach.has_all_peers(), reach.has_all_nodes()) == (False, False)


async def test_reach_follows_links_and_configuration(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes.linked()
        reach = nodes["dc1"].coordinator.reach
        assert (reach.copy_holders(), reach.has_all_peers(), reach.has_all_nodes()) == (["dc2", "dc3"], True, True)
        link = nodes["dc1"].coordinator.connections.link("dc2")
        assert link is not None
        link.hello = replace(link.hello, capabilities=(*link.hello.capabilities, REBUILDING))
        assert (reach.has_all_peers(), reach.has_all_nodes()) == (True, False)
        config = nodes["dc1"].coordinator.config
        peers = tuple(peer for peer in config.peers if peer.id != "dc3")
        nodes["dc1"].coordinator.reconfigure(replace(config, peers=peers, node=replace(config.node, removed=("dc3",))))
        await until(reach.has_all_peers)
        assert reach.copy_holders() == ["dc2"], "dc3 is still in reach, by dc2"
        assert "dc3" in nodes["dc1"].coordinator.mastership.table.component
        await nodes.stop("dc2")
        await until(lambda: not reach.has_all_peers())
        assert reach.copy_holders() == []
