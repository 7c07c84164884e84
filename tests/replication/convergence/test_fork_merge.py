"""Reconciliation of one mailbox with one other node: adoption, a merge, or no change."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import Dot, UidSet
from replicator.config import UidConflict
from replicator.errors import UnavailableError
from replicator.mail.view import SEEN
from replicator.replication.convergence import fork_merge, sync_client
from replicator.replication.convergence.reconciliation import Outcome
from replicator.replication.log.sender import Sender
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Logged, Transaction
from replicator.store.log import forks
from replicator.store.log.apply import receive
from resync.entry import tree_id
from tests.replication.cluster import USER, Cluster, Node, cluster, until
from tests.replication.idle_parts import never, stop_the_log

TREE = MailboxKey(USER, tree_id(USER), 0)


@pytest.fixture
def log_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no node ship entries."""
    stop_the_log(monkeypatch)


@pytest.fixture
def no_healing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.replication.convergence.fork_scheduler.ForkScheduler._work", never)


async def reconcile(node: Node, sid: str, key: MailboxKey | None = None) -> Outcome:
    key = key or MailboxKey.of(await node.view())
    return await node.coordinator.reconciliation.reconcile(key, sid)


async def part(nodes: Cluster) -> None:
    nodes.isolate("dc1")
    await nodes.linked(["dc1"], ["dc2", "dc3"])


async def meet(nodes: Cluster) -> None:
    nodes.rejoin("dc1")
    await nodes.linked()


@pytest.mark.usefixtures("no_healing")
async def test_later_state_of_another_node_is_adopted_without_the_log(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        one, other = nodes["dc1"], nodes["dc3"]
        for number in range(40):
            await one.save(f"{number}")
        await nodes.converged()
        view = await one.view()
        await part(nodes)
        await other.expunge(3, 7)
        await other.flag(1, 2, added=["$a"])
        await other.save("new")
        await other.mail.create_folder(USER, "Work")
        await other.mail.subscribe(USER, "Work", subscribed=True)
        values = {f"/private/{number}": bytes([number]) * 30_000 for number in range(50)}
        await other.mail.annotate(USER, work := await other.mail.folder(USER, "Work"), values)
        with monkeypatch.context() as patch:
            stop_the_log(patch)
            await meet(nodes)
            logged = dict(one.store.context)
            assert await reconcile(one, "dc3", TREE) is Outcome.ADOPTED
            assert await reconcile(one, "dc3") is Outcome.ADOPTED
            assert await reconcile(one, "dc3") is Outcome.SAME
            assert await reconcile(other, "dc1", TREE) is Outcome.SAME
            assert one.store.context == logged
            assert await one.digests() == await other.digests()
            assert sorted(view.messages) == [1, 2, *range(4, 7), *range(8, 42)]
            assert view.messages[2].flags == {"$a"}
            assert {folder.name for folder in await one.mail.folders(USER)} == {"INBOX", "Work"}
            assert "Work" in await one.mail.subscriptions(USER)
            assert await one.mail.annotations(USER, work) == values
        nodes.isolate("dc1")
        await meet(nodes)
        await until(lambda: one.store.context == other.store.context)  # late entries change nothing
        await nodes.converged()
        assert (await one.bodies())[41] == "new"


@pytest.mark.usefixtures("no_healing", "log_stopped")
async def test_node_that_is_ahead_adopts_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("mine")
        before = await nodes["dc1"].digests()
        assert await reconcile(nodes["dc1"], "dc2") is Outcome.AHEAD
        assert await nodes["dc1"].digests() == before
        assert await nodes["dc2"].digests() == {}


@pytest.mark.usefixtures("no_healing")
@pytest.mark.parametrize("uid", UidConflict)
async def test_fork_is_merged_with_the_state_that_the_other_node_shows(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, uid: UidConflict
) -> None:
    """The master merges without the entries of the other branch."""
    async with cluster(tmp_path, autojump_clock, copies=1, uid=uid) as nodes:
        one, other = nodes["dc1"], nodes["dc2"]
        for number in range(30):
            await one.save(f"{number}")
        await nodes.converged()
        await part(nodes)
        await one.save("one")
        await other.save("other")
        await other.flag(4)
        with monkeypatch.context() as patch:
            stop_the_log(patch)
            patch.setattr(forks, "replay_branch", lambda *_, **__: pytest.fail("the log was replayed"))
            await meet(nodes)
            key = MailboxKey.of(await one.view())
            assert await one.coordinator.mastership.find(key) == "dc1"
            assert await reconcile(one, "dc2") is Outcome.MERGED
            assert await reconcile(one, "dc2") is Outcome.AHEAD
            assert len(await one.messages()) == 32
            assert await reconcile(other, "dc1") is Outcome.ADOPTED
            assert await one.digests() == await other.digests()
        nodes.isolate("dc1")
        await meet(nodes)
        await nodes.converged()
        assert sorted((await nodes["dc3"].bodies()).values()) == sorted([*map(str, range(30)), "one", "other"])


@pytest.mark.usefixtures("no_healing")
async def test_merge_has_a_later_stamp_than_a_branch_learned_by_sync(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a flag change after the merge would count as older than one before the merge."""
    async with cluster(tmp_path, autojump_clock, copies=1, start=["dc1", "dc3"]) as nodes:
        nodes.clock_ahead_s["dc2"] = 200
        await nodes.start("dc2")
        await nodes.linked()
        one, other = nodes["dc1"], nodes["dc2"]
        await one.save("text")
        await nodes.converged()
        await part(nodes)
        await one.save("one")
        await other.flag(1)
        with monkeypatch.context() as patch:
            stop_the_log(patch)
            await meet(nodes)
            assert await reconcile(one, "dc2") is Outcome.MERGED
            await one.mail.store_flags(await one.view(), UidSet.of([1]), removed=frozenset([SEEN]))
        merge, unflagged = [item.entry for item in await one.store.log_after(0)][-2:]
        (flagged,) = [item.entry for item in await other.store.log_after(0) if item.entry.dot.sid == "dc2"]
        assert merge.is_merge
        assert flagged.time < merge.time < unflagged.time
        nodes.isolate("dc1")
        await meet(nodes)
        await nodes.converged()
        assert (await nodes["dc3"].view()).messages[1].flags == frozenset()


async def test_node_that_is_not_master_leaves_the_merge_to_the_master(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        one, other = nodes["dc1"], nodes["dc2"]
        await one.save("both")
        await nodes.converged()
        await part(nodes)
        await one.save("one")
        await other.save("other")
        with pytest.MonkeyPatch.context() as patch:
            stop_the_log(patch)
            await meet(nodes)
            key = MailboxKey.of(await other.view())
            assert await other.coordinator.mastership.find(key) == "dc2"
            assert await reconcile(one, "dc2") is Outcome.NOT_OURS
            view = await other.view()
            await until(lambda: len(view.messages) == 3)
        nodes.isolate("dc1")
        await meet(nodes)
        await nodes.converged()
        assert sorted((await one.bodies()).values()) == ["both", "one", "other"]


@pytest.mark.usefixtures("no_healing")
async def test_different_states_with_equal_contexts_are_reported_as_damage(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one = nodes["dc1"]
        await one.save("text")
        await one.save("more")
        await nodes.converged()
        key = MailboxKey.of(await one.view())

        def add_to_count(tx: Transaction, count: int) -> None:
            tx.connection.execute("UPDATE chain SET messages = messages + ? WHERE id = ?", (count, key.mailbox_id))
            tx.memory.chains.clear()

        await one.store.write(partial(add_to_count, count=-1))
        assert await reconcile(one, "dc2") is Outcome.DAMAGED
        assert await reconcile(nodes["dc2"], "dc1") is Outcome.DAMAGED
        assert any("check --repair" in record.getMessage() for record in caplog.records)
        assert len((await nodes["dc2"].view()).messages) == 2

        await one.store.write(partial(add_to_count, count=1))


async def test_error_names_the_unreachable_node(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("text")
        with pytest.raises(UnavailableError, match="dc9"):
            await reconcile(nodes["dc1"], "dc9")


@pytest.mark.parametrize("length", [0, 1 << 30])
async def test_branch_that_no_node_shows_is_replayed_from_the_log(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """The length of the branch does not matter."""
    monkeypatch.setattr(fork_merge, "SHORT_MODSEQ", length)
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        one, other = nodes["dc1"], nodes["dc2"]
        await one.save("both")
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2"])
        await one.save("one")
        await other.save("other")
        entry = await other.store.read(partial(queries.entry_at, dot=Dot(other.store.origin, 1)))
        assert entry is not None
        await nodes.stop("dc2")
        await one.store.write(partial(receive, entry=entry, bodies=[StoredBody.of(b"other")]))
        await nodes.converged()
        assert sorted((await one.bodies()).values()) == ["both", "one", "other"]


@pytest.mark.usefixtures("no_healing")
async def test_node_that_advances_during_the_comparison_is_not_damaged(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one, other = nodes["dc1"], nodes["dc2"]
        await one.save("both")
        await nodes.converged()
        await nodes.stop("dc1")
        await other.save("more")
        learn, times = sync_client.learn, 0

        async def learn_late(*arguments: object, **named: object) -> sync_client.Learned | None:
            nonlocal times
            times += 1
            if times == 1:  # meanwhile the log brings the message, and a client saves another one
                await until(lambda: nodes["dc1"].store.context.get(other.store.origin, 0) > 0)
                await nodes["dc1"].save("and on")
            return await learn(*arguments, **named)  # type: ignore[arg-type]  # passed on unchanged

        monkeypatch.setattr(sync_client, "learn", learn_late)
        released = trio.Event()
        send = Sender._send

        async def send_late(sender: Sender, batch: Sequence[Logged]) -> None:
            await released.wait()
            await send(sender, batch)

        monkeypatch.setattr(Sender, "_send", send_late)
        await nodes.start("dc1")
        await nodes.linked()
        one = nodes["dc1"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_release_when, released, lambda: times > 0)
            outcome = await reconcile(one, "dc2")
        assert outcome in {Outcome.AHEAD, Outcome.SAME}
        assert "damaged" not in caplog.text
        assert "check --repair" not in caplog.text
        await nodes.converged()


async def _release_when(released: trio.Event, condition: Callable[[], bool]) -> None:
    await until(condition)
    released.set()


@pytest.mark.usefixtures("no_healing")
async def test_wrong_user_in_a_key_does_not_prevent_a_later_merge(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        one, other = nodes["dc1"], nodes["dc2"]
        await one.save("common")
        await nodes.converged()
        await part(nodes)
        await one.save("one")
        await other.save("other")
        await meet(nodes)
        key = MailboxKey.of(await one.view())
        assert await one.coordinator.mastership.find(key) == "dc1"
        wrong = key._replace(user="mallory")
        assert await one.coordinator.mastership.find(wrong) == "dc1"
        before = await one.digests()
        assert await reconcile(one, "dc2", wrong) is Outcome.APART
        await one.coordinator.fork_merger.join_branches(wrong)
        assert await one.digests() == before
        assert await reconcile(one, "dc2") is Outcome.MERGED
        await nodes.converged()
