"""Clients wait for the acknowledgements of all nodes but lagging peers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import Dot
from replicator.config import DurabilityConfig, WhenShort
from replicator.replication.writes.durability import Durability
from replicator.replication.writes.lagging_peers import LaggingPeers
from tests.replication.cluster import TIMEOUT_S, Node, cluster
from tests.replication.log.truncating import forget_log, logs_agree

COMING_S, STAYING_S = 4.0, 10.0


def lags(node: Node, sid: str) -> bool:
    return sid in node.coordinator.lagging_peers


async def test_new_peer_has_time_to_catch_up(mock_clock: MockClock) -> None:
    lagging_peers = LaggingPeers(lambda _: {"dc1.a": 5, "dc1.b": 3}, COMING_S, STAYING_S)
    lagging_peers.came("dc2")
    assert "dc2" not in lagging_peers
    lagging_peers.look("dc2", {"dc1.a": 5, "dc1.b": 2})  # entries of a past run count, too
    mock_clock.jump(COMING_S + 1)
    assert "dc2" in lagging_peers


async def test_peer_that_caught_up_in_time_is_waited_for(mock_clock: MockClock) -> None:
    lagging_peers = LaggingPeers(lambda _: {"dc1.a": 5}, COMING_S, STAYING_S)
    lagging_peers.came("dc2")
    for _ in range(20):
        lagging_peers.look("dc2", {"dc1.a": 5, "dc2.a": 0})
        mock_clock.jump(1)
        assert "dc2" not in lagging_peers


async def test_peer_lags_until_its_backlog_is_short(mock_clock: MockClock) -> None:
    """Otherwise clients would wait while the peer takes in what was written while it caught up."""
    ours = {"dc1.a": 1000}
    lagging_peers = LaggingPeers(lambda _: ours, COMING_S, STAYING_S)
    lagging_peers.came("dc2")
    mock_clock.jump(1000)
    ours = {"dc1.a": 1500}
    lagging_peers.look("dc2", {"dc1.a": 1000})
    assert "dc2" in lagging_peers
    mock_clock.jump(STAYING_S + 1)
    ours = {"dc1.a": 1510}
    lagging_peers.look("dc2", {"dc1.a": 1500})
    assert "dc2" in lagging_peers
    mock_clock.jump(1)
    lagging_peers.look("dc2", {"dc1.a": 1509})
    assert "dc2" in lagging_peers
    lagging_peers.look("dc2", {"dc1.a": 1510})
    assert "dc2" not in lagging_peers


async def test_peer_that_stops_taking_in_entries_lags(mock_clock: MockClock) -> None:
    """Clients of all other nodes would wait in vain for such a peer, for example one whose disk is full."""
    ours = {"dc1.a": 5}
    lagging_peers = LaggingPeers(lambda _: ours, COMING_S, STAYING_S)
    lagging_peers.came("dc2")
    lagging_peers.look("dc2", {"dc1.a": 5})
    ours = {"dc1.a": 6}
    lagging_peers.look("dc2", {"dc1.a": 5})
    mock_clock.jump(STAYING_S - 1)
    lagging_peers.look("dc2", {"dc1.a": 5})
    assert "dc2" not in lagging_peers
    mock_clock.jump(2)
    assert "dc2" in lagging_peers
    lagging_peers.look("dc2", {"dc1.a": 6})
    lagging_peers.look("dc2", {"dc1.a": 6})
    assert "dc2" not in lagging_peers


async def test_flapping_link_does_not_hide_a_lagging_peer(mock_clock: MockClock) -> None:
    lagging_peers = LaggingPeers(lambda _: {"dc1.a": 5}, COMING_S, STAYING_S)
    for _ in range(3):
        lagging_peers.came("dc2")
        mock_clock.jump(COMING_S / 2)
    assert "dc2" in lagging_peers
    lagging_peers.went("dc2")
    assert "dc2" not in lagging_peers
    lagging_peers.came("dc2")
    assert "dc2" not in lagging_peers


@pytest.mark.long
async def test_distant_node_that_adopted_everything_is_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    """dc1 gets no ACK of dc3 for the entries of dc1's past run. It must not call dc3 lagging for that, and answer OK
    with two copies of three for ever.
    """
    async with cluster(tmp_path, autojump_clock, 3, copies=3) as nodes:
        await nodes.make_line()
        for number in range(5):
            await nodes["dc1"].save(f"{number}")
        await nodes.converged()
        await nodes.stop("dc1")
        await nodes.start("dc1")
        await nodes.linked()
        await nodes["dc1"].save("in this run")
        await nodes.converged()
        await nodes.stop("dc3")
        nodes.erase("dc3")
        for sid in ("dc1", "dc2"):
            await forget_log(nodes[sid])
        await nodes.start("dc3")
        await nodes.linked()
        await logs_agree(nodes)
        assert nodes["dc3"].store.context == nodes["dc1"].store.context
        await trio.sleep(600)
        assert nodes["dc1"].component == {"dc1", "dc2", "dc3"}
        await nodes["dc1"].save("has compared the mailbox before")
        await nodes.converged()
        nodes.network.road("dc3", "dc2").hold()  # no ACK of dc3 for new entries arrives
        with trio.move_on_after(TIMEOUT_S / 2) as scope:
            await nodes["dc1"].save("new")
        is_behind = lags(nodes["dc1"], "dc3")
        nodes.network.road("dc3", "dc2").release()
        await nodes.linked()
        assert (is_behind, scope.cancelled_caught) == (False, True), (
            f"OK with two copies of three: {is_behind=}, {scope=}"
        )


@pytest.mark.long
async def test_clients_do_not_wait_for_a_distant_node_with_a_new_disk(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The node's old acknowledgements still count at dc1, which has no link to it and so never calls `linked`."""
    async with cluster(tmp_path, autojump_clock, 3, copies=3) as nodes:
        await nodes.make_line()
        dice = random.Random("mail that does not compress well")
        for _ in range(200):
            await nodes["dc1"].save(dice.randbytes(1500).hex())
        await nodes.converged()
        await nodes.stop("dc3")
        nodes.erase("dc3")
        await nodes.linked()
        nodes.network.road("dc2", "dc3").bytes_per_s = 4_000
        await nodes.start("dc3")
        await nodes.linked()
        await trio.sleep(2 * TIMEOUT_S)
        assert sum(nodes["dc3"].store.context.values()) < 200, "it has all of the log"
        reachable = nodes["dc1"].coordinator.durability.reachable
        nodes.network.road("dc2", "dc3").bytes_per_s = None
        await nodes.converged()
        assert reachable == 2


@pytest.mark.long
async def test_clients_do_not_wait_for_a_node_with_a_backlog_of_another(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """dc2's new entries queue behind dc1's, which dc2 passes on to dc3."""
    async with cluster(tmp_path, autojump_clock, 3, copies=3) as nodes:
        await nodes.make_line()
        await nodes["dc1"].save("first")
        await nodes["dc2"].save("first", user="bob")
        await nodes.converged()
        await nodes.stop("dc3")
        await nodes.linked()
        dice = random.Random("mail that does not compress well")
        for _ in range(200):
            await nodes["dc1"].save(dice.randbytes(1500).hex())
        await nodes.converged()
        nodes.network.road("dc2", "dc3").bytes_per_s = 4_000
        await nodes.start("dc3")
        await nodes.linked()
        await trio.sleep(2 * TIMEOUT_S)
        assert sum(nodes["dc3"].store.context.values()) < 200, "it has all of the log"
        reachable = [nodes[sid].coordinator.durability.reachable for sid in ("dc1", "dc2")]
        with trio.move_on_after(20) as scope:
            await nodes["dc2"].save("new", user="bob")
        nodes.network.road("dc2", "dc3").bytes_per_s = None
        await nodes.converged()
        assert (reachable, scope.cancelled_caught) == ([2, 2], False)


async def test_new_peer_is_waited_for_but_not_yet_reported_as_reachable(mock_clock: MockClock) -> None:
    """The number of reachable nodes must not promise a copy that cannot be made yet."""
    lagging_peers = LaggingPeers(lambda _: {"dc1.a": 5}, COMING_S, STAYING_S)
    durability = Durability(DurabilityConfig(2, WhenShort.PROCEED), lambda: ["dc2"], lagging_peers)
    durability.linked("dc2", "dc2.a")
    durability.changed()
    assert durability.reachable == 1
    with trio.move_on_after(0) as scope:
        await durability.wait(Dot("dc1.a", 6))
    assert scope.cancelled_caught
    durability.acknowledged("dc2", {"dc1.a": 5})
    assert durability.reachable == 2
    mock_clock.jump(1)
    assert durability.reachable == 2
