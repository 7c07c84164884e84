"""State transfer to a node that lacks entries which have left the logs of its peers."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import Done, Snapshot
from protocol.values import Dot, UidSet
from replicator.config import UidConflict
from replicator.replication import timing
from replicator.replication.convergence import fork_merge, state_transfer
from replicator.replication.convergence.reconciliation import Outcome, Reconciliation
from replicator.replication.convergence.state_transfer import StateTransfer
from replicator.replication.writes.head_exchange import ask
from replicator.replication.writes.lagging_peers import LaggingPeers
from replicator.replication.writes.requests import SaveRequest
from replicator.store.bodies.body_rows import StoredBody, lacking_count, read_body
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.log.forks import Branch
from tests.effort import first
from tests.lying import Lie
from tests.replication.cluster import USER, Node, cluster, until
from tests.replication.convergence.holding_up import end_transfers_late
from tests.replication.log.truncating import forget_log, logs_agree


async def wait_for_backfill(node: Node) -> None:
    """Wait for the backfill, and check that the node has the bodies of all its messages."""
    await trio.sleep(timing.BACKFILL_PATIENCE_S)
    await until(lambda: not node.coordinator.bodies._backfill.lacking)
    assert not await node.store.read(lacking_count)
    rows = await node.store.read(lambda reader: reader.execute("SELECT DISTINCT content_hash FROM by_uid").fetchall())
    bodies = await node.store.read(lambda reader: set(reader.execute("SELECT hash FROM content").fetchall()))
    assert set(rows) <= bodies


async def test_node_adopts_the_state_of_others_after_a_long_absence(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for number in range(30):
            await nodes["dc1"].save(f"{number}")
        await nodes["dc3"].mail.create_folder(USER, "Old")
        await nodes["dc3"].save("old", "Old")
        await nodes.converged()
        await nodes.stop("dc3")
        await nodes.linked()
        await nodes["dc2"].expunge(3, 4)
        await nodes["dc2"].flag(7)
        await nodes["dc1"].mail.rename_folder(USER, "Old", "New")
        await nodes["dc1"].mail.create_folder(USER, "Other")
        for number in range(30):
            await nodes["dc1"].save(f"new {number}", "Other", user=USER)
            await nodes["dc1"].save("hers", user="bob")
        await nodes.converged()
        for sid in ("dc1", "dc2"):
            await forget_log(nodes[sid])
        await nodes["dc1"].save("and on")
        await nodes.start("dc3")
        await nodes.linked()
        await logs_agree(nodes)
        back = nodes["dc3"]
        assert await back.bodies() == await nodes["dc1"].bodies()
        assert len(await back.bodies("Other")) == 30
        assert await back.bodies("New") == {1: "old"}
        assert len(await back.bodies(user="bob")) == 30
        await wait_for_backfill(back)
        assert back.coordinator.bodies._backfill.lacking == 0
        assert await back.save("after") == 32
        await nodes.converged()
        assert (await nodes["dc1"].bodies())[32] == "after"


@pytest.mark.parametrize("size", [2, 3])
async def test_new_node_adopts_everything(tmp_path: Path, autojump_clock: MockClock, size: int) -> None:
    async with cluster(tmp_path, autojump_clock, 3, start=["dc1", "dc2", "dc3"][:size]) as nodes:
        for number in range(30):
            await nodes["dc1"].save(f"{number}", user=f"user{number % 7}")
        await nodes.converged()
        for node in nodes.all():
            await forget_log(node)
        if size == 3:
            await nodes.stop("dc3")
            nodes.erase("dc3")
            await nodes.start("dc3")
        else:
            await nodes.start("dc3")
        await nodes.linked()
        await logs_agree(nodes)
        assert len(await nodes["dc3"].bodies(user="user1")) == 5
        await wait_for_backfill(nodes["dc3"])


async def test_user_of_a_new_node_waits_only_for_their_own_folders(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening INBOX waits for its creation; the entry that created it at another node never comes."""
    goes_on = end_transfers_late(monkeypatch)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc1"]) as nodes:
        await nodes["dc1"].save("text")
        await forget_log(nodes["dc1"])
        await nodes.start("dc2")
        with trio.fail_after(timing.ROUTER_SHOW_TIMEOUT_S / 2):
            assert (await nodes["dc2"].inbox()).mailbox_id == (await nodes["dc1"].inbox()).mailbox_id
        goes_on.set()
        await logs_agree(nodes)
        assert await nodes["dc2"].bodies() == {1: "text"}


@pytest.mark.parametrize("goes_on_meanwhile", [False, True])
async def test_message_shown_without_its_body_does_not_count_as_a_copy(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, goes_on_meanwhile: bool
) -> None:
    """A repeated delivery rests on an entry of a past run, so the master asks other nodes for their heads."""
    goes_on = end_transfers_late(monkeypatch)
    monkeypatch.setattr(timing, "BACKFILL_PATIENCE_S", 1000.0)
    monkeypatch.setattr(LaggingPeers, "__contains__", lambda *_: False)  # dc2 counts however long it takes
    async with cluster(tmp_path, autojump_clock, 2, start=["dc1"]) as nodes:
        await nodes["dc1"].save("first")
        await forget_log(nodes["dc1"])
        folder, stored = await nodes["dc1"].inbox(), StoredBody.of(b"second")
        key = queries.MailboxKey(USER, folder.mailbox_id, folder.uidvalidity)
        operation = SaveRequest(key, b"a delivery......", 1_000, (), stored)
        await nodes["dc1"].coordinator.carry_out(operation)
        await nodes.stop("dc1")
        await nodes.start("dc1", "dc2")
        await nodes.linked()
        one, two = nodes["dc1"], nodes["dc2"]
        await nodes.converged()
        same = await two.store.read(partial(chains.load, chain_id=key.mailbox_id))
        assert same is not None
        assert await ask(one.coordinator.mastership.toward("dc2"), "dc2", key, same) == Done(), (
            "both show the same head"
        )
        heard = trio.Event()

        async def try_again() -> None:
            await one.coordinator.carry_out(operation)
            heard.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(try_again)
            await trio.sleep(timing.ROUTER_ASK_EVERY_S / 2)
            if goes_on_meanwhile:
                nursery.start_soon(one.flag, 1)
            await trio.sleep(timing.ROUTER_ASK_EVERY_S + 10)
            assert await two.store.read(lambda reader: read_body(reader, stored.content_hash)) is None
            assert not heard.is_set()
            goes_on.set()
            await heard.wait()
            assert await two.store.read(lambda reader: read_body(reader, stored.content_hash)) == stored.message
        await nodes.converged()


async def test_body_of_a_message_moved_during_the_transfer_is_fetched(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log brings a copy, without the body, to a node that has never shown the message."""
    async with cluster(tmp_path, autojump_clock, 2, copies=1, start=["dc1"]) as nodes:
        one = nodes["dc1"]
        await one.save("stays")
        await one.save("moves")
        await one.mail.create_folder(USER, "Work")
        await one.save("other", "Work")
        await forget_log(one)
        monkeypatch.setattr(state_transfer, "CHECKPOINTS", "OTHER")  # one mailbox after the other
        inbox, work = await one.inbox(), await one.mail.folder(USER, "Work")
        reconcile, taken_over = Reconciliation.reconcile, trio.Event()

        async def reconcile_inbox_last(self: Reconciliation, key: queries.MailboxKey, sid: str) -> Outcome:
            if key.mailbox_id == inbox.mailbox_id:
                await taken_over.wait()
            outcome = await reconcile(self, key, sid)
            if key.mailbox_id == work.mailbox_id:
                await one.mail.move(await one.view(), UidSet.of([2]), work)
                taken_over.set()
            return outcome

        monkeypatch.setattr(Reconciliation, "reconcile", reconcile_inbox_last)
        await nodes.start("dc2")
        await nodes.linked()
        await logs_agree(nodes)
        await wait_for_backfill(nodes["dc2"])
        nodes.isolate("dc2")
        assert await nodes["dc2"].bodies("Work") == {1: "other", 2: "moves"}


@pytest.mark.parametrize("uid", first(1, UidConflict))
@pytest.mark.parametrize("length", [0, fork_merge.SHORT_MODSEQ])
async def test_fork_is_merged_although_no_side_has_its_log(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    uid: UidConflict,
    length: int,
) -> None:
    monkeypatch.setattr(fork_merge, "SHORT_MODSEQ", length)
    async with cluster(tmp_path, autojump_clock, uid=uid) as nodes:
        for user in (USER, "bob", "carol"):
            await nodes["dc1"].save("both", user=user)
        await nodes.converged()
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        for number in range(10):
            await nodes["dc1"].save(f"here {number}")
            await nodes["dc3"].save(f"there {number}")
        await nodes["dc3"].mail.create_folder(USER, "There")
        await nodes["dc2"].mail.create_folder(USER, "Here")
        await nodes["dc3"].save("only there", user="bob")
        await nodes["dc2"].save("only here", user="carol")
        for node in nodes.all():
            await forget_log(node)
        nodes.rejoin("dc3")
        await nodes.linked()
        await logs_agree(nodes)
        for node in nodes.all():
            wanted = ["both", *(f"{side} {number}" for number in range(10) for side in ("here", "there"))]
            assert sorted((await node.bodies()).values()) == sorted(wanted)
            assert {folder.name for folder in await node.mail.folders(USER)} == {"INBOX", "Here", "There"}
            assert sorted((await node.bodies(user="bob")).values()) == ["both", "only there"]
            assert sorted((await node.bodies(user="carol")).values()) == ["both", "only here"]
            await wait_for_backfill(node)
    assert "cannot take over the state" not in caplog.text  # what a peer has is known even if its LOG is refused


@pytest.mark.long
async def test_interrupted_transfer_starts_again_while_the_node_serves(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        users = [f"user{number}" for number in range(80)]
        for user in users:
            await nodes["dc1"].save("old", user=user)
        await nodes["dc3"].save("before")
        await nodes.converged()
        await nodes.stop("dc3")
        await nodes.linked()
        for user in users:
            await nodes["dc1"].save("text", user=user)
        await nodes.converged()
        for node in nodes.all():
            await forget_log(node)
        monkeypatch.setattr(state_transfer, "AT_ONCE", 1)
        reconcile, taken = Reconciliation.reconcile, 0

        async def reconcile_some(self: Reconciliation, key: queries.MailboxKey, sid: str) -> Outcome:
            nonlocal taken
            taken += 1
            if taken == 30:
                await trio.sleep_forever()
            return await reconcile(self, key, sid)

        monkeypatch.setattr(Reconciliation, "reconcile", reconcile_some)
        await nodes.start("dc3")
        await nodes.linked()
        await until(lambda: taken == 30)
        status = await nodes["dc3"].report.node_status()
        assert 0 < status.transfer_done < status.transfer_total == 80
        assert await nodes["dc3"].bodies() == {1: "before"}
        assert await nodes["dc3"].save("meanwhile") == 2
        await nodes.stop("dc3")
        await nodes.start("dc3")
        await nodes.linked()
        await logs_agree(nodes)
        assert taken < 81 + 30
        assert all([await nodes["dc3"].bodies(user=user) == {1: "old", 2: "text"} for user in users])
        assert await nodes["dc1"].bodies() == {1: "before", 2: "meanwhile"}


@pytest.mark.parametrize("comes", [True, False])
async def test_lacking_body_is_sought_until_it_comes_or_its_message_is_expunged(
    tmp_path: Path, autojump_clock: MockClock, *, comes: bool
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        donor = nodes["dc1"]
        await donor.save("text")
        await nodes.converged()
        await nodes.stop("dc2")
        nodes.erase("dc2")
        await forget_log(donor)
        query = "SELECT hash, size_bytes, parted, body FROM content"
        kept = await donor.store.write(lambda tx: tx.connection.execute(query).fetchall())
        await donor.store.write(lambda tx: tx.connection.execute("DELETE FROM content").rowcount)
        await nodes.start("dc2")
        await nodes.linked()
        await logs_agree(nodes)
        assert (await nodes["dc2"].report.node_status()).texts_lacking == 1  # as soon as the message is shown
        await trio.sleep(2 * timing.BACKFILL_RETRY_S)
        assert (await nodes["dc2"].report.node_status()).texts_lacking == 1
        if comes:
            insert = "INSERT INTO content (hash, size_bytes, parted, body) VALUES (?, ?, ?, ?)"
            await donor.store.write(lambda tx: tx.connection.executemany(insert, kept).rowcount)
        else:
            await donor.expunge(1)
        await trio.sleep(2 * timing.BACKFILL_RETRY_S)
        assert (await nodes["dc2"].report.node_status()).texts_lacking == 0
        await wait_for_backfill(nodes["dc2"])


async def test_unmergeable_mailbox_does_not_block_other_mailboxes(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mailbox becomes equal once its merge is possible."""
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one, two = nodes["dc1"], nodes["dc2"]
        await one.save("both")
        await nodes.converged()
        nodes.isolate("dc2")
        await nodes.linked(["dc1"], ["dc2"])
        await one.save("here")
        await two.save("there")
        await one.save("more", user="bob")
        for node in nodes.all():
            await forget_log(node)
        mailbox_id, join = (await one.inbox()).mailbox_id, fork_merge.ForkMerger._join
        is_hopeless = True

        async def join_or_refuse(
            self: fork_merge.ForkMerger, key: queries.MailboxKey, branch: Branch, term: int
        ) -> bool | None:
            if key.mailbox_id == mailbox_id and is_hopeless:
                await trio.lowlevel.checkpoint()
                return False
            return await join(self, key, branch, term)

        monkeypatch.setattr(fork_merge.ForkMerger, "_join", join_or_refuse)
        nodes.rejoin("dc2")
        await nodes.linked()
        await trio.sleep(2 * state_transfer.ROUNDS)
        assert not any(node.coordinator.state_transfer.is_running for node in nodes.all())
        assert await two.bodies(user="bob") == {1: "more"}
        await one.save("later", user="carol")
        assert len(await one.bodies()) == len(await two.bodies()) == 2
        is_hopeless = False
        await trio.sleep(2 * timing.STATE_TRANSFER_LEFT_EVERY_S)
        await nodes.converged()
        assert sorted((await two.bodies()).values()) == ["both", "here", "there"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_mailbox_damaged_at_the_peer_does_not_block_others(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, *, restarts: bool
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one = nodes["dc1"]
        for user in ("ann", "bob"):
            await one.save("before", user=user)
        await nodes.converged()
        await nodes.stop("dc2")
        await nodes.linked()
        for user in ("ann", "bob"):
            await one.save("after", user=user)
        await forget_log(one)
        folder = await one.inbox("bob")
        of = (folder.mailbox_id,)
        select, delete = (f"{what} FROM by_uid WHERE mailbox = ? AND uid = 1" for what in ("SELECT *", "DELETE"))
        row = await one.store.read(lambda reader: reader.execute(select, of).fetchone())
        await one.store.write(lambda tx: tx.connection.execute(delete, of).rowcount)
        await nodes.start("dc2")
        await nodes.linked()
        await trio.sleep(state_transfer.ROUNDS / 2)
        assert "at dc1, the rows of a mailbox do not match their counters" in caplog.text
        assert "folder 'INBOX' of bob could not be made equal to its state at dc1" in [
            record.message.partition(":")[0] for record in caplog.records if record.levelname == "ERROR"
        ]
        assert await nodes["dc2"].bodies(user="ann") == {1: "before", 2: "after"}
        assert await nodes["dc2"].bodies(user="bob") == {1: "before"}
        if restarts:
            await nodes.stop("dc2")
            await nodes.start("dc2")
            await nodes.linked()
        await one.save("later", user="ann")
        insert = f"INSERT INTO by_uid VALUES ({','.join('?' * len(row))})"
        await one.store.write(lambda tx: tx.connection.execute(insert, row).rowcount)
        await trio.sleep(2 * timing.STATE_TRANSFER_LEFT_EVERY_S)
        await nodes.converged()
        assert await nodes["dc2"].bodies(user="bob") == {1: "before", 2: "after"}


@pytest.mark.parametrize("guid", first(1, [7, None, "x", b"short"]))
@pytest.mark.parametrize("sid", ["dc1", "dc2"], ids=["there", "here"])
async def test_row_with_a_garbled_guid_does_not_block_other_mailboxes(
    tmp_path: Path, autojump_clock: MockClock, sid: str, guid: object
) -> None:
    """`guid`: None stands for the GUID of another row."""
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one, two = nodes["dc1"], nodes["dc2"]
        for user in ("ann", "bob"):
            await one.save("before", user=user)
            await one.save("too", user=user)
        await nodes.converged()
        nodes.isolate("dc2")
        await nodes.linked(["dc1"], ["dc2"])
        for user in ("ann", "bob"):
            await one.save("after", user=user)
        await forget_log(one)
        of = (await one.inbox("bob")).mailbox_id
        query = "SELECT guid FROM by_uid WHERE mailbox = ? ORDER BY uid LIMIT 2"
        (right,), (other,) = await one.store.read(lambda reader: reader.execute(query, (of,)).fetchall())
        garble = "UPDATE by_uid SET guid = ? WHERE mailbox = ? AND uid = 1"
        await nodes[sid].store.write(
            lambda tx: tx.connection.execute(garble, (other if guid is None else guid, of)).rowcount
        )
        nodes.rejoin("dc2")
        await nodes.linked()
        await trio.sleep(2 * state_transfer.ROUNDS)
        assert await two.bodies(user="ann") == {1: "before", 2: "too", 3: "after"}
        await nodes[sid].store.write(lambda tx: tx.connection.execute(garble, (right, of)).rowcount)
        await trio.sleep(2 * timing.STATE_TRANSFER_LEFT_EVERY_S)
        await nodes.converged()
        assert await two.bodies(user="bob") == {1: "before", 2: "too", 3: "after"}


DAMAGES = {
    "a row is gone": "DELETE FROM by_uid WHERE mailbox = ? AND uid = 2",
    "rows are wrong, and one of them changes": "UPDATE by_uid SET size_bytes = 7 WHERE mailbox = ? AND uid IN (2, 3)",
}


@pytest.mark.parametrize("statement", DAMAGES.values(), ids=DAMAGES.keys())
async def test_mailbox_damaged_here_is_adopted_whole(tmp_path: Path, autojump_clock: MockClock, statement: str) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one = nodes["dc1"]
        for number in range(4):
            await one.save(f"{number}")
        await nodes.converged()
        folder, two = await one.inbox(), nodes["dc2"]
        of = (folder.mailbox_id,)
        nodes.isolate("dc2")
        await nodes.linked(["dc1"], ["dc2"])
        await two.store.write(lambda tx: tx.connection.execute(statement, of).rowcount)
        await one.save("later")
        await one.flag(3)
        await forget_log(one)
        nodes.rejoin("dc2")
        await nodes.linked()
        await logs_agree(nodes)
        assert await two.bodies() == {**{uid: f"{uid - 1}" for uid in range(1, 5)}, 5: "later"}
        rows = [
            await node.store.read(lambda reader: list(queries.mailbox_rows(reader, folder.mailbox_id)))
            for node in nodes.all()
        ]
        assert rows[0] == rows[1]


async def test_waiting_nodes_adopt_the_state_of_the_master_soon(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes, which compare with each other first, wait for a merge by the third one. No node has its log."""
    run = StateTransfer.run

    async def run_late(transfer: StateTransfer) -> None:
        await trio.sleep(1)  # until both peers have said that their logs do not reach back far enough
        transfer._peers = dict.fromkeys(sorted(transfer._peers, key=lambda sid: sid == "dc2"))
        await run(transfer)

    async with cluster(tmp_path, autojump_clock, 3) as nodes:
        await nodes["dc1"].save("common")
        await nodes.converged()
        for sid in ("dc1", "dc2", "dc3"):
            nodes.isolate(sid)
        await nodes.linked(["dc1"], ["dc2"], ["dc3"])
        for node in nodes.all():
            await node.save(f"of {node.sid}")
            await forget_log(node)
        for sid in ("dc1", "dc2", "dc3"):
            await nodes.stop(sid)
        monkeypatch.setattr(StateTransfer, "run", run_late)
        for sid in ("dc1", "dc2", "dc3"):
            await nodes.start(sid)
        for sid in ("dc1", "dc2", "dc3"):
            nodes.rejoin(sid)
        await nodes.linked()
        key = (await nodes["dc2"].store.read(partial(queries.folders_in_sight, user=USER)))[0].key(USER)
        assert await nodes["dc2"].coordinator.mastership.find(key) == "dc2", "the first node that asks becomes master"
        began = trio.current_time()
        await nodes.converged()
        bodies = await nodes["dc3"].bodies()
        assert sorted(bodies.values()) == ["common", "of dc1", "of dc2", "of dc3"]
        assert trio.current_time() - began < state_transfer.ROUNDS * timing.STATE_TRANSFER_RETRY_S / 2


async def test_log_does_not_begin_after_entries_that_only_a_lie_tells_of(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A node would refuse what dc2 numbers from then on, and claim entries of dc2 that dc2 knows nothing of."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("before")
        await nodes["dc2"].save("before", user="bob")
        await nodes.converged()
        await nodes.stop("dc3")
        await nodes.linked()
        await nodes["dc1"].save("meanwhile")
        await nodes.converged()
        for sid in ("dc1", "dc2"):
            await forget_log(nodes[sid])
        origin = nodes["dc2"].store.origin
        lie = Lie(Snapshot, lambda said: replace(said, context=_raised(said, origin)))
        nodes.network.road("dc1", "dc3").mutator = lie
        nodes.network.cut(("dc2", "dc3"))
        await nodes.start("dc3")
        await until(lambda: bool(lie.told))
        await until(lambda: not nodes["dc3"].coordinator.state_transfer.is_running)
        assert nodes["dc3"].store.context[origin] == nodes["dc2"].store.context[origin]
        nodes.network.mend(("dc2", "dc3"))
        await nodes.linked()
        await nodes["dc2"].save("after", user="bob")
        await logs_agree(nodes)


def _raised(said: Snapshot, origin: str) -> tuple[Dot, ...]:
    """Return the context of a node's snapshot with 1000 more entries of an origin; that of a mailbox as it is."""
    return said.context if said.head else tuple(Dot(name, seq + 1000 * (name == origin)) for name, seq in said.context)
