"""The node that asks first becomes master, until the component changes, and it numbers only after catching up."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.commands import Master, Mismatch, Reply, Who
from protocol.values import Dot
from replicator.config import Config, MastershipConfig, Scope
from replicator.errors import DatabaseFailedError, DiskFullError, MailError
from replicator.replication.convergence import fork_scheduler, sync_client
from replicator.replication.log.sender import Sender
from replicator.replication.mastership.elections import Elections
from replicator.replication.writes.head_exchange import ask, tell_master
from replicator.store.db.chain import Chain
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Logged, Transaction
from replicator.store.log import forks
from tests.replication.cluster import TIMEOUT_S, USER, Cluster, Node, cluster, until
from tests.replication.mastership.masters import key_of, master
from tests.replication.slow_disk import delay_writes


@pytest.mark.parametrize("sid", ["dc1", "dc2", "dc3"])
async def test_first_writer_becomes_master(tmp_path: Path, autojump_clock: MockClock, sid: str) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].inbox()
        await nodes.converged()
        await nodes[sid].save("first")
        for node in nodes.all():
            await node.save("more")
        await nodes.converged()
        assert await master(nodes) == sid
        assert {dot.sid for dot in await dots(nodes["dc1"])} == {sid}
        status = {node.sid: await node.report.node_status() for node in nodes.all()}
        assert [status[other].root for other in nodes.sids] == ["dc1"] * 3
        assert status[sid].mastered == 1
        (shown,) = await nodes[sid].report.mailboxes(USER)
        assert shown.master == sid


@pytest.mark.parametrize("believed", [None, "dc1", "dc2"])
async def test_node_named_without_asking_learns_so_when_told_of_a_head(
    tmp_path: Path, autojump_clock: MockClock, believed: str | None
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        key = await key_of(nodes["dc2"])
        await nodes.converged()
        dc2, dc3 = (nodes[sid].coordinator.mastership for sid in ("dc2", "dc3"))
        scope, term = dc2.scope(key), dc2.masters.term
        assert await nodes["dc2"].coordinator.elections.ask(Who(term, scope, "dc3")) == Master("dc3")
        if believed is not None:
            dc3.masters.learn(scope, believed, term)
        await tell_master(dc2, "dc3", key, shown_by("dc2", key))
        await until(lambda: dc3.may_number(key))


async def test_reports_beyond_a_limit_count_when_they_are_repeated(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        key = await key_of(nodes["dc2"])
        await nodes.converged()
        dc2, dc3 = (nodes[sid].coordinator.mastership for sid in ("dc2", "dc3"))
        await nodes["dc2"].coordinator.elections.ask(Who(dc2.masters.term, dc2.scope(key), "dc3"))
        with monkeypatch.context() as patched:
            patched.setattr(fork_scheduler, "TOLD_MAX", 0)
            await tell_master(dc2, "dc3", key, shown_by("dc2", key))
            await trio.sleep(TIMEOUT_S)
            assert dc3.known_master(key) is None
        await tell_master(dc2, "dc3", key, shown_by("dc2", key))
        await until(lambda: dc3.may_number(key))


async def test_node_that_takes_another_one_for_the_master_asks_the_root_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        key = await key_of(nodes["dc2"])
        dc2 = nodes["dc2"].coordinator.mastership
        dc2.masters.bounced(dc2.scope(key))
        dc2.masters.learn(dc2.scope(key), "dc3", dc2.masters.term)
        await tell_master(dc2, "dc3", key, shown_by("dc2", key))
        assert dc2.known_master(key) is None
        assert await dc2.find(key) == "dc1"


async def test_comparison_makes_nobody_master(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        key = await key_of(nodes["dc2"])
        await nodes.converged()
        dc2 = nodes["dc2"].coordinator.mastership
        assert isinstance(await ask(dc2.toward("dc3"), "dc3", key, shown_by("dc2", key)), Mismatch)
        await trio.sleep(TIMEOUT_S)
        assert {node.coordinator.mastership.known_master(key) for node in nodes.all()} == {None}


def shown_by(sid: str, key: MailboxKey) -> Chain:
    return Chain(key.mailbox_id, USER, key.uidvalidity, head=Dot(f"{sid}.other", 1))


async def dots(node: Node) -> list[Dot]:
    return [message.dot for message in await node.messages()]


async def test_scope_has_one_master(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, start=["dc1"]) as nodes:
        nodes.mastership = MastershipConfig(scope=Scope.USER)
        await nodes.stop("dc1")
        await nodes.start()
        await nodes.linked()
        await nodes["dc3"].mail.create_folder(USER, "Work")
        await nodes.converged()
        await nodes["dc1"].save("text", "Work")
        assert await master(nodes, "Work") == "dc3"


@pytest.mark.parametrize("gone", ["dc1", "dc2", "dc3"])
async def test_another_node_numbers_when_the_master_is_down(
    tmp_path: Path, autojump_clock: MockClock, gone: str
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes[gone].save("first")
        await nodes.converged()
        await nodes.stop(gone)
        rest = nodes.all()
        with trio.fail_after(2 * TIMEOUT_S):
            assert await rest[0].save("second") == 2
            assert await rest[1].save("third") == 3
        await nodes.start(gone)
        await nodes.linked()
        assert await nodes[gone].save("fourth") == 4
        await nodes.converged()
        assert [message.uid for message in await rest[0].messages()] == [1, 2, 3, 4]


async def test_clients_write_while_the_root_restarts(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc2"].save("first")
        await nodes.converged()
        saved: list[int] = []

        async def client(node: Node) -> None:
            for number in range(30):
                saved.append(await node.save(f"{node.sid} {number}"))
                await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client, nodes["dc2"])
            nursery.start_soon(client, nodes["dc3"])
            for _ in range(2):
                await trio.sleep(1)
                await nodes.stop("dc1")
                await trio.sleep(0.5)
                await nodes.start("dc1")
        await nodes.linked()
        await nodes.converged()
        assert sorted(saved) == list(range(2, 62))
        assert [message.uid for message in await nodes["dc1"].messages()] == list(range(1, 62))


async def test_changes_wait_until_a_term_is_settled(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc3"].save("first")
        await nodes.converged()
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        # The root hears nothing from dc2, so the term that dc3's return begins does not settle.
        nodes.network.road("dc2", "dc1").hold()
        nodes.network.mend(("dc1", "dc3"))
        await until(lambda: "dc1" in nodes["dc3"].component)
        done = trio.Event()

        async def save() -> None:
            assert await nodes["dc3"].save("second") == 2
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(save)
            await trio.sleep(TIMEOUT_S / 4)
            assert not done.is_set()
            nodes.network.road("dc2", "dc1").release()
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()


class HeldSenders:
    """Keep all nodes from sending entries to one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, sid: str) -> None:
        self.released = trio.Event()
        send = Sender._send

        async def send_late(sender: Sender, batch: Sequence[Logged]) -> None:
            if sender._link.sid == sid:
                await self.released.wait()
            await send(sender, batch)

        patch.setattr(Sender, "_send", send_late)


async def leave_dc3_behind(nodes: Cluster) -> None:
    """Let dc3 rejoin without the entries that the others have made meanwhile; no entry is sent to it yet."""
    await nodes["dc3"].save("first")
    await nodes.converged()
    nodes.isolate("dc3")
    await nodes.linked(["dc1", "dc2"], ["dc3"])
    assert await nodes["dc1"].save("second") == 2
    assert await nodes["dc2"].save("third") == 3
    nodes.rejoin("dc3")
    await nodes.linked()


async def _for_ever(*_arguments: object, **_named: object) -> None:
    await trio.sleep_forever()


async def test_new_master_adopts_what_its_log_lacks_before_it_numbers(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        senders = HeldSenders(monkeypatch, "dc3")
        senders.released.set()
        await nodes["dc3"].inbox()
        await nodes.converged()
        senders.released = trio.Event()
        await leave_dc3_behind(nodes)
        began = trio.current_time()
        assert await nodes["dc3"].save("fourth") == 4
        assert trio.current_time() - began < TIMEOUT_S
        assert len(await nodes["dc3"].messages()) == 4
        assert nodes["dc3"].store.context != nodes["dc1"].store.context
        senders.released.set()
        await nodes.converged()


async def test_new_master_catches_up_before_it_numbers(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_client, "learn", _for_ever)
    async with cluster(tmp_path, autojump_clock) as nodes:
        senders = HeldSenders(monkeypatch, "dc3")
        senders.released.set()
        await nodes["dc3"].inbox()
        await nodes.converged()
        senders.released = trio.Event()
        await leave_dc3_behind(nodes)
        uids: list[int] = []

        async def save() -> None:
            uids.append(await nodes["dc3"].save("fourth"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(save)
            await trio.sleep(TIMEOUT_S / 2)
            assert nodes["dc3"].coordinator.mastership.known_master(await key_of(nodes["dc3"])) == "dc3"
            assert len(await nodes["dc3"].messages()) == 1
            senders.released.set()
        assert uids == [4]
        await nodes.converged()


async def test_new_master_that_cannot_catch_up_numbers_after_the_timeout(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_client, "learn", _for_ever)
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        senders = HeldSenders(monkeypatch, "dc3")
        senders.released.set()
        await nodes["dc3"].inbox()
        await nodes.converged()
        senders.released = trio.Event()
        await leave_dc3_behind(nodes)
        began = trio.current_time()
        assert await nodes["dc3"].save("fork") == 2
        assert trio.current_time() - began == pytest.approx(TIMEOUT_S, abs=0.2)
        senders.released.set()
        await nodes.converged()  # the fork costs a merge, and nothing else
        for node in nodes.all():
            texts = await node.bodies()
            assert texts[1] == "first"
            assert sorted(texts.values()) == ["first", "fork", "second", "third"]
            assert 2 not in texts


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(DiskFullError("full"), DiskFullError), (sqlite3.OperationalError("disk I/O error"), DatabaseFailedError)],
)
async def test_new_master_goes_on_once_its_disk_takes_the_merge(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    expected: type[Exception],
) -> None:
    def fail(*_arguments: object, **_named: object) -> None:
        raise failure

    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("both")
        await nodes.converged()
        nodes.network.cut(("dc1", "dc2"))
        await nodes.linked(["dc1"], ["dc2"])
        for node in nodes.all():
            await node.save(f"at {node.sid}")
        with monkeypatch.context() as patch:
            patch.setattr(forks, "carry_out", fail)
            nodes.network.mend(("dc1", "dc2"))
            await nodes.linked()
            with pytest.raises(expected):
                await nodes["dc1"].save("refused")
            await trio.sleep(TIMEOUT_S)
        await nodes.converged()
        assert sorted((await nodes["dc2"].bodies()).values()) == ["at dc1", "at dc2", "both"]


async def test_next_master_numbers_changes_that_met_the_end_of_a_term(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        store, elections = nodes["dc1"].store, nodes["dc1"].coordinator.elections
        write = store.write
        outcomes: list[str] = []

        async def write_late(work: Callable[[Transaction], Reply]) -> Reply:
            """End the term between the decision to number and the writer's turn."""
            if not outcomes:
                elections._do(elections.machine.component_changed())
                await store.flush()
            try:
                reply = await write(work)
            except MailError as error:
                outcomes.append(type(error).__name__)
                raise
            outcomes.append(type(reply).__name__)
            return reply

        monkeypatch.setattr(store, "write", write_late)
        assert await nodes["dc1"].save("second") == 2
        assert outcomes == ["_NotOursError", "Saved"]
        await nodes.converged()


async def test_starting_node_waits_for_others_before_it_numbers(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc1"]) as nodes:
        began = trio.current_time()
        await nodes["dc1"].save("alone")
        assert trio.current_time() - began == pytest.approx(TIMEOUT_S, abs=0.2)


async def test_starting_node_stops_waiting_when_all_are_linked(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc1"]) as nodes, trio.open_nursery() as nursery:
        nursery.start_soon(nodes["dc1"].save, "text")
        await trio.sleep(1)
        assert nodes["dc1"].store.context == {}
        await nodes.start("dc2")
        await until(lambda: bool(nodes["dc1"].store.context))
        assert trio.current_time() < TIMEOUT_S


async def test_single_node_numbers_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        with trio.fail_after(0.1):
            assert await nodes["dc1"].save("text") == 1


async def test_minority_numbers_too(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Both sides of a partition serve. Nothing has to be merged as long as they change different mailboxes."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        for sid in nodes.sids:
            await nodes[sid].mail.create_folder(USER, sid)
        await nodes.converged()
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        for sid in nodes.sids:
            for number in range(3):
                assert await nodes[sid].save(f"{number}", sid) == number + 1
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()
        for name in nodes.sids:
            assert list(await nodes["dc2"].bodies(name)) == [1, 2, 3]


async def test_term_settles_only_when_its_entries_are_on_disk(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes, trio.open_nursery() as nursery:
        await nodes["dc2"].save("first")
        await nodes.converged()
        node = nodes["dc2"]
        election, disk = node.coordinator.elections.machine, trio.Event()
        delay_writes(node, disk.wait)
        nursery.start_soon(node.save, "second")
        await trio.sleep(0.1)
        nodes.isolate("dc3")
        await until(lambda: node.component == {"dc1", "dc2"})
        await trio.sleep(TIMEOUT_S / 4)
        settled_too_early = election.settled
        disk.set()
        assert not settled_too_early
        await until(lambda: election.settled)
        assert Dot(node.store.origin, 2) in election.contexts["dc2"]
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()


async def test_catching_up_counts_only_in_its_own_term(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes, trio.open_nursery() as nursery:
        mastership, key = nodes["dc1"].coordinator.mastership, await key_of(nodes["dc1"])
        compared = trio.Event()

        async def compare(_key: MailboxKey) -> None:
            await compared.wait()

        monkeypatch.setattr(mastership, "_catch_up", compare)
        assert await mastership.find(key) == "dc1"
        nursery.start_soon(mastership.get_ready, key)
        await trio.testing.wait_all_tasks_blocked()
        elections = nodes["dc1"].coordinator.elections
        elections._do(elections.machine.component_changed())
        compared.set()
        await trio.testing.wait_all_tasks_blocked()
        assert await mastership.find(key) == "dc1"
        assert not mastership.may_number(key)
        await mastership.get_ready(key)
        assert mastership.may_number(key)
        await nodes.linked()


@pytest.mark.parametrize("scope", [Scope.MAILBOX, Scope.USER, Scope.DYNAMIC])
async def test_master_catches_up_again_when_a_scope_comes_back(
    tmp_path: Path, autojump_clock: MockClock, scope: Scope
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for sid in nodes.sids:
            await nodes.stop(sid)
        nodes.mastership = MastershipConfig(scope=scope)
        await nodes.start()
        await nodes.linked()
        await nodes["dc1"].save("first")
        key, mastership = await key_of(nodes["dc1"]), nodes["dc1"].coordinator.mastership
        assert mastership.may_number(key)
        await nodes["dc2"].coordinator.handover.move_to(await nodes["dc2"].inbox(), "dc2")
        await nodes["dc2"].coordinator.handover.resign(key, "dc1")
        await trio.sleep(1)
        mastership.bounced(key)  # dc1 has not heard that it is the master again
        assert await mastership.find(key) == "dc1"
        assert not mastership.may_number(key)
        await mastership.get_ready(key)
        assert mastership.may_number(key)


async def test_nodes_that_are_not_configured_peers_agree_on_the_root(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = Cluster.config

    def config(self: Cluster, sid: str) -> Config:
        made = complete(self, sid)
        peers = tuple(peer for peer in made.peers if {sid, peer.id} != {"dc1", "dc3"})
        return replace(made, peers=peers, node=replace(made.node, priority={"dc1": 10, "dc2": 5, "dc3": 2}[sid]))

    monkeypatch.setattr(Cluster, "config", config)
    async with cluster(tmp_path, autojump_clock, start=["dc1", "dc2"]) as nodes:
        await nodes.start("dc3")
        await until(lambda: all(node.component == {"dc1", "dc2", "dc3"} for node in nodes.all()))
        assert await nodes["dc1"].save("text") == 1
        assert {node.coordinator.elections.machine.root for node in nodes.all()} == {"dc3"}
        await nodes.converged()


async def test_node_pauses_between_questions_whose_answers_teach_nothing(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    ask = Elections.ask

    async def counted(elections: Elections, who: Who) -> Master | None:
        nonlocal asked
        asked += 1
        assert asked < 100, "time stands still while a node asks again and again"
        return await ask(elections, who)

    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("mail")
        key, mastership = await key_of(nodes["dc1"]), nodes["dc1"].coordinator.mastership
        masters, scope = mastership.masters, mastership.scope(key)
        monkeypatch.setattr(Elections, "ask", counted)
        assert masters.promise(scope, scope)
        assert masters.give(scope, "dc2", masters.term)  # of which the root has not heard yet
        assert masters.want(scope) == "dc2"
        masters.not_taken(scope, masters.term, refused=False)  # dc2 has not answered: it may be here, or there
        with trio.move_on_after(1) as waiting:
            await mastership.find(key)
        assert waiting.cancelled_caught
        masters.told(scope, masters.term)
        assert await mastership.find(key) == "dc1"
