"""Metrics of terms, of masters and their moves, and of changes that wait for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.errors import UnavailableError
from tests.replication.cluster import HEARTBEAT_S, Cluster, cluster
from tests.replication.metrics import known, refreshed
from tests.replication.slow_disk import delay_writes


async def test_term_is_a_value_and_each_election_counts(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes, refreshed(*nodes.all()):
        await trio.sleep(2 * HEARTBEAT_S)
        registries = {node.sid: node.registry for node in nodes.all()}
        assert len({known(registry, "term") for registry in registries.values()}) == 1
        assert [known(registry, "root") for registry in registries.values()] == [1, 0, 0]
        assert [known(registry, "nodes_reachable") for registry in registries.values()] == [3, 3, 3]
        before, term = known(registries["dc1"], "terms_total"), known(registries["dc1"], "term")
        assert before >= 1
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await trio.sleep(2 * HEARTBEAT_S)
        assert known(registries["dc1"], "terms_total") > before
        assert known(registries["dc1"], "term") == known(registries["dc2"], "term") > term
        assert [known(registry, "nodes_reachable") for registry in registries.values()] == [2, 2, 1]
        assert [known(registry, "root") for registry in registries.values()] == [1, 0, 1]


async def test_term_does_not_settle_while_a_node_cannot_flush(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes, refreshed(nodes["dc1"]):
        registry, goes_on = nodes["dc1"].registry, trio.Event()
        await trio.sleep(2 * HEARTBEAT_S)
        assert known(registry, "term_settled") == 1
        delay_writes(nodes["dc2"], goes_on.wait)
        nodes.isolate("dc3")
        await trio.sleep(5 * HEARTBEAT_S)
        assert known(registry, "term_settled") == 0
        goes_on.set()
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        await trio.sleep(2 * HEARTBEAT_S)
        assert known(registry, "term_settled") == 1


async def moves(nodes: Cluster) -> dict[str, tuple[float, float, float]]:
    """Return how many scopes came to each node, how many left it, and how many moves it refused."""
    return {
        node.sid: (
            known(node.registry, "master_moves_total", direction="here"),
            known(node.registry, "master_moves_total", direction="away"),
            known(node.registry, "master_move_refusals_total"),
        )
        for node in nodes.all()
    }


async def test_moves_of_masters_count_at_both_nodes_and_refusals_at_the_master(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("text")
        await nodes.converged()
        assert await moves(nodes) == {"dc1": (0, 0, 0), "dc2": (0, 0, 0)}
        for node in nodes.all() * 8:  # clients of both nodes use the mailbox
            await node.flag(1)
            await node.mail.store_flags(await node.view(), UidSet.of([1]), removed=frozenset({"\\Seen"}))
        (here, away, refused), other = (await moves(nodes)).values()
        assert refused > 0
        assert here == away == 0
        assert other == (0, 0, 0)
        await nodes["dc1"].coordinator.handover.move_to(await nodes["dc1"].inbox(), "dc2")
        assert await moves(nodes) == {"dc1": (0, 1, refused), "dc2": (1, 0, 0)}


async def test_time_without_a_master_that_can_be_reached_is_observed_once_for_each_change(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes:
        node, goes_on = nodes["dc1"], trio.Event()
        await node.save("text")
        before = waits(node.registry)
        await node.save("known at once")
        count, took_s = waits(node.registry)
        assert (count, took_s) == (before[0] + 1, before[1])
        delay_writes(nodes["dc2"], goes_on.wait)
        nodes.isolate("dc3")  # the term settles once dc2 can flush
        await trio.sleep(20)
        assert not nodes["dc1"].coordinator.elections.machine.settled
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.save, "waits")
            await trio.sleep(5)
            assert waits(node.registry)[0] == count
            goes_on.set()
        assert waits(node.registry)[0] == count + 1
        assert waits(node.registry)[1] == pytest.approx(took_s + 5, abs=1.5)


async def test_change_that_finds_no_master_in_time_is_observed_too(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes:
        node = nodes["dc1"]
        await node.save("text")
        view, (count, took_s), goes_on = await node.view(), waits(node.registry), trio.Event()
        delay_writes(nodes["dc2"], goes_on.wait)
        nodes.isolate("dc3")
        await trio.sleep(20)
        with pytest.raises(UnavailableError):
            await node.mail.store_flags(view, UidSet.of([1]), added=frozenset({"\\Seen"}))
        assert waits(node.registry)[0] == count + 1
        assert waits(node.registry)[1] >= took_s + 29
        goes_on.set()


def waits(registry: CollectorRegistry) -> tuple[float, float]:
    """Return how many changes were observed, and how long they have waited in all."""
    return known(registry, "master_wait_seconds_count"), known(registry, "master_wait_seconds_sum")
