"""Metrics of entries, of merges and conflicts, and of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import Dot, UidSet
from replicator.config import UidConflict
from replicator.replication import timing
from replicator.replication.convergence.fork_merge import ForkMerger
from replicator.replication.writes.requests import SaveRequest
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Commit
from resync.entry import Entry, MailDel
from tests.replication.cluster import HEARTBEAT_S, USER, Cluster, Node, cluster
from tests.replication.metrics import known, refreshed


async def test_entries_are_counted_at_each_node_that_has_them(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes, refreshed(*nodes.all()):
        await nodes["dc1"].save("one")
        await nodes["dc1"].save("two")
        await nodes["dc1"].flag(1)
        await nodes.converged()
        await trio.sleep(2 * HEARTBEAT_S)
        for node in nodes.all():
            assert known(node.registry, "messages_added_total") == 2
            assert known(node.registry, "log_entries_total") == known(node.registry, "log_kept_entries") == 4
            assert known(node.registry, "applied_entries_total") == 4
            for name in ("waiting_entries", "forks_waiting", "oldest_fork_seconds", "merges_total"):
                assert known(node.registry, name) == 0


async def test_entry_that_names_another_history_counts_once_however_often_it_is_tried(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        one, other = (Entry(Dot("dc1.a", seq), (), 0, 1, USER, bytes(16), 1, (MailDel(UidSet()),)) for seq in (1, 2))
        for tried in ({one.dot: one}, {one.dot: one, other.dot: other}, {other.dot: other}):
            node.metrics._log.committed(Commit(mismatched=tried))
        assert known(node.registry, "history_mismatches_total") == 2
        node.metrics._log.committed(Commit(applied=[one], absorbed=[other.dot]))
        assert not node.metrics._log._mismatched, "those that no longer wait need no memory"


def conflicts(nodes: Cluster) -> dict[str, float]:
    """Return the conflicts of each kind that all nodes have counted together."""
    kinds = ("uid", "flags", "delivery", "folder_name", "uidvalidity")
    found = {kind: sum(known(node.registry, "conflicts_total", kind=kind) for node in nodes.all()) for kind in kinds}
    return {kind: number for kind, number in found.items() if number}


async def part(nodes: Cluster) -> None:
    await nodes.converged()
    nodes.isolate("dc3")
    await nodes.linked(["dc1", "dc2"], ["dc3"])


async def meet(nodes: Cluster) -> None:
    nodes.rejoin("dc3")
    await nodes.linked()
    await nodes.converged()


async def unseen(node: Node) -> None:
    await node.mail.store_flags(await node.view(), UidSet.of([1]), removed=frozenset({"\\Seen"}))


async def test_conflicts_count_by_kind_where_the_merge_is_made(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes, refreshed(*nodes.all()):
        dc1, _, dc3 = nodes.all()
        await dc1.save("both have it")
        await dc1.flag(1)
        await part(nodes)
        await dc1.save("one")
        await dc3.save("other")
        await dc3.flag(1, added=["\\Flagged"])
        await unseen(dc1)
        await meet(nodes)
        assert conflicts(nodes) == {"uid": 2}
        await part(nodes)
        for node in (dc1, dc3):
            await node.flag(1, added=["\\Draft"])
        await meet(nodes)
        assert conflicts(nodes) == {"uid": 2, "flags": 1}
        await part(nodes)
        for node in (dc1, dc3):
            inbox = await node.inbox()
            key = MailboxKey(USER, inbox.mailbox_id, inbox.uidvalidity)
            await node.coordinator.submit(SaveRequest(key, b"delivered twice!", 1_000, (), StoredBody.of(b"retried")))
        await meet(nodes)
        assert conflicts(nodes) == {"uid": 3, "flags": 1, "delivery": 1}
        made = [known(node.registry, "merges_made_total") for node in nodes.all()]
        assert sum(made) == 3
        assert [known(node.registry, "merges_total") for node in nodes.all()] == [3, 3, 3]


async def test_folders_of_one_name_and_uidvalidities_that_rise_count(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 3, uid=UidConflict.UIDVALIDITY) as nodes, refreshed(*nodes.all()):
        dc1, _, dc3 = nodes.all()
        await dc1.save("both have it")
        await part(nodes)
        for node in (dc1, dc3):
            await node.mail.create_folder(USER, "Work")
        await meet(nodes)
        assert conflicts(nodes) == {"folder_name": 1, "uidvalidity": 1}
        await part(nodes)
        for node in (dc1, dc3):
            await node.save(node.sid)
        await meet(nodes)
        assert conflicts(nodes) == {"folder_name": 1, "uidvalidity": 2, "uid": 3}


async def test_fork_waits_until_its_master_joins_it_and_its_age_grows(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 3) as nodes:
        for user in ("alice", "bob"):
            await nodes["dc1"].save("both have it", user=user)
        await part(nodes)
        for node in (nodes["dc1"], nodes["dc3"]):
            for user in ("alice", "bob"):
                await node.save(node.sid, user=user)
        with monkeypatch.context() as patch:
            patch.setattr(ForkMerger, "join_branches", do_nothing)
            patch.setattr(ForkMerger, "join_shown", do_nothing)
            nodes.rejoin("dc3")
            await nodes.linked()
            await check_forks(nodes.all(), 10)
            await nodes.stop("dc3")
            await nodes.start("dc3")
            await check_forks([nodes["dc3"]], 10)
            await check_forks([nodes["dc1"], nodes["dc2"]], 30)
        await trio.sleep(2 * timing.OVERDUE_S)
        await nodes.converged()
        async with refreshed(*nodes.all()):
            for node in nodes.all():
                assert known(node.registry, "forks_waiting") == known(node.registry, "oldest_fork_seconds") == 0


async def check_forks(nodes: Sequence[Node], age_s: float) -> None:
    """Check that these nodes have two forks, of this age in 10 seconds from now."""
    async with refreshed(*nodes):
        await trio.sleep(10)
        for node in nodes:
            assert known(node.registry, "forks_waiting") == 2
            assert known(node.registry, "waiting_entries") == 2
            assert known(node.registry, "oldest_fork_seconds") == pytest.approx(age_s, abs=3)


async def do_nothing(*_: object) -> None:
    await trio.lowlevel.checkpoint()


async def test_log_that_no_checkpoint_has_is_shown_until_it_has(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes, refreshed(nodes["dc1"]):
        node = nodes["dc1"]
        await node.coordinator.log_truncation.checkpoint_now()
        await node.save("text")
        await trio.sleep(2 * HEARTBEAT_S)
        assert 100 < known(node.registry, "checkpoint_unsaved_bytes") <= known(node.registry, "log_kept_bytes")
        await node.coordinator.log_truncation.checkpoint_now()
        await trio.sleep(2 * HEARTBEAT_S)
        assert known(node.registry, "checkpoint_unsaved_bytes") == 0
        assert 0 < known(node.registry, "checkpoint_age_seconds") < 2 * HEARTBEAT_S + 1
