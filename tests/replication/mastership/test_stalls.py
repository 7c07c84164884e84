"""A stalled node: what its stall detector reports, and what the node does when it goes on."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.config import WhenShort
from replicator.replication.mastership.stall_detector import BEATS, StallDetector
from tests.replication.cluster import HEARTBEAT_S, TIMEOUT_S, Cluster, Node, cluster, until
from tests.replication.mastership.masters import master

MAY_MISS_S = 3.0


class Machine:
    """A machine with a stall detector, whose reports it keeps."""

    def __init__(self) -> None:
        self.suspended_s = 0.0
        self.missed: list[float] = []
        self.was_missing: list[bool] = []
        self.detector = StallDetector(MAY_MISS_S, suspended_s=lambda: self.suspended_s, went_on=self._went_on)

    def _went_on(self, after_s: float) -> None:
        self.missed.append(after_s)
        self.was_missing.append(self.detector.is_missing)


async def test_detector_that_beats_in_time_reports_no_stall(autojump_clock: MockClock) -> None:
    machine = Machine()
    with trio.move_on_after(60):
        await machine.detector.run()
    assert autojump_clock.current_time() >= 60
    assert not machine.missed
    assert not machine.detector.is_missing


async def test_short_pause_is_no_stall(mock_clock: MockClock) -> None:
    machine = Machine()
    for _ in range(10):
        mock_clock.jump(MAY_MISS_S - 0.1)
        assert not machine.detector.is_missing
        machine.detector.beat()
    assert not machine.missed


@pytest.mark.parametrize("sleeps", [True, False])
async def test_stall_is_reported_once_before_the_node_counts_as_awake(mock_clock: MockClock, *, sleeps: bool) -> None:
    """After a stop of the process trio's clock has advanced; after a sleep of the machine it has not."""
    machine = Machine()
    if sleeps:
        machine.suspended_s = 3600
    else:
        mock_clock.jump(3600)
    assert await trio.to_thread.run_sync(lambda: machine.detector.is_missing)
    machine.detector.beat()
    assert machine.missed == [3600]
    assert machine.was_missing == [True]
    assert not machine.detector.is_missing
    machine.detector.beat()
    assert machine.missed == [3600]


async def test_next_beat_finds_a_stall(autojump_clock: MockClock) -> None:
    machine = Machine()
    assert autojump_clock.current_time() < 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(machine.detector.run)
        await trio.sleep(1)
        machine.suspended_s = MAY_MISS_S
        await trio.sleep(1.5 * MAY_MISS_S / BEATS)  # a beat at the same moment may run before or after this task
        assert len(machine.missed) == 1
        nursery.cancel_scope.cancel()


# ---- nodes


def term(node: Node) -> int:
    return node.coordinator.mastership.masters.term


def links(node: Node) -> set[object]:
    return set(node.coordinator.connections.links)


async def with_master(nodes: Cluster, sid: str) -> Node:
    await nodes[sid].save("first")
    await nodes.converged()
    assert await master(nodes) == sid
    return nodes[sid]


async def test_stall_that_peers_do_not_notice_ends_no_term(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        node = await with_master(nodes, "dc1")
        before = term(node), links(node)
        nodes.suspended_s["dc1"] += TIMEOUT_S / 2
        await node.save("at once")
        await trio.sleep(2 * TIMEOUT_S)
        assert (term(node), links(node)) == before


async def test_master_numbers_in_a_new_term_after_its_machine_slept(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        node = await with_master(nodes, "dc1")
        before, former = term(node), links(node)
        nodes.suspended_s["dc1"] += 3600
        assert await node.save("after") == 2
        assert term(node) > before
        assert node.component == set(nodes.sids)
        assert not links(node) & former
        await nodes.converged()
        assert "this node stood still for 3600." in caplog.text
        assert "link to dc2 is down: this node closed the connection" in caplog.text


async def test_isolated_node_goes_on_alone_after_stall_and_timeout(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        node = await with_master(nodes, "dc1")
        nodes.isolate("dc1")
        nodes.suspended_s["dc1"] += 3600
        began = trio.current_time()
        await node.save("alone")
        took_s = trio.current_time() - began
        assert TIMEOUT_S <= round(took_s, 6) < TIMEOUT_S + HEARTBEAT_S
        nodes.rejoin("dc1")
        await nodes.converged()


async def test_node_without_peers_goes_on_at_once_after_a_stall(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, size=1) as nodes:
        node = await with_master(nodes, "dc1")
        nodes.suspended_s["dc1"] += 3600
        began = trio.current_time()
        await node.save("alone")
        assert trio.current_time() - began < HEARTBEAT_S


@pytest.mark.parametrize("when_short", list(WhenShort))
async def test_change_numbered_before_a_stall_waits_for_its_copies(
    tmp_path: Path, autojump_clock: MockClock, when_short: WhenShort
) -> None:
    """Right after a stall the node must not conclude that it can reach no other node."""
    async with cluster(tmp_path, autojump_clock, when_short=when_short) as nodes:
        node = await with_master(nodes, "dc1")
        for other in ("dc2", "dc3"):
            nodes.network.road("dc1", other).hold()
        answered = trio.Event()

        async def client() -> None:
            await node.save("numbered")
            answered.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client)
            view = await node.view()
            await until(lambda: len(view.messages) == 2)
            nodes.suspended_s["dc1"] += 3600
            await trio.sleep(HEARTBEAT_S)
            assert not answered.is_set()
            for other in ("dc2", "dc3"):
                nodes.network.road("dc1", other).release()
            await answered.wait()
        held = [other.sid for other in nodes.all() if "numbered" in (await other.bodies()).values()]
        assert len(held) > 1


async def test_nodes_go_on_after_their_common_host_stalled(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        node = await with_master(nodes, "dc2")
        autojump_clock.jump(3600)
        assert await node.save("after") == 2
        await nodes.linked()
        await nodes.converged()
