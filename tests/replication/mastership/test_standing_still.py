"""A node that stood still: what its pulse tells, and what the node does when it goes on."""

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
    """What a pulse is told, and what it tells."""

    def __init__(self) -> None:
        self.suspended_s = 0.0
        self.missed: list[float] = []
        self.was_missing: list[bool] = []
        self.pulse = StallDetector(MAY_MISS_S, suspended_s=lambda: self.suspended_s, went_on=self._went_on)

    def _went_on(self, after_s: float) -> None:
        self.missed.append(after_s)
        self.was_missing.append(self.pulse.is_missing)


async def test_a_pulse_that_beats_in_time_misses_nothing(autojump_clock: MockClock) -> None:
    machine = Machine()
    with trio.move_on_after(60):
        await machine.pulse.run()
    assert autojump_clock.current_time() >= 60
    assert not machine.missed
    assert not machine.pulse.is_missing


async def test_a_short_pause_is_none(mock_clock: MockClock) -> None:
    machine = Machine()
    for _ in range(10):
        mock_clock.jump(MAY_MISS_S - 0.1)
        assert not machine.pulse.is_missing
        machine.pulse.beat()
    assert not machine.missed


@pytest.mark.parametrize("sleeps", [True, False])
async def test_a_long_pause_is_told_once_and_before_the_node_counts_as_awake(
    mock_clock: MockClock, *, sleeps: bool
) -> None:
    """A stopped process finds trio's clock ahead; after a sleep of the machine, that clock knows nothing."""
    machine = Machine()
    if sleeps:
        machine.suspended_s = 3600
    else:
        mock_clock.jump(3600)
    assert await trio.to_thread.run_sync(lambda: machine.pulse.is_missing)
    machine.pulse.beat()
    assert machine.missed == [3600]
    assert machine.was_missing == [True]
    assert not machine.pulse.is_missing
    machine.pulse.beat()
    assert machine.missed == [3600]


async def test_a_pause_is_found_by_the_next_beat(autojump_clock: MockClock) -> None:
    machine = Machine()
    assert autojump_clock.current_time() < 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(machine.pulse.run)
        await trio.sleep(1)
        machine.suspended_s = MAY_MISS_S
        await trio.sleep(1.5 * MAY_MISS_S / BEATS)  # a beat at this very moment may come before or after this task
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


async def test_a_pause_that_its_peers_do_not_notice_ends_no_term(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        node = await with_master(nodes, "dc1")
        before = term(node), links(node)
        nodes.suspended_s["dc1"] += TIMEOUT_S / 2
        await node.save("at once")
        await trio.sleep(2 * TIMEOUT_S)
        assert (term(node), links(node)) == before


async def test_a_master_whose_machine_slept_numbers_in_a_new_term_with_new_links(
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


async def test_a_node_that_meets_nobody_again_goes_on_alone_after_the_timeout(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
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


async def test_a_node_without_peers_goes_on_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, size=1) as nodes:
        node = await with_master(nodes, "dc1")
        nodes.suspended_s["dc1"] += 3600
        began = trio.current_time()
        await node.save("alone")
        assert trio.current_time() - began < HEARTBEAT_S


@pytest.mark.parametrize("when_short", list(WhenShort))
async def test_what_was_numbered_before_is_not_called_safe_before_it_is(
    tmp_path: Path, autojump_clock: MockClock, when_short: WhenShort
) -> None:
    """That no node can be reached is not believed of the moment in which the node goes on."""
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


async def test_a_host_that_stops_with_all_its_nodes_goes_on_with_them(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        node = await with_master(nodes, "dc2")
        autojump_clock.jump(3600)
        assert await node.save("after") == 2
        await nodes.linked()
        await nodes.converged()
