"""Nobody waits for nodes that have yet to catch up, and for all others everybody does."""

from __future__ import annotations

from pathlib import Path

import trio
from trio.testing import MockClock

from protocol.values import Dot
from replicator.config import DurabilityConfig, WhenShort
from replicator.replication.writes.durability import Durability
from replicator.replication.writes.lagging_peers import LaggingPeers
from tests.replication.cluster import TIMEOUT_S, Node, cluster
from tests.replication.log.truncating import forget_log, logs_agree

COMING_S, STAYING_S = 4.0, 10.0


def lagging_peers(node: Node, sid: str) -> bool:
    return sid in node.coordinator.lagging_peers


async def test_a_node_that_comes_has_time_to_catch_up(mock_clock: MockClock) -> None:
    lagging_peers = LaggingPeers(lambda _: {"dc1.a": 5, "dc1.b": 3}, COMING_S, STAYING_S)
    lagging_peers.came("dc2")
    assert "dc2" not in lagging_peers
    lagging_peers.look("dc2", {"dc1.a": 5, "dc1.b": 2})  # what was numbered in a past run counts, too
    mock_clock.jump(COMING_S + 1)
    assert "dc2" in lagging_peers


async def test_a_node_that_has_caught_up_in_time_is_waited_for(mock_clock: MockClock) -> None:
    lagging_peers = LaggingPeers(lambda _: {"dc1.a": 5}, COMING_S, STAYING_S)
    lagging_peers.came("dc2")
    for _ in range(20):
        lagging_peers.look("dc2", {"dc1.a": 5, "dc2.a": 0})
        mock_clock.jump(1)
        assert "dc2" not in lagging_peers


async def test_a_node_is_behind_until_a_round_is_short(mock_clock: MockClock) -> None:
    """Else it would be waited for while it takes in what was written during its catching up."""
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


async def test_a_node_that_takes_in_nothing_any_more_is_behind(mock_clock: MockClock) -> None:
    """A full disk, for one: everybody else's clients would wait for it in vain."""
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


async def test_a_link_that_comes_and_goes_hides_nothing(mock_clock: MockClock) -> None:
    lagging_peers = LaggingPeers(lambda _: {"dc1.a": 5}, COMING_S, STAYING_S)
    for _ in range(3):
        lagging_peers.came("dc2")
        mock_clock.jump(COMING_S / 2)
    assert "dc2" in lagging_peers
    lagging_peers.went("dc2")
    assert "dc2" not in lagging_peers
    lagging_peers.came("dc2")
    assert "dc2" not in lagging_peers


async def test_a_node_at_the_end_of_a_line_that_took_over_everything_is_waited_for(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """dc1 never hears that dc3 has what dc1 numbered in its past run: OK for ever with two copies of three."""
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
        nodes.network.road("dc3", "dc2").hold()  # nobody hears of it that dc3 has what is new
        with trio.move_on_after(TIMEOUT_S / 2) as scope:
            await nodes["dc1"].save("new")
        is_behind = lagging_peers(nodes["dc1"], "dc3")
        nodes.network.road("dc3", "dc2").release()
        await nodes.linked()
        assert (is_behind, scope.cancelled_caught) == (False, True), (
            f"OK with two copies of three: {is_behind=}, {scope=}"
        )


async def test_nobody_waits_for_a_far_node_that_comes_back_with_an_empty_disk(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """What it said before its disk was lost still counts: no link to it says `linked`."""
    async with cluster(tmp_path, autojump_clock, 3, copies=3) as nodes:
        await nodes.make_line()
        for number in range(200):
            await nodes["dc1"].save(f"{number} ".join(map(str, range(400, 1000))))
        await nodes.converged()
        await nodes.stop("dc3")
        nodes.erase("dc3")
        await nodes.linked()
        nodes.network.road("dc2", "dc3").bytes_per_s = 4_000
        await nodes.start("dc3")
        await nodes.linked()
        await trio.sleep(2 * TIMEOUT_S)
        assert sum(nodes["dc3"].store.context.values()) < 100
        reachable = nodes["dc1"].coordinator.durability.reachable
        nodes.network.road("dc2", "dc3").bytes_per_s = None
        await nodes.converged()
        assert reachable == 2


async def test_nobody_waits_for_a_node_that_takes_in_much_of_another_behind_a_hub(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """What dc2 numbers stands behind all that dc1 has numbered, which dc2 sends on to dc3."""
    async with cluster(tmp_path, autojump_clock, 3, copies=3) as nodes:
        await nodes.make_line()
        await nodes["dc1"].save("first")
        await nodes["dc2"].save("first", user="bob")
        await nodes.converged()
        await nodes.stop("dc3")
        await nodes.linked()
        for number in range(200):
            await nodes["dc1"].save(f"{number} ".join(map(str, range(400, 1000))))
        await nodes.converged()
        nodes.network.road("dc2", "dc3").bytes_per_s = 4_000
        await nodes.start("dc3")
        await nodes.linked()
        await trio.sleep(2 * TIMEOUT_S)
        assert sum(nodes["dc3"].store.context.values()) < 100
        reachable = [nodes[sid].coordinator.durability.reachable for sid in ("dc1", "dc2")]
        with trio.move_on_after(20) as scope:
            await nodes["dc2"].save("new", user="bob")
        nodes.network.road("dc2", "dc3").bytes_per_s = None
        await nodes.converged()
        assert (reachable, scope.cancelled_caught) == ([2, 2], False)


async def test_a_node_that_has_just_come_is_waited_for_and_not_said_to_be_there(mock_clock: MockClock) -> None:
    """Whoever reads that two copies can be made is to be able to believe it."""
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
