"""Peers that are added and removed while nodes run."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Ping
from replicator.config import DurabilityConfig, PeerConfig, WhenShort
from replicator.replication.links import connections
from resync.folder_tree import UIDVALIDITY_STEP
from tests.replication.cluster import HEARTBEAT_S, LOOPBACK, TIMEOUT_S, Cluster, Node, cluster, until
from tests.replication.log.truncating import SAID_S, checkpoint, log_entries
from tests.replication.metrics import refreshed, value
from tests.replication.stranger import HELLO, approach


def tell(node: Node, *peers: str, removed: tuple[str, ...] = (), copies: int = 2) -> None:
    """Have the node take over a configuration with these peers, as at a reload."""
    config = node.coordinator.config
    node.coordinator.reconfigure(
        replace(
            config,
            node=replace(config.node, removed=removed),
            peers=tuple(PeerConfig(peer, LOOPBACK) for peer in peers),
            durability=DurabilityConfig(copies, WhenShort.REFUSE),
        )
    )


async def two_of_three(nodes: Cluster) -> tuple[Node, Node]:
    """Let dc1 and dc2, which run, know nothing of dc3, which does not."""
    tell(nodes["dc1"], "dc2")
    tell(nodes["dc2"], "dc1")
    await nodes.linked(["dc1", "dc2"])
    return nodes["dc1"], nodes["dc2"]


async def test_uidvalidities_are_shared_with_a_new_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, start=["dc1", "dc2"]) as nodes:
        await two_of_three(nodes)
        for sids in (["dc1", "dc2"], ["dc1", "dc2", "dc3"]):
            for place, node in enumerate(nodes.all()):
                tell(node, *(sid for sid in sids if sid != node.sid))
                before = (await node.inbox(f"new at {node.sid} of {len(sids)}")).uidvalidity
                assert before // UIDVALIDITY_STEP % len(sids) == place


async def test_cluster_grows_and_shrinks_while_its_nodes_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, start=["dc1", "dc2"]) as nodes:
        dc1, dc2 = await two_of_three(nodes)
        runs = [dc1.store.origin, dc2.store.origin]
        await dc1.save("two nodes")

        for node, other in ((dc1, "dc2"), (dc2, "dc1")):
            tell(node, other, "dc3", copies=3)
        assert dc1.coordinator.durability.is_short  # a peer counts once it is linked
        nodes.waits_when_new = True
        await nodes.start("dc3")
        await nodes.linked()
        await nodes["dc3"].save("three nodes")
        await nodes.converged()
        for node in (dc1, dc2):
            await until(lambda node=node: not node.coordinator.durability.is_short)  # type: ignore[misc]
            assert await node.bodies() == {1: "two nodes", 2: "three nodes"}

        async with refreshed(dc1):
            tell(dc1, "dc2", removed=("dc3",))
            assert {link.sid for link in dc1.coordinator.connections.links} == {"dc2"}
            await until(lambda: dc1.component == {"dc1", "dc2", "dc3"})  # dc2 has not been told: there is a way to dc3
            await nodes["dc3"].save("in between")
            await nodes.converged()
            assert sorted((await dc1.bodies()).values()) == ["in between", "three nodes", "two nodes"]
            tell(dc2, "dc1", removed=("dc3",))
            assert dc1.coordinator.durability.config.copies == 2
            await until(lambda: dc1.component == dc2.component == {"dc1", "dc2"})
            await until(lambda: nodes["dc3"].component == {"dc3"})
            await nodes.stop("dc3")
            await nodes.linked()
            await dc1.save("two again")
            await nodes.converged()
            await trio.sleep(SAID_S)
            for node in (dc1, dc2):
                assert (await checkpoint(node)).in_force  # the log waits for nobody else
                assert await log_entries(node) == 0
            assert value(dc1.registry, "link_up", "dc2") == 1
            assert value(dc1.registry, "link_up", "dc3") is None
            assert value(dc1.registry, "link_established_total", "dc3") is None
        assert [link.peer for link in (await dc1.report.node_status()).links] == ["dc2"]
        assert runs == [dc1.store.origin, dc2.store.origin]


async def test_node_that_was_removed_by_mistake_is_linked_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes, refreshed(nodes["dc1"]):
        for node, other in ((nodes["dc1"], "dc2"), (nodes["dc2"], "dc1")):
            tell(node, other, removed=("dc3",))
        await until(lambda: nodes["dc3"].component == {"dc3"})
        await nodes["dc1"].save("here", name="INBOX")
        await nodes["dc3"].save("there", user="bob")
        await trio.sleep(2 * HEARTBEAT_S)
        for node, other in ((nodes["dc1"], "dc2"), (nodes["dc2"], "dc1")):
            tell(node, other, "dc3")
        await nodes.linked()
        await nodes.converged()
        assert await nodes["dc1"].bodies(user="bob") == {1: "there"}
        await trio.sleep(2 * HEARTBEAT_S)
        assert value(nodes["dc1"].registry, "link_established_total", "dc3") == 1


async def test_peer_may_be_removed_and_added_again_between_two_looks_at_the_metrics(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes, refreshed(nodes["dc1"]):
        await nodes["dc1"].save("text")
        await trio.sleep(2 * HEARTBEAT_S)
        tell(nodes["dc1"], copies=1)
        tell(nodes["dc1"], "dc2")
        await nodes.linked()
        await trio.sleep(2 * HEARTBEAT_S)
        assert value(nodes["dc1"].registry, "link_established_total", "dc2")
        await nodes.converged()


async def test_peer_that_is_removed_as_its_link_comes_up_is_no_neighbour(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload may run after the link counts as up, and before the task that serves it."""
    async with cluster(tmp_path, autojump_clock, 2, start=["dc1"]) as nodes:
        dc1, told = nodes["dc1"], trio.Event()

        def remove_peer(*_: object) -> None:
            if dc1.coordinator.connections.link("dc2") is not None and not told.is_set():
                told.set()
                tell(dc1, copies=1)

        monkeypatch.setattr(connections, "warn_of_another", remove_peer)
        await nodes.start("dc2")
        await told.wait()
        await trio.sleep(5 * TIMEOUT_S)
        assert dc1.coordinator.mastership.table.neighbours == ()
        assert list(dc1.coordinator.feeds) == []


async def test_disk_of_a_removed_node_is_no_copy(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It can be reached over a node that has not been told, but will be discarded."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        tell(nodes["dc1"], "dc2", removed=("dc3",), copies=3)
        await until(lambda: nodes["dc1"].component == {"dc1", "dc2", "dc3"})
        assert nodes["dc1"].coordinator.durability.reachable == 2
        tell(nodes["dc1"], "dc2", "dc3", copies=3)
        await until(lambda: nodes["dc1"].coordinator.durability.reachable == 3)


async def test_new_address_counts_from_the_next_call_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        links = nodes["dc1"].coordinator.connections
        before = links.link("dc2")
        moved = PeerConfig("dc2", LOOPBACK._replace(port=LOOPBACK.port + 1))
        config = nodes["dc1"].coordinator.config
        nodes["dc1"].coordinator.reconfigure(replace(config, peers=(moved,)))
        await trio.sleep(TIMEOUT_S)
        assert links.link("dc2") is before is not None
        assert links.peers["dc2"].config == moved  # with which the next call is made


async def test_node_with_another_priority_becomes_root(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        tables = [node.coordinator.mastership.table for node in nodes.all()]
        config = nodes["dc3"].coordinator.config
        for priority, root in ((5, "dc3"), (5, "dc3"), (200, "dc1")):
            nodes["dc3"].coordinator.reconfigure(replace(config, node=replace(config.node, priority=priority)))
            await until(lambda root=root: all(table.root == root for table in tables))  # type: ignore[misc]
            await nodes.linked()
            await nodes["dc2"].save(f"under {root}")
        await nodes.converged()


async def test_removed_peer_is_not_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A node that has just started, and one that has stood still, wait for all their peers before they number."""
    async with cluster(tmp_path, autojump_clock, start=["dc1", "dc2"]) as nodes:
        dc1, _ = await two_of_three(nodes)
        tell(dc1, "dc2", "dc3")
        dc1.coordinator.mastership.went_on()
        assert not dc1.coordinator.mastership.has_met
        tell(dc1, "dc2")
        assert dc1.coordinator.mastership.has_met


async def test_new_node_begins_alone_once_its_peers_are_removed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes:
        await nodes.stop("dc2")
        nodes.erase("dc2")
        nodes.waits_when_new = True
        await nodes.start("dc2")
        await trio.sleep(2 * TIMEOUT_S)
        assert "dc1 (not reached)" in str(nodes["dc2"].coordinator.admission.problem())
        tell(nodes["dc2"], copies=1)
        await until(lambda: nodes["dc2"].coordinator.admission.problem() is None)
        assert await nodes["dc2"].save("alone") == 1


async def test_peer_that_is_removed_while_it_connects_gets_no_link(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes:
        stranger = await approach(nodes)
        await stranger.greet()
        tell(nodes["dc2"], copies=1)
        await stranger.send(Ping(), "1")
        assert await stranger.ended()
        assert "the last link to dc1 is down: dc1 has meanwhile left this node's configuration" in caplog.text
        assert nodes["dc2"].coordinator.connections.links == []
        again = await approach(nodes)
        await again.send(HELLO, "hello")
        assert "is not the [[peer]] that 'dc2' expects" in str(await again.next())
        tell(nodes["dc2"], "dc1")
        welcomed = await approach(nodes)
        await welcomed.greet()
        await welcomed.send(Ping(), "1")
        await until(lambda: nodes["dc2"].coordinator.connections.link("dc1") is not None)
