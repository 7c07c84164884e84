"""Nodes whose databases have lost rows on which other rows depend."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.errors import DataError, UnavailableError
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.store import Store
from replicator.tasks import ResyncOptions
from tests.replication.cluster import USER, Cluster, Node, cluster, until
from tests.replication.log.truncating import SAID_S, checkpoint, forget_log, log_entries
from tests.replication.tasks.running import check_at, resync_at
from tests.store.damaging import damage
from tests.store.harness import check_tally, guid, saving

LOST_CHAIN = "DELETE FROM chain WHERE uidvalidity > 0"
LOST_TREE = "DELETE FROM chain WHERE uidvalidity = 0"
LOST_ROWS = ("DELETE FROM by_uid", "DELETE FROM by_guid")


async def fill_and_truncate(nodes: Cluster) -> None:
    """Save three messages, and truncate all logs."""
    for number, sid in enumerate(nodes.sids):
        await nodes[sid].save(f"text {number}")
    await nodes.converged()
    await trio.sleep(SAID_S)
    for node in nodes.all():
        await checkpoint(node)
        assert await log_entries(node) == 0


async def restart_damaged(nodes: Cluster, sid: str, *statements: str) -> Node:
    await nodes.stop(sid)
    damage(nodes.data(sid) / "node.db", *statements)
    await nodes.start(sid)
    return nodes[sid]


@pytest.mark.parametrize("more", [(), LOST_ROWS], ids=["row", "rows"])
async def test_mailbox_without_its_chain_row_is_refused_and_comes_from_peers(
    tmp_path: Path, autojump_clock: MockClock, more: tuple[str, ...]
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fill_and_truncate(nodes)
        shown = await nodes["dc2"].bodies()
        nodes.isolate("dc1")
        alone = await restart_damaged(nodes, "dc1", LOST_CHAIN, *more)
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        end = await alone.store.read(queries.log_end)
        with pytest.raises(UnavailableError, match="check --repair"):
            await alone.save("alone")
        with pytest.raises(UnavailableError, match="check --repair"):
            await alone.view()
        with pytest.raises(UnavailableError, match="check --repair"):
            await alone.mail.status(await alone.inbox())
        assert await alone.store.read(queries.log_end) == end
        nodes.rejoin("dc1")
        await nodes.linked()
        assert await alone.save("together") == 4
        await nodes.converged()
        assert await alone.bodies() == shown | {4: "together"} == await nodes["dc2"].bodies()


async def restart_without_row(nodes: Cluster, sid: str, lost: str, *, alone: bool = False) -> Node:
    """Restart a node, with its links or alone, without a row of table chain, when no node has a log or a checkpoint."""
    for number in range(3):
        await nodes["dc1"].save(f"text {number}")
    await nodes["dc2"].expunge(3)
    await nodes.converged()
    for node in nodes.all():
        await forget_log(node)
    if alone:
        nodes.isolate(sid)
    return await restart_damaged(nodes, sid, lost)


@pytest.mark.parametrize("lost", [LOST_CHAIN, LOST_TREE], ids=["mailbox", "tree"])
async def test_mailbox_without_its_chain_row_is_adopted_when_entries_wait(
    tmp_path: Path, autojump_clock: MockClock, lost: str
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        damaged = await restart_without_row(nodes, "dc3", lost)
        await nodes.linked()
        await nodes["dc1"].save("later")
        await nodes["dc2"].mail.create_folder(USER, "Work")
        await nodes.converged()
        assert await damaged.bodies() == await nodes["dc1"].bodies()
        assert await damaged.waiting() == 0


@pytest.mark.parametrize("lost", [LOST_CHAIN, LOST_TREE], ids=["mailbox", "tree"])
async def test_mailbox_without_its_chain_row_is_adopted_at_the_start(
    tmp_path: Path, autojump_clock: MockClock, lost: str
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        damaged = await restart_without_row(nodes, "dc3", lost)
        await nodes.linked()
        await nodes.converged()
        assert (await check_at(damaged)).damage == {}
        assert await damaged.bodies() == await nodes["dc1"].bodies()


@pytest.mark.parametrize("lost", [LOST_CHAIN, LOST_TREE], ids=["mailbox", "tree"])
async def test_check_removes_nothing_and_resync_restores_a_lost_chain_row(
    tmp_path: Path, autojump_clock: MockClock, lost: str
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        damaged = await restart_without_row(nodes, "dc2", lost, alone=True)
        await nodes.linked(["dc1"], ["dc2"])
        await until(lambda: damaged.coordinator.readiness.problem() is None)  # so nothing is compared when it is linked
        rows = "SELECT (SELECT COUNT(*) FROM by_uid), (SELECT COUNT(*) FROM folder)"
        assert await damaged.store.read(lambda reader: reader.execute(rows).fetchone()) == (2, 1)
        checked = await check_at(damaged, repair=True)
        assert checked.damage["chain"] == 1
        assert checked.repaired == 0
        assert "`replicator resync" in checked.findings[0].what
        assert await damaged.store.read(lambda reader: reader.execute(rows).fetchone()) == (2, 1)
        nodes.rejoin("dc2")
        await nodes.linked()
        status = await resync_at(damaged, ResyncOptions(USER))
        folder = "INBOX" if lost == LOST_CHAIN else None
        assert [(one.peer, one.folder, one.done) for one in status.differences] == [("dc1", folder, "adopted here")]
        await nodes.converged()
        assert (await check_at(damaged, repair=True)).damage == {}
        assert await damaged.save("after") == 4
        await nodes.converged()


async def test_node_does_not_start_without_its_origin_rows(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("text")
        await nodes.converged()
        await nodes.stop("dc2")
        path = nodes.data("dc2") / "node.db"
        damage(path, "DELETE FROM origin WHERE name LIKE 'dc1%'")
        with pytest.raises(DataError, match="the database is damaged: the log has entries of dc1"):
            async with Store.open(path, "dc2.b", nodes.environment("dc2")):
                pass


async def test_reduced_origin_counter_makes_the_node_unhealthy_but_ends_no_link(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        node = nodes["dc2"]
        await node.save("text")
        await nodes.converged()
        link = node.coordinator.connections.link("dc1")
        node.damage("UPDATE origin SET seq = seq - 1 WHERE name LIKE 'dc2%'")
        with pytest.raises(ZeroDivisionError):
            await node.store.write(lambda _: 1 // 0)  # the writer loads its memory again
        with pytest.raises(UnavailableError):
            await node.store.write(saving(b"more", guid(1), MailboxKey(USER, guid(2), 7)))
        (problem,) = await node.report.healthy()
        assert "replicator rebuild --from-peers" in problem
        assert node.coordinator.connections.link("dc1") is link is not None
        node.damage("UPDATE origin SET seq = seq + 1 WHERE name LIKE 'dc2%'")


async def test_mailbox_that_is_adopted_anew_counts_once_for_its_user(tmp_path: Path, autojump_clock: MockClock) -> None:
    def fail(_tx: Transaction) -> None:
        raise RuntimeError("the writer forgets what it has in memory")

    async with cluster(tmp_path, autojump_clock) as nodes:
        for number in range(3):
            await nodes["dc1"].save(f"text {number}")
        await nodes.converged()
        for node in nodes.all():
            await forget_log(node)
        damaged = nodes["dc3"]
        assert (await damaged.mail.quota(USER)).messages == 3
        damaged.damage(LOST_CHAIN)
        with pytest.raises(RuntimeError):
            await damaged.store.write(fail)
        await resync_at(damaged, ResyncOptions(USER))
        assert (await damaged.mail.quota(USER)).messages == 3
        await nodes.converged()


async def test_sum_of_what_is_shown_is_right_after_a_row_was_lost_at_run_time(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    def lose(tx: Transaction) -> None:
        tx.connection.execute(LOST_CHAIN)
        tx.memory.chains.clear()

    async with cluster(tmp_path, autojump_clock) as nodes:
        await fill_and_truncate(nodes)
        node = nodes["dc1"]
        await node.store.count()
        await node.store.write(lose)
        await resync_at(node, ResyncOptions(USER))
        await nodes.converged()
        await node.store.count()
        check_tally(node.store)
