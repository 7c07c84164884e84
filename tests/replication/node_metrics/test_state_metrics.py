"""Metrics of the node as a whole, and rules for all of a node's metrics."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from string import ascii_uppercase

import pytest
import trio
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from replicator.replication import timing
from replicator.replication.node_metrics import NodeMetrics
from replicator.runtime.metrics import HttpMetrics, ImapMetrics, LmtpMetrics
from replicator.tasks import TaskName, TaskState
from replicator.users import UserDirectory
from tests.replication.cluster import HEARTBEAT_S, cluster
from tests.replication.metrics import known, refreshed, value
from tests.store.harness import connection_of

CAPITALS = f"{ascii_uppercase}1"
CHURNING = {"term", "root", "origin", "head", "address"}
"""Labels whose values would change with the state, so that each change would begin another series."""


async def test_help_of_each_metric_is_a_whole_sentence_and_no_label_changes_with_the_state(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes, refreshed(nodes["dc1"]):
        registry = nodes["dc1"].registry
        for door in (LmtpMetrics, ImapMetrics, HttpMetrics):
            door(registry)
        families = [*registry.collect()]
        texts = [family.documentation for family in families]
        assert len(set(texts)) == len(texts) > 60
        fine = [text for text in texts if text.endswith(".") and len(text.split()) > 4 and text[0] in CAPITALS]
        assert [text for text in texts if text not in fine] == []
        labels = {label for family in families for sample in family.samples for label in sample.labels}
        assert not labels & CHURNING
        (info,) = [family for family in families if family.name == "replicator"]
        (sample,) = info.samples
        assert (sample.name, sample.value) == ("replicator_info", 1)
        assert sample.labels == {"sid": "dc1", "cluster": "mail", "version": version("mail-replicator")}


async def test_health_is_known_even_if_nobody_asks_for_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes, refreshed(nodes["dc1"]):
        node, connection = nodes["dc1"], connection_of(nodes["dc1"].store)
        await node.save("text")
        await trio.sleep(2 * HEARTBEAT_S)
        assert known(node.registry, "healthy") == known(node.registry, "serving") == 1
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        await trio.sleep(timing.NODE_METRICS_TRY_EVERY_S + 2 * HEARTBEAT_S)
        assert known(node.registry, "healthy") == 0
        assert known(node.registry, "serving") == 1
        connection.execute("PRAGMA max_page_count = 1000000")
        await trio.sleep(timing.NODE_STATUS_RETRY_EVERY_S + 2 * HEARTBEAT_S)
        assert known(node.registry, "healthy") == 1


async def test_node_tries_its_disk_seldom_for_the_metric(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes, refreshed(nodes["dc1"]):
        node, tried = nodes["dc1"], 0
        try_to_write = node.store.attachments.try_to_write

        def count() -> None:
            nonlocal tried
            tried += 1
            try_to_write()

        monkeypatch.setattr(node.store.attachments, "try_to_write", count)
        await trio.sleep(10 * timing.NODE_METRICS_TRY_EVERY_S)
        assert 9 <= tried <= 10


async def test_damage_makes_a_node_unhealthy_at_the_next_heartbeat(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes, refreshed(nodes["dc1"]):
        node = nodes["dc1"]
        await trio.sleep(2 * HEARTBEAT_S)
        assert known(node.registry, "healthy") == 1
        node.store.damage.found = "a page is damaged"
        await trio.sleep(2 * HEARTBEAT_S)
        assert known(node.registry, "healthy") == 0


@pytest.mark.parametrize("copies", [1, 2])
async def test_copies_that_are_wanted_and_can_be_made(tmp_path: Path, autojump_clock: MockClock, copies: int) -> None:
    async with cluster(tmp_path, autojump_clock, 3, copies=copies) as nodes, refreshed(nodes["dc1"]):
        registry = nodes["dc1"].registry
        await trio.sleep(3 * HEARTBEAT_S)
        assert (known(registry, "copies_wanted"), known(registry, "copies_reachable")) == (copies, 3)
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        await trio.sleep(2 * HEARTBEAT_S)
        assert (known(registry, "copies_wanted"), known(registry, "copies_reachable")) == (copies, 1)


async def test_users_and_tasks_are_shown_as_they_are_now(tmp_path: Path, autojump_clock: MockClock) -> None:
    passwd, states = tmp_path / "users", dict[TaskName, TaskState]()
    users = UserDirectory(passwd)
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node, registry = nodes["dc1"], CollectorRegistry()
        metrics = NodeMetrics(
            registry, node.report, node.coordinator, node.store, node.environment, users=users.summary, tasks=states.get
        )
        await metrics.refresh()
        assert known(registry, "users") == known(registry, "users_digest") == 0
        passwd.write_text("alice:{PLAIN}a\nbob:{PLAIN}b\n", "utf-8")
        states["check"], states["scrub"] = "running", "failed"
        await metrics.refresh()
        assert known(registry, "users") == 2
        digest = known(registry, "users_digest")
        assert digest > 0
        shown = {task: (value(registry, "task_running", task=task), value(registry, "task_failed", task=task))
                 for task in ("check", "scrub", "resync", "undelete", "inventory", "apply")}  # fmt: skip
        assert shown.pop("check") == (1, 0)
        assert shown.pop("scrub") == (0, 1)
        assert set(shown.values()) == {(0, 0)}
        passwd.write_text("alice:{PLAIN}a\nbob:{PLAIN}c\n", "utf-8")
        states["check"] = "done"
        await metrics.refresh()
        assert known(registry, "users") == 2
        assert known(registry, "users_digest") not in {0, digest}
        assert known(registry, "task_running", task="check") == 0
