"""Retention: expunged mail and its bodies are removed after their time, and no check takes that for damage."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.config import ContentConfig
from replicator.errors import UnavailableError
from replicator.replication import timing
from replicator.replication.bodies import Bodies
from replicator.replication.bodies.upkeep import retention as retention_module
from replicator.replication.bodies.upkeep.retention import Retention
from replicator.replication.tasks.inspection import Inspection
from replicator.replication.tasks.registry import tasks_of
from replicator.store.attachments.construction import Holding
from replicator.store.bodies import deletion_candidates
from replicator.store.bodies.body_rows import is_here
from replicator.store.gc import expunged
from replicator.store.store import Store
from replicator.tasks import CheckOptions, CheckStatus, ScrubOptions, UndeleteOptions
from resync.entry import MailAdd
from tests.effort import first
from tests.replication.bodies.large_messages import check_holders, contents, message, save
from tests.replication.cluster import HEARTBEAT_S, USER, Cluster, Node, cluster, until, virtual_environment
from tests.replication.metrics import value
from tests.replication.tasks.running import run_task
from tests.store.harness import expunging, guid, open_store, saving

KEEP_S = 100.0
DAY_S = 86_400.0
ROUND_S = max(timing.RETENTION_LEAST_S, KEEP_S / 10)


def expiring_cluster(
    tmp_path: Path, clock: MockClock, size: int = 1, keep_s: float = KEEP_S
) -> AbstractAsyncContextManager[Cluster]:
    return cluster(tmp_path, clock, size, content=ContentConfig(keep_expunged_s=keep_s))


async def is_kept(node: Node, body: str) -> bool:
    return await node.store.read(lambda reader: is_here(reader, sha256(body.encode()).digest()))


async def kept(node: Node) -> int:
    return (await node.store.read(expunged.totals))[0]


async def check(node: Node, options: CheckOptions | ScrubOptions) -> CheckStatus:
    status = await run_task(node, options, CheckStatus)
    assert status.state == "done"
    return status


async def test_expired_message_is_forgotten_and_its_body_removed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with expiring_cluster(tmp_path, autojump_clock, 2) as nodes:
        for body in ("gone", "copied", "stays"):
            await nodes["dc1"].save(body)
        archive = await nodes["dc1"].mail.create_folder(USER, "Archive")
        await nodes["dc1"].mail.copy(await nodes["dc1"].view(), UidSet.of([2]), archive)
        await nodes["dc1"].expunge(1, 2)
        await nodes.converged()
        await trio.sleep(KEEP_S - 1)
        for node in nodes.all():
            assert (await kept(node), await is_kept(node, "gone")) == (2, True)
        await trio.sleep(ROUND_S + 2)
        for node in nodes.all():
            assert (await kept(node), await is_kept(node, "gone")) == (0, False)
            assert await node.bodies() == {3: "stays"}
            assert await node.bodies("Archive") == {1: "copied"}
            for options in (CheckOptions(), ScrubOptions()):
                assert (await check(node, options)).damage == {}


async def test_attachment_is_removed_with_the_last_body_that_has_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with expiring_cluster(tmp_path, autojump_clock, 2) as nodes:
        node = nodes["dc1"]
        for number in (1, 2):
            await save(node, message(number))
        await node.expunge(1)
        await nodes.converged()
        await trio.sleep(KEEP_S + ROUND_S + 1)
        for each in nodes.all():
            assert len(contents(each)) == 1
            assert (await each.bodies())[2].encode() == message(2)
        await node.expunge(2)
        await nodes.converged()
        await trio.sleep(KEEP_S + ROUND_S + 1)
        for each in nodes.all():
            assert contents(each) == []
            await check_holders(each)


async def test_damaged_attachment_row_does_not_stop_retention(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with expiring_cluster(tmp_path, autojump_clock) as nodes:
        node = nodes["dc1"]
        await save(node, message(1))
        node.damage("UPDATE attachment SET holder = 'a', kept = 1")
        await node.expunge(1)
        await trio.sleep(KEEP_S + ROUND_S + 1)
        assert not await is_kept(node, message(1).decode())


@pytest.mark.parametrize(
    ("keep_s", "pause_s"),
    first(2, [(0.0, timing.RETENTION_LEAST_S), (KEEP_S * 5, KEEP_S / 2), (86400 * 14, timing.RETENTION_MOST_S)]),
)
async def test_pause_between_rounds_follows_from_keep_expunged(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, keep_s: float, pause_s: float
) -> None:
    looks: list[float] = []

    async def look(_retention: Retention) -> None:
        looks.append(trio.current_time() - began)
        if len(looks) == 1:
            raise UnavailableError("the disk is away")

    monkeypatch.setattr(Retention, "expire", look)
    began = trio.current_time()
    async with expiring_cluster(tmp_path, autojump_clock, keep_s=keep_s):
        await trio.sleep(2 * pause_s + 1)
    assert [round(at / pause_s) for at in looks] == [1, 2], "also after a failure"


@pytest.mark.long
async def test_body_that_arrives_after_its_message_was_forgotten_is_removed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A slow neighbour may answer a scrub after the message is forgotten."""
    async with expiring_cluster(tmp_path, autojump_clock) as nodes:
        node = nodes["dc1"]
        await node.save("stays")
        assert await node.coordinator.bodies.take_over([b"late", message(1)])
        await trio.sleep(timing.RETENTION_MOST_S)
        assert await is_kept(node, "late")
        await trio.sleep(KEEP_S + 4 * ROUND_S)
        assert not await is_kept(node, "late")
        assert contents(node) == []
        assert await node.bodies() == {1: "stays"}


@asynccontextmanager
async def store_with_retention(
    tmp_path: Path, clock: MockClock, keep_s: float
) -> AsyncIterator[tuple[Store, Retention, list[int]]]:
    """Yield a store with an expunged message, a retention that the test drives, and the error of its clock in ms."""
    environment, ahead_ms = virtual_environment(clock, "dc1"), [0]

    async def let_go(holdings: Iterable[Holding]) -> None:
        assert not list(holdings)

    async with open_store(tmp_path, environment=environment) as store:
        await store.write(saving(b"gone", guid(1)))
        await store.write(expunging(1))
        yield store, Retention(store, keep_s, lambda: environment.clock_ms() + ahead_ms[0], let_go=let_go), ahead_ms


async def rounds_until_forgotten(store: Store, retention: Retention) -> int:
    """Run rounds, one an hour, and return how many it took."""
    count = 0
    while (await store.read(expunged.totals))[0]:
        await trio.sleep(3600)
        await retention.expire()
        count += 1
    return count


@pytest.mark.parametrize("is_known", [False, True])
async def test_clock_that_jumps_ahead_is_followed_slowly(
    tmp_path: Path, autojump_clock: MockClock, *, is_known: bool
) -> None:
    """A node that has not run before the jump may have been off for that long."""
    async with store_with_retention(tmp_path, autojump_clock, 14 * DAY_S) as (store, retention, ahead_ms):
        if is_known:
            await retention.expire()
        ahead_ms[0] = 365 * 86_400_000
        assert 12 <= await rounds_until_forgotten(store, retention) <= 15
        ahead_ms[0] = 0
        await store.write(saving(b"gone", guid(2)))
        await store.write(expunging(2))
        assert await rounds_until_forgotten(store, retention) >= 14 * 24, "the clock is right again"


async def test_slices_of_a_round_rest_between_each_other(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with store_with_retention(tmp_path, autojump_clock, 0.0) as (store, retention, _):
        await trio.sleep(1)
        began = trio.current_time()
        await retention.expire()
        assert (await store.read(expunged.totals))[0] == 0
        assert trio.current_time() >= began + 5 * timing.RETENTION_REST_S, (
            "one slice forgets, three look in tables, and one removes"
        )


async def test_interrupted_removal_is_finished_after_a_restart(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with expiring_cluster(tmp_path, autojump_clock) as nodes:
        node = nodes["dc1"]
        for body in ("gone", "again"):
            await node.save(body)
        await node.expunge(1, 2)
        await node.store.write(lambda tx: deletion_candidates.doom_expired(tx.connection, 1 << 60, 5))
        await node.save("again")
        await nodes.stop("dc1")
        await nodes.start("dc1")
        await trio.sleep(ROUND_S + 1)
        assert not await is_kept(nodes["dc1"], "gone")
        assert list((await nodes["dc1"].bodies()).values()) == ["again"]


async def test_round_removes_all_in_several_slices(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORGET_AT_ONCE", "REMOVE_AT_ONCE"):
        monkeypatch.setattr(retention_module, name, 2)
    async with expiring_cluster(tmp_path, autojump_clock) as nodes:
        node = nodes["dc1"]
        for number in range(7):
            await node.save(f"mail {number}")
        await node.expunge(*range(1, 7))
        await trio.sleep(KEEP_S + ROUND_S + 1)
        assert await kept(node) == 0
        [(count,)] = await node.store.read(lambda reader: reader.execute("SELECT COUNT(*) FROM content").fetchall())
        assert count == 1


@pytest.mark.long
async def test_returning_node_does_not_fetch_bodies_that_have_expired(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The node gets the entries that brought the mail, without bodies, and then the one that expunged it."""
    async with expiring_cluster(tmp_path, autojump_clock, 3) as nodes:
        node, late = nodes["dc1"], "dc3"
        await node.save("before")
        await nodes.converged()
        await nodes.stop(late)
        await nodes.linked()
        for body in ("gone", "stays"):
            await node.save(body)
        await node.expunge(2)
        await nodes.converged()
        await trio.sleep(KEEP_S + ROUND_S + 1)
        assert not await is_kept(node, "gone")
        for sid in ("dc1", "dc2"):  # the latest entries are in memory with their bodies
            await nodes.stop(sid)
        await nodes.start()
        await nodes.linked()
        await nodes.converged()
        node, away = nodes["dc1"], nodes[late]
        assert await away.bodies() == {1: "before", 3: "stays"}
        brought = [entry for logged in await away.store.log_after(0) if len((entry := logged.entry).changes) == 1]
        adds = [entry.changes[0] for entry in brought if isinstance(entry.changes[0], MailAdd)]
        assert [add.copied for add in adds] == [False, True, False], "the expunged message came without its body"
        for options in (CheckOptions(), CheckOptions(repair=True), ScrubOptions()):
            assert (await check(away, options)).damage == {}
        await trio.sleep(2 * (timing.BACKFILL_PATIENCE_S + timing.BACKFILL_RETRY_S))
        assert (await away.report.node_status()).texts_lacking == 0
        assert away.coordinator.bodies._backfill.lacking == 0
        await until(lambda: away.store.settled() == node.store.settled())
        assert (await node.report.node_status()).unsettled == {"dc1": 0, "dc2": 0, "dc3": 0}
        assert await kept(away) <= 1, "the message was expunged long ago"
        await trio.sleep(ROUND_S)
        assert await kept(away) == 0


async def test_scrub_does_not_report_bodies_removed_meanwhile(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with expiring_cluster(tmp_path, autojump_clock, keep_s=0.0) as nodes:
        node = nodes["dc1"]
        await node.save("gone")
        await node.expunge(1)
        node.damage("UPDATE content SET body = x'00'")
        sweep_rows = Inspection.sweep_rows

        async def sweep_rows_and_expire(work: Inspection, suspects: set[bytes]) -> None:
            await sweep_rows(work, suspects)
            await trio.sleep(1)
            await node.coordinator.bodies._retention.expire()

        assert (await check(node, ScrubOptions())).damage == {"content": 1}

        async def heal(_bodies: Bodies, _content_hash: bytes) -> bool:
            raise AssertionError("a removed body would be fetched again")

        monkeypatch.setattr(Inspection, "sweep_rows", sweep_rows_and_expire)
        monkeypatch.setattr(Bodies, "heal", heal)
        assert (await check(node, ScrubOptions())).damage == {}
        assert not await is_kept(node, "gone")


async def test_check_does_not_report_bodies_expunged_meanwhile(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with expiring_cluster(tmp_path, autojump_clock) as nodes:
        node = nodes["dc1"]
        await node.save("gone")
        node.damage("DELETE FROM content")

        async def expunge(_bodies: Bodies, _content_hash: bytes) -> bool:
            await node.expunge(1)
            return False

        monkeypatch.setattr(Bodies, "heal", expunge)
        assert (await check(node, CheckOptions(repair=True))).damage == {}
        node.damage("DELETE FROM expunged")  # the consistency check at the end expects the bodies of kept messages


async def test_undelete_of_mail_that_only_this_node_kept_reaches_all_nodes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Other nodes have forgotten the message, and get it as a new one."""
    async with expiring_cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("mail")
        await nodes["dc1"].expunge(1)
        await nodes.converged()
        nodes["dc2"].coordinator.bodies._retention._keep_s = 0.0
        await nodes["dc2"].coordinator.bodies._retention.expire()
        await trio.sleep(1)
        await nodes["dc2"].coordinator.bodies._retention.expire()
        assert not await is_kept(nodes["dc2"], "mail")
        async with trio.open_nursery() as nursery:
            node = nodes["dc1"]
            tasks = tasks_of(node.store, node.coordinator, node.environment)
            nursery.start_soon(tasks.run)
            tasks.start(UndeleteOptions(USER, "INBOX"))
            await tasks.wait("undelete")
            nursery.cancel_scope.cancel()
        await nodes.converged()
        assert await nodes["dc2"].bodies() == {2: "mail"}


async def test_kept_expunged_mail_is_counted(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with expiring_cluster(tmp_path, autojump_clock) as nodes, trio.open_nursery() as nursery:
        node = nodes["dc1"]
        for body in ("one", "three"):
            await node.save(body)
        await node.expunge(1, 2)
        nursery.start_soon(node.metrics.run, HEARTBEAT_S)
        await trio.sleep(HEARTBEAT_S)
        assert (value(node.registry, "expunged_kept_messages"), value(node.registry, "expunged_kept_bytes")) == (2, 8)
        status = await node.report.node_status()
        assert (status.expunged_messages, status.expunged_bytes) == (2, 8)
        nursery.cancel_scope.cancel()
