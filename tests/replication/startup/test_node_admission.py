"""Nodes with a new database serve nobody before they have met their cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Links
from replicator.errors import NotReadyError, UnavailableError
from replicator.mail.mailstore import NewMessage
from replicator.replication import timing
from replicator.replication.startup.node_admission import NEW
from replicator.replication.writes.requests import CreateRequest
from tests.replication.cluster import TIMEOUT_S, USER, Cluster, Node, cluster, until
from tests.replication.stranger import approach


@asynccontextmanager
async def cluster_with_empty_node(tmp_path: Path, clock: MockClock) -> AsyncIterator[Cluster]:
    """Run a cluster with mail. dc3 has lost its disk and is isolated."""
    async with cluster(tmp_path, clock) as nodes:
        await nodes["dc1"].save("before")
        await nodes.converged()
        await nodes.stop("dc3")
        nodes.erase("dc3")
        nodes.waits_when_new = True
        nodes.isolate("dc3")
        await nodes.start("dc3")
        await trio.sleep(3 * TIMEOUT_S)
        yield nodes


@asynccontextmanager
async def new_nodes(tmp_path: Path, clock: MockClock, *start: str) -> AsyncIterator[Cluster]:
    """Run these of three nodes, all with new disks."""
    async with cluster(tmp_path, clock, start=["dc1"]) as nodes:
        await nodes.stop("dc1")
        nodes.erase("dc1")
        nodes.waits_when_new = True
        for sid in start:
            await nodes.start(sid)
        yield nodes


def has_begun(node: Node) -> bool:
    return node.coordinator.admission.begun.is_set()


async def serving(node: Node) -> float | None:
    with trio.move_on_after(1):
        await node.metrics.run(0.5)
    return node.registry.get_sample_value("replicator_serving")


async def check_refuses(node: Node) -> None:
    """Check that the node neither shows nor takes anything."""
    for work in (
        node.mail.wait_ready,
        lambda: node.mail.folders(USER),
        lambda: node.mail.folder(USER, "INBOX"),
        lambda: node.mail.subscriptions(USER),
        lambda: node.mail.create_folder(USER, "New"),
        lambda: node.mail.subscribe(USER, "New", subscribed=True),
    ):
        with pytest.raises(NotReadyError, match="this node is new"):
            await work()
    assert not await node.digests()


async def test_empty_node_serves_nobody_until_it_has_met_its_cluster(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster_with_empty_node(tmp_path, autojump_clock) as nodes:
        await check_refuses(nodes["dc3"])
        before = await nodes["dc1"].inbox()
        with pytest.raises(UnavailableError):
            await nodes["dc3"].mail.save(before, NewMessage(b"too early"))
        nodes.rejoin("dc3")
        await nodes.linked()
        await until(lambda: has_begun(nodes["dc3"]))
        await nodes.converged()
        assert await nodes["dc3"].inbox() == before
        assert await nodes["dc3"].save("after") == 2
        await nodes.stop("dc3")
        nodes.isolate("dc3")
        await nodes.start("dc3")  # once begun, it serves alone although it is cut off
        await trio.sleep(2 * TIMEOUT_S)
        assert await nodes["dc3"].inbox() == before
        nodes.rejoin("dc3")
        await nodes.linked()


async def test_empty_node_reports_which_nodes_it_waits_for(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_with_empty_node(tmp_path, autojump_clock) as nodes:
        node = nodes["dc3"]
        (problem,) = await node.report.healthy()
        assert (await node.report.node_status()).not_serving == (problem,)
        for words in ("dc1 (not reached), dc2 (not reached)", "--new-cluster", "not mounted"):
            assert words in problem
        assert await serving(node) == 0
        assert [record.getMessage() for record in caplog.records].count(problem) == 1
        await trio.sleep(timing.ADMISSION_TOLD_EVERY_S)
        assert [record.getMessage() for record in caplog.records].count(problem) == 2
        nodes.rejoin("dc3")
        await until(lambda: has_begun(node))
        assert not await node.report.healthy()
        assert not (await node.report.node_status()).not_serving
        assert await serving(node) == 1


async def test_new_nodes_begin_when_all_are_linked(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with new_nodes(tmp_path, autojump_clock, "dc1", "dc2") as nodes:
        await trio.sleep(5 * TIMEOUT_S)
        for node in nodes.all():
            await check_refuses(node)
            (problem,) = await node.report.healthy()
            assert "(new, too), dc3 (not reached)" in problem
        await nodes.start("dc3")
        await nodes["dc3"].inbox()  # a client that comes soon after the start waits
        await nodes.linked()
        await until(lambda: all(map(has_begun, nodes.all())))
        assert await nodes["dc2"].save("the first") == 1
        await nodes.converged()


async def test_new_node_learns_of_its_cluster_through_another_new_node(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster_with_empty_node(tmp_path, autojump_clock) as nodes:
        before = await nodes["dc1"].inbox()
        await nodes.stop("dc2")
        nodes.erase("dc2")
        nodes.isolate("dc2")
        await nodes.start("dc2")
        nodes.network.mend(("dc2", "dc3"))
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        await trio.sleep(2 * TIMEOUT_S)
        await check_refuses(nodes["dc2"])
        await check_refuses(nodes["dc3"])
        nodes.network.mend(("dc1", "dc2"))
        await until(lambda: has_begun(nodes["dc3"]))
        await nodes.converged()
        assert await nodes["dc3"].inbox() == before
        nodes.rejoin("dc3")
        await nodes.linked()


async def test_new_node_begins_with_a_peer_that_has_begun_without_mail(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_nodes(tmp_path, autojump_clock) as nodes:
        nodes.waits_when_new = False
        await nodes.start("dc1")  # as with --new-cluster
        nodes.waits_when_new = True
        await nodes.start("dc2")
        await until(lambda: has_begun(nodes["dc2"]))
        await nodes.linked(["dc1", "dc2"])
        assert await nodes["dc2"].save("the first") == 1


async def test_new_node_numbers_no_changes_of_peers(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with new_nodes(tmp_path, autojump_clock, "dc1", "dc2") as nodes:
        await nodes.linked(["dc1", "dc2"])
        user = "somebody"
        change = CreateRequest(user, "Folder", bytes(16), lambda: bytes(16))
        with pytest.raises(UnavailableError):
            await nodes["dc2"].coordinator.carry_out(change)
        assert not await nodes["dc2"].digests()


async def test_second_hello_of_a_peer_does_not_count_as_another_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with new_nodes(tmp_path, autojump_clock, "dc2") as nodes:
        stranger = await approach(nodes)
        await stranger.greet(capabilities=(NEW,))
        await stranger.send(Links(()))
        await until(lambda: bool(nodes["dc2"].coordinator.connections.links))
        assert not has_begun(nodes["dc2"])
        await stranger.send(nodes["dc2"].coordinator.connections.hello())
        assert await stranger.ended()
        assert not has_begun(nodes["dc2"])
