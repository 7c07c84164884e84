"""A client hears OK only once its change is on as many disks as are configured."""

import hashlib
import random
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.commands import LinkAdvert, Links, Mbox, Mismatch
from protocol.stream_codec import Request
from protocol.values import Dot
from replicator.config import DurabilityConfig, LogConfig, WhenShort
from replicator.errors import DurabilityError, UnavailableError
from replicator.replication import timing
from replicator.replication.convergence.reconciliation import Outcome
from replicator.replication.log.sender import Sender
from replicator.replication.writes import head_exchange
from replicator.replication.writes.durability import Durability
from replicator.replication.writes.lagging_peers import LaggingPeers
from replicator.store.bodies.body_rows import StoredBody, is_here, read_body
from replicator.store.db.queries import MailboxKey
from tests.replication.bodies.large_messages import message, save
from tests.replication.cluster import EPOCH_MS, HEARTBEAT_S, TIMEOUT_S, USER, Node, cluster, until
from tests.replication.stranger import ORIGIN, visit

COMING_S, STAYING_S = 4.0, 10.0


class Saving:
    """A save that runs in the background; `uid` is set when it ends with OK."""

    def __init__(self, nursery: trio.Nursery, node: Node) -> None:
        self.uid: int | None = None
        self.error: DurabilityError | None = None
        nursery.start_soon(self._run, node)

    async def _run(self, node: Node) -> None:
        try:
            self.uid = await node.save("text")
        except DurabilityError as error:
            self.error = error


async def test_ok_waits_for_the_peers_acknowledgement(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes, trio.open_nursery() as nursery:
        await nodes["dc1"].save("first")
        nodes.network.road("dc2", "dc1").hold()  # dc2 stores what it receives, but its ACK does not arrive
        saving = Saving(nursery, nodes["dc1"])
        await trio.sleep(TIMEOUT_S / 2)
        assert len(await nodes["dc1"].messages()) == 2
        assert len(await nodes["dc2"].messages()) == 2
        assert saving.uid is None
        nodes.network.road("dc2", "dc1").release()
        await trio.sleep(0.1)
        assert saving.uid == 2


async def test_ok_waits_for_the_peers_disk(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes, trio.open_nursery() as nursery:
        await nodes["dc1"].save("first")
        nodes.network.road("dc1", "dc2").hold()
        saving = Saving(nursery, nodes["dc1"])
        await trio.sleep(TIMEOUT_S / 2)
        assert saving.uid is None
        nodes.network.road("dc1", "dc2").release()
        await trio.sleep(0.1)
        assert saving.uid == 2


async def test_message_without_its_body_does_not_count_as_a_copy(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that changes nothing is confirmed for the mailbox's head, whose message has one copy of its body."""

    async def send_nothing(*_: object) -> bool:
        await trio.sleep_forever()
        return True

    monkeypatch.setattr(timing, "BACKFILL_PATIENCE_S", 1000.0)
    async with cluster(tmp_path, autojump_clock, 2, copies=2, when_short=WhenShort.PROCEED) as nodes:
        one, other = nodes["dc1"], nodes["dc2"]
        await one.save("text")
        await one.flag(1)
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2"])
        await other.save("new")
        with monkeypatch.context() as patch:
            patch.setattr(Sender, "_ship", send_nothing)
            nodes.rejoin("dc1")
            await nodes.linked()
            key = MailboxKey.of(await one.view())
            assert await one.coordinator.reconciliation.reconcile(key, "dc2") is Outcome.ADOPTED
            assert sorted((await one.view()).messages) == [1, 2]
            assert await one.coordinator.mastership.find(MailboxKey.of(await one.view())) == "dc1"
            with pytest.raises(UnavailableError):
                await one.flag(1)
            assert await one.body_of(2) == "new"  # which fetches the body
            await one.flag(1)


@pytest.mark.parametrize(("copies", "ok"), [(1, True), (2, True), (3, False)])
async def test_silent_peer_is_waited_for_only_if_its_copy_is_needed(
    tmp_path: Path, autojump_clock: MockClock, copies: int, *, ok: bool
) -> None:
    async with cluster(tmp_path, autojump_clock, copies=copies) as nodes, trio.open_nursery() as nursery:
        await nodes["dc1"].save("first")
        nodes.network.road("dc3", "dc1").hold()
        saving = Saving(nursery, nodes["dc1"])
        await trio.sleep(TIMEOUT_S / 2)
        assert (saving.uid is not None) == ok
        await trio.sleep(TIMEOUT_S + 2 * HEARTBEAT_S)  # by now ACKs of dc3 come through dc2
        assert saving.uid == 2
        nodes.network.road("dc3", "dc1").release()
        await nodes.linked()


async def test_only_links_that_end_before_the_node_are_a_shortage_of_copies(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes.linked()
        await trio.sleep(2 * HEARTBEAT_S)
        caplog.clear()
        await nodes.stop("dc1")
        await trio.sleep(2 * HEARTBEAT_S)
        assert "copies can be made" not in caplog.text
        nodes.isolate("dc2")
        await trio.sleep(TIMEOUT_S)
        assert caplog.text.count("only 1 of 2 copies can be made") == 2, "at dc2 and at dc3"


async def test_single_copy_waits_for_no_peer(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await nodes["dc1"].save("first")
        for other in ("dc2", "dc3"):
            nodes.network.road(other, "dc1").hold()
        with trio.fail_after(TIMEOUT_S / 2):
            await nodes["dc1"].save("second")
        for other in ("dc2", "dc3"):
            nodes.network.road(other, "dc1").release()
        await nodes.converged()


async def test_change_at_a_remote_master_is_as_durable(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, copies=3) as nodes, trio.open_nursery() as nursery:
        await nodes["dc1"].save("first")
        await nodes["dc2"].save("second")
        nodes.network.road("dc3", "dc1").hold()
        saving = Saving(nursery, nodes["dc2"])
        await trio.sleep(TIMEOUT_S / 2)
        assert len(await nodes["dc2"].messages()) == 3
        assert saving.uid is None
        nodes.network.road("dc3", "dc1").release()
        await trio.sleep(0.1)
        assert saving.uid == 3


async def test_refuse_rejects_changes_while_too_few_nodes_are_reachable(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2, when_short=WhenShort.REFUSE) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        await nodes.stop("dc2")
        await nodes.linked()
        with pytest.raises(DurabilityError, match="1 of the 2 nodes"):
            await nodes["dc1"].save("refused")
        assert await nodes["dc1"].bodies() == {1: "first"}
        await nodes.start("dc2")
        await nodes.linked()
        assert await nodes["dc2"].save("second") == 2
        await nodes.converged()


async def test_remote_master_refuses_as_well(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, copies=3, when_short=WhenShort.REFUSE) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        await nodes.stop("dc3")
        await nodes.linked()
        with pytest.raises(DurabilityError, match="2 of the 3 nodes"):
            await nodes["dc2"].save("refused")
        assert await nodes["dc2"].bodies() == {1: "first"}


async def test_proceed_confirms_when_the_link_drops(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes, trio.open_nursery() as nursery:
        await nodes["dc1"].save("first")
        nodes.network.road("dc2", "dc1").hold()
        saving = Saving(nursery, nodes["dc1"])
        await trio.sleep(1)
        assert saving.uid is None
        nodes.network.cut(("dc1", "dc2"))
        await trio.sleep(0.1)
        assert saving.uid == 2
        with trio.fail_after(2 * TIMEOUT_S):
            assert await nodes["dc1"].save("alone") == 3
        nodes.network.mend(("dc1", "dc2"))
        nodes.network.road("dc2", "dc1").release()
        await nodes.converged()


@pytest.mark.parametrize("when_short", list(WhenShort))
async def test_clients_do_not_wait_for_a_lagging_peer(
    tmp_path: Path, autojump_clock: MockClock, when_short: WhenShort
) -> None:
    """New entries queue behind the peer's backlog, so every client would hear that its change was not confirmed."""
    async with cluster(tmp_path, autojump_clock, 2, copies=2) as nodes:
        await nodes["dc1"].save("first")
        await nodes.stop("dc2")
        await nodes.linked()
        for number in range(200):
            await nodes["dc1"].save(f"{number} ".join(map(str, range(400, 1000))))
        nodes.durability = DurabilityConfig(2, when_short)
        await nodes.stop("dc1")
        nodes.network.road("dc1", "dc2").bytes_per_s = 4_000
        await nodes.start()
        await nodes.linked()
        await trio.sleep(TIMEOUT_S + HEARTBEAT_S)
        assert nodes["dc1"].coordinator.durability.reachable == 1
        if when_short is WhenShort.PROCEED:
            await nodes["dc1"].save("asks how the mailbox looks elsewhere, which takes its time")
            with trio.fail_after(0.5):
                await nodes["dc1"].save("new")
        else:
            with pytest.raises(DurabilityError, match=r"1 of the 2 .* \(waiting for dc2 to catch up\)"):
                await nodes["dc1"].save("new")
        assert sum(nodes["dc2"].store.context.values()) < 100
        nodes.network.road("dc1", "dc2").bytes_per_s = None
        await nodes.converged()
        await until(lambda: nodes["dc1"].coordinator.durability.reachable == 2)
        nodes.network.road("dc2", "dc1").hold()
        with trio.move_on_after(TIMEOUT_S / 2) as scope:
            await nodes["dc1"].save("on two disks")
        assert scope.cancelled_caught
        nodes.network.road("dc2", "dc1").release()
        await nodes.linked()


@pytest.mark.parametrize(("claimed", "counts"), [(2, True), (3, False)])
async def test_claim_to_have_an_unnumbered_entry_is_ignored(
    tmp_path: Path, autojump_clock: MockClock, claimed: int, *, counts: bool
) -> None:
    """Otherwise the next change would count as stored there."""
    async with cluster(tmp_path, autojump_clock, 2, copies=1, start=["dc2"]) as nodes:
        node = nodes["dc2"]
        await node.save("text")
        folder = await node.inbox()
        key = MailboxKey(USER, folder.mailbox_id, folder.uidvalidity)
        assert node.store.context == {node.store.origin: 2}
        head, coordinator = Dot(node.store.origin, claimed), node.coordinator
        async with visit(nodes) as stranger, trio.open_nursery() as nursery:
            await stranger.send(Links((LinkAdvert(ORIGIN, 100, EPOCH_MS, (("dc2", 1),)),)))
            await until(lambda: "dc1" in node.component)
            nursery.start_soon(
                head_exchange.ask_who_has, node.store, coordinator.mastership, coordinator.durability, key
            )
            tag: str | None = None
            while tag is None:
                match await stranger.next():
                    case Request(tag, Mbox()):  # an MBOX without a tag only gives the mailbox its number
                        pass
                    case item:
                        assert item is not None
            await stranger.reply(tag, Mismatch(("head",), head, (head,)))
        assert coordinator.durability._held["dc1"] == ({node.store.origin: claimed} if counts else {})


@pytest.mark.parametrize("limits", [LogConfig(keep_s=2.0), LogConfig(max_size_bytes=200)])
async def test_log_limits_remove_no_entry_that_a_client_waits_for(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, limits: LogConfig
) -> None:
    """Nodes adopt what has left a peer's log without bodies, and acknowledge it. By then no client may wait for it."""
    monkeypatch.setattr(timing, "LOG_TRUNCATION_LOOK_EVERY_S", 1.0)
    monkeypatch.setattr(timing, "BACKFILL_PATIENCE_S", 1000.0)
    stored = StoredBody.of(b"text")
    async with cluster(tmp_path, autojump_clock, 2, copies=2, when_short=WhenShort.REFUSE, log=limits) as nodes:
        one, two = nodes["dc1"], nodes["dc2"]
        log_truncation = one.coordinator.log_truncation
        await one.save("first")
        await until(lambda: log_truncation.checkpoint_status().in_force)
        before = dict(one.store.collected)
        async with trio.open_nursery() as nursery:
            nodes.network.road("dc1", "dc2").hold()
            saving = Saving(nursery, one)
            await until(lambda: not one.coordinator.connections.links)
            await trio.sleep(timing.REQUEST_TIMEOUT_S - TIMEOUT_S - 10)
            status = log_truncation.checkpoint_status()
            assert (status.in_force, status.waits_for) == (False, ("dc2",))
            assert one.store.collected == before
            assert saving.uid is None
            nodes.network.road("dc1", "dc2").release()
            await nodes.linked()
        assert saving.uid == 2
        assert await two.store.read(lambda reader: read_body(reader, stored.content_hash)) == stored.message
        await until(lambda: one.store.collected != before, timing.LONGEST_WAIT_S + 10)


async def test_log_limits_wait_longer_for_clients_of_large_messages(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a client waits for longer, because the message may cross a slow link."""
    monkeypatch.setattr(timing, "LOG_TRUNCATION_LOOK_EVERY_S", 1.0)
    monkeypatch.setattr(timing, "BACKFILL_PATIENCE_S", 1000.0)
    monkeypatch.setattr("replicator.replication.writes.requests.messages.SLOWEST_BYTES_S", 2_000)
    body, limits = message(1, random.Random(1).randbytes(200_000)), LogConfig(max_size_bytes=200)
    async with cluster(tmp_path, autojump_clock, 2, copies=2, when_short=WhenShort.REFUSE, log=limits) as nodes:
        one, two = nodes["dc1"], nodes["dc2"]
        await one.save("first")
        await until(lambda: one.coordinator.log_truncation.checkpoint_status().in_force)
        uids = list[int]()

        async def save_large() -> None:
            uids.append(await save(one, body))

        async with trio.open_nursery() as nursery:
            nodes.network.road("dc1", "dc2").hold()
            nursery.start_soon(save_large)
            await until(lambda: not one.coordinator.connections.links)
            await trio.sleep(2 * timing.REQUEST_TIMEOUT_S)
            assert not uids
            nodes.network.road("dc1", "dc2").release()
            await nodes.linked()
        assert uids == [2]
        assert await two.store.read(lambda reader: is_here(reader, hashlib.sha256(body).digest()))


# ---- counting ----------------------------------------------------------------------------------------------------


def no_lagging_peers() -> LaggingPeers:
    return LaggingPeers(lambda _: {}, COMING_S, STAYING_S)


class Counting:
    """Count copies with `Durability`, by acknowledgements that the test sets."""

    def __init__(self, copies: int, when_short: WhenShort, *acknowledged: int) -> None:
        self.others: list[str] = []
        self.durability = Durability(DurabilityConfig(copies, when_short), lambda: self.others, no_lagging_peers())
        self.woken: list[int] = []
        self.set(*acknowledged)

    def set(self, *acknowledged: int) -> None:
        """Set how much of dc1's log each peer has; there are as many peers as arguments."""
        self.others = [f"dc{number + 2}" for number in range(len(acknowledged))]
        for sid, seq in zip(self.others, acknowledged, strict=True):
            self.durability.linked(sid, f"{sid}.a")
            self.durability.acknowledged(sid, {"dc1.a": seq})

    async def wait(self, seq: int) -> None:
        await self.durability.wait(Dot("dc1.a", seq))
        self.woken.append(seq)

    async def change(self, *acknowledged: int) -> list[int]:
        """Set what the peers have acknowledged, and return the entries whose waiters wake up."""
        self.woken = []
        self.set(*acknowledged)
        self.durability.changed()
        await trio.testing.wait_all_tasks_blocked()
        return sorted(self.woken)


@pytest.mark.parametrize("when_short", list(WhenShort))
async def test_three_copies_need_two_peers(when_short: WhenShort) -> None:
    counting = Counting(3, when_short, 0, 0, 0)
    async with trio.open_nursery() as nursery:
        for seq in (1, 2, 3, 3, 5):
            nursery.start_soon(counting.wait, seq)
        await trio.testing.wait_all_tasks_blocked()
        assert await counting.change(9, 0, 0) == []
        assert await counting.change(9, 0, 2) == [1, 2]
        assert await counting.change(9, 1, 3) == [3, 3]
        assert await counting.change(9, 9, 0) == [5]


async def test_proceed_stops_waiting_for_peers_that_leave() -> None:
    for when_short, woken in ((WhenShort.PROCEED, [1]), (WhenShort.REFUSE, [])):
        counting = Counting(3, when_short, 0, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counting.wait, 1)
            await trio.testing.wait_all_tasks_blocked()
            assert await counting.change(1) == woken
            nursery.cancel_scope.cancel()


async def test_wait_for_a_durable_entry_returns_at_once() -> None:
    counting = Counting(2, WhenShort.REFUSE, 4)
    with trio.fail_after(5):
        await counting.wait(4)
    assert counting.woken == [4]


async def test_cancelled_waiter_leaves_the_others_waiting() -> None:
    counting = Counting(2, WhenShort.REFUSE, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(counting.wait, 1)
        with trio.move_on_after(0.01) as scope:
            await counting.wait(1)
        assert scope.cancelled_caught
        assert await counting.change(1) == [1]
    assert not counting.durability._waiting


async def test_waiter_that_comes_while_another_wakes_is_not_forgotten() -> None:
    counting = Counting(2, WhenShort.REFUSE, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(counting.wait, 1)
        await trio.testing.wait_all_tasks_blocked()
        counting.set(1)
        counting.durability.changed()
        counting.set(0)  # that peer has left, and another one has come
        nursery.start_soon(counting.wait, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert counting.woken == [1]
        assert await counting.change(1) == [1]


@pytest.mark.parametrize(("peers", "refused"), [(0, True), (1, True), (2, False), (3, False)])
async def test_refuse_checks_the_number_of_peers_in_advance(peers: int, *, refused: bool) -> None:
    acknowledged = [0] * peers
    Counting(3, WhenShort.PROCEED, *acknowledged).durability.check()
    counting = Counting(3, WhenShort.REFUSE, *acknowledged)
    if refused:
        with pytest.raises(DurabilityError, match=f"{peers + 1} of the 3 nodes"):
            counting.durability.check()
    else:
        counting.durability.check()


async def test_restored_node_counts_only_for_entries_that_it_still_has() -> None:
    durability = Durability(DurabilityConfig(2, WhenShort.REFUSE), lambda: ["dc2"], no_lagging_peers())
    woken: list[int] = []

    async def wait(seq: int) -> None:
        await durability.wait(Dot("dc2.a", seq))
        woken.append(seq)

    durability.linked("dc2", "dc2.b")
    durability.acknowledged("dc2", {"dc2.a": 4})
    async with trio.open_nursery() as nursery:
        for seq in (4, 5):
            nursery.start_soon(wait, seq)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == [4]
        durability.acknowledged("dc2", {"dc2.a": 5})
        await trio.testing.wait_all_tasks_blocked()
        assert woken == [4, 5]


async def test_late_acknowledgement_does_not_undo_a_newer_one() -> None:
    """An ACK may overtake a LOG that was sent before it."""
    durability = Durability(DurabilityConfig(2, WhenShort.REFUSE), lambda: ["dc2"], no_lagging_peers())
    durability.linked("dc2", "dc2.b")
    durability.acknowledged("dc2", {"dc1.a": 5})
    durability.acknowledged("dc2", {"dc1.a": 3})
    with trio.fail_after(5):
        await durability.wait(Dot("dc1.a", 5))


async def test_new_master_learns_what_is_durable_over_several_links(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The ACKs of dc3 went to dc2, which numbered the change. dc1 is the master now, and asks."""
    async with cluster(tmp_path, autojump_clock, 3, copies=3) as nodes:
        await nodes.make_line()
        await nodes["dc2"].save("first")
        await nodes["dc2"].flag(1)
        await nodes.converged()
        await nodes["dc1"].coordinator.handover.move_to(await nodes["dc1"].inbox(), "dc1")
        with trio.fail_after(5):
            await nodes["dc1"].flag(1)


async def test_entry_at_a_lagging_peer_counts_as_a_copy(mock_clock: MockClock) -> None:
    lagging_peers = LaggingPeers(lambda _: {"dc1.a": 5}, COMING_S, STAYING_S)
    durability = Durability(DurabilityConfig(3, WhenShort.REFUSE), lambda: ["dc2", "dc3"], lagging_peers)
    durability.changed()
    durability.acknowledged("dc2", {"dc1.a": 6})
    durability.changed()
    mock_clock.jump(COMING_S + 1)
    assert durability.reachable == 2
    durability.acknowledged("dc3", {"dc1.a": 4})
    with trio.fail_after(5):
        await durability.wait(Dot("dc1.a", 4))


async def test_node_that_comes_back_counts_only_after_new_acknowledgements() -> None:
    """The node may have lost its disk meanwhile. A node without a link to this one cannot tell it so."""
    others = ["dc2", "dc4"]
    durability = Durability(DurabilityConfig(2, WhenShort.REFUSE), lambda: others, no_lagging_peers())
    durability.acknowledged("dc4", {"dc1.a": 5})
    durability.changed()
    others.remove("dc4")
    durability.changed()
    others.append("dc4")
    durability.changed()
    with trio.move_on_after(0.01) as scope:
        await durability.wait(Dot("dc1.a", 5))
    assert scope.cancelled_caught
