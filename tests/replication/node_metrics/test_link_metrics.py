"""Metrics of links, and of what peers lack."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.config import Address, LogConfig, MastershipConfig
from replicator.replication import timing
from tests.replication.cluster import HEARTBEAT_S, Cluster, Node, cluster
from tests.replication.metrics import known, refreshed

FAR_AWAY = Address("198.51.100.1", 1)
ONE = UidSet.of([1])
BOTH_WAYS = (("dc1", "dc2"), ("dc2", "dc1"))


async def test_lag_of_a_peer_that_has_gone_is_what_it_has_not_confirmed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes, refreshed(*nodes.all()):
        await nodes["dc1"].save("one")
        await nodes["dc2"].save("two", user="bob")  # which dc1 need not send to dc2
        await trio.sleep(2 * HEARTBEAT_S)
        for sid, peer in BOTH_WAYS:
            registry = nodes[sid].registry
            assert known(registry, "link_up", peer) == 1
            assert known(registry, "link_established_total", peer) == 1
            for name in ("lag_entries", "lag_bytes", "lag_seconds", "peer_needs_sync", "send_backlog_entries"):
                assert known(registry, name, peer) == 0
        nodes.isolate("dc2")
        await nodes.linked(["dc1"], ["dc2"])
        await nodes["dc1"].save("three")
        await trio.sleep(10)
        registry = nodes["dc1"].registry
        assert known(registry, "link_up", "dc2") == known(registry, "round_trip_seconds", "dc2") == 0
        assert known(registry, "lag_entries", "dc2") == 1
        assert known(registry, "lag_bytes", "dc2") > len("three")
        assert known(registry, "lag_seconds", "dc2") == pytest.approx(10, abs=1.1)
        nodes.rejoin("dc2")
        await nodes.linked()
        await nodes.converged()
        await trio.sleep(2 * HEARTBEAT_S)
        assert known(registry, "lag_seconds", "dc2") == known(registry, "lag_entries", "dc2") == 0
        assert known(registry, "link_established_total", "dc2") == 2


async def test_lag_of_a_peer_that_has_been_away_since_the_start_counts_from_what_it_had_settled(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("both have it")
        await nodes.converged()
        await trio.sleep(2 * timing.SETTLED_SAY_EVERY_S)
        await nodes.stop("dc2")
        await nodes.linked(["dc1"])
        await nodes["dc1"].save("dc1 has it")
        await trio.sleep(60)
        await nodes.stop("dc1")
        await nodes.start("dc1")
        node = nodes["dc1"]
        async with refreshed(node):  # all metrics are there before doors open
            assert known(node.registry, "lag_entries", "dc2") == 1
            assert known(node.registry, "lag_bytes", "dc2") > len("dc1 has it")
            assert known(node.registry, "lag_seconds", "dc2") == pytest.approx(60, abs=2)
            await trio.sleep(100)
            assert known(node.registry, "lag_seconds", "dc2") == pytest.approx(160, abs=3)
            await nodes.start("dc2")
            await nodes.linked()
            await nodes.converged()
            await trio.sleep(2 * HEARTBEAT_S)
            assert known(node.registry, "lag_seconds", "dc2") == known(node.registry, "lag_entries", "dc2") == 0


async def test_lag_of_a_peer_of_which_nothing_is_known_is_the_whole_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc1"]) as nodes, refreshed(nodes["dc1"]):
        registry = nodes["dc1"].registry
        assert known(registry, "lag_seconds", "dc2") == known(registry, "lag_entries", "dc2") == 0
        await nodes["dc1"].save("text")
        await trio.sleep(50)
        assert known(registry, "lag_entries", "dc2") == 2  # the folder, and the message
        assert known(registry, "lag_seconds", "dc2") == pytest.approx(50, abs=2)


@pytest.mark.long
async def test_lag_grows_even_if_all_that_the_peer_lacks_has_left_the_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    calm = MastershipConfig(heartbeat_s=10.0, timeout_s=40.0)  # hours of virtual time: each heartbeat costs real time
    async with cluster(tmp_path, autojump_clock, log=LogConfig(keep_s=3600.0), mastership=calm) as nodes:
        await nodes["dc3"].save("all have it")
        await nodes.converged()
        await trio.sleep(30)  # for all to say so
        await nodes.stop("dc3")
        await nodes.linked(["dc1", "dc2"])
        await nodes["dc1"].save("two have it")
        async with refreshed(nodes["dc1"]):
            assert known(nodes["dc1"].registry, "peer_needs_sync", "dc3") == 0
        await trio.sleep(10_000)
        for restarts, grows_from_s in ((False, 10_000), (True, 0)):
            if restarts:
                await nodes.stop("dc1")
                await nodes.start("dc1")
                await nodes.linked(["dc1", "dc2"])
            node = nodes["dc1"]
            async with refreshed(node):
                await trio.sleep(100)
                assert needing_sync(node) == {"dc2": 0, "dc3": 1}
                assert known(node.registry, "lag_entries", "dc3") == 1
                assert known(node.registry, "lag_bytes", "dc3") == 0
                assert known(node.registry, "lag_seconds", "dc3") == pytest.approx(grows_from_s + 100, abs=100)
        await nodes.start("dc3")
        await nodes.linked()
        await nodes.converged()
        await trio.sleep(30)
        async with refreshed(nodes["dc1"]):
            await trio.sleep(2 * HEARTBEAT_S)
            assert needing_sync(nodes["dc1"]) == {"dc2": 0, "dc3": 0}
            assert known(nodes["dc1"].registry, "lag_seconds", "dc3") == 0


def needing_sync(node: Node) -> dict[str, float]:
    return {peer: known(node.registry, "peer_needs_sync", peer) for peer in ("dc2", "dc3")}


async def test_entries_and_bytes_over_a_link_are_counted_at_both_ends(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc1"]) as nodes:
        await nodes.stop("dc1")
        nodes.peer_address = FAR_AWAY  # so that links are compressed
        await nodes.start()
        await nodes.linked()
        async with refreshed(*nodes.all()):
            await check_counts(nodes)


async def check_counts(nodes: Cluster) -> None:
    one, other = (node.registry for node in nodes.all())
    await nodes["dc1"].save("text")
    for _ in range(20):
        await nodes["dc1"].flag(1)
        await nodes["dc1"].mail.store_flags(await nodes["dc1"].view(), ONE, removed=frozenset({"\\Seen"}))
    await trio.sleep(2 * HEARTBEAT_S)
    assert known(one, "entries_sent_total", "dc2") == known(other, "entries_received_total", "dc1") == 42
    assert known(other, "entries_sent_total", "dc1") == known(one, "entries_received_total", "dc2") == 0
    plain = known(one, "link_sent_plain_bytes_total", "dc2")
    assert 0 < known(one, "link_sent_bytes_total", "dc2") < plain
    nodes.network.cut(("dc1", "dc2"))
    await nodes.linked(["dc1"], ["dc2"])
    await trio.sleep(2 * HEARTBEAT_S)
    for sender, receiver, here, there in ((one, other, "dc2", "dc1"), (other, one, "dc1", "dc2")):
        for kind in ("bytes_total", "plain_bytes_total"):
            sent = known(sender, f"link_sent_{kind}", here)
            assert sent == pytest.approx(known(receiver, f"link_received_{kind}", there), rel=0.2)
    assert known(one, "link_sent_plain_bytes_total", "dc2") >= plain, "traffic of a link that has ended counts"


async def test_what_is_yet_to_be_sent_is_the_backlog_of_the_link(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes, refreshed(*nodes.all()):
        await nodes["dc1"].save("text")
        await nodes.converged()
        nodes.network.road("dc1", "dc2").bytes_per_s = 20_000
        backlog, output_bytes = list[float](), list[float]()
        for number in range(80):  # 500 KB, of which 200 KB fit into the buffers on the way
            await nodes["dc1"].save(random_text(number))
        for _ in range(40):
            await trio.sleep(HEARTBEAT_S)
            backlog.append(known(nodes["dc1"].registry, "send_backlog_entries", "dc2"))
            output_bytes.append(known(nodes["dc1"].registry, "link_output_bytes", "dc2"))
        assert backlog[0] > 20
        assert backlog == sorted(backlog, reverse=True)
        assert backlog[-1] == output_bytes[-1] == 0
        assert max(output_bytes) > 0
        assert known(nodes["dc1"].registry, "entries_sent_total", "dc2") == 82


def random_text(number: int) -> str:
    """Return a text of 12 KB that compresses to half of its size."""
    return random.Random(number).randbytes(6000).hex()
