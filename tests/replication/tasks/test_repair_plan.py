"""Nodes that apply a repair plan make mailboxes equal that are still as compared, and touch nothing else."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from protocol.values import Dot
from replicator.replication import timing
from replicator.replication.bodies import Bodies
from replicator.replication.bodies.from_peers.small_fetch import SmallFetch
from replicator.replication.convergence import sync_client
from replicator.replication.convergence.fork_merge import ForkMerger
from replicator.replication.convergence.fork_scheduler import ForkScheduler
from replicator.replication.convergence.reconciliation import Outcome, Reconciliation
from replicator.replication.links.link import LinkDownError
from replicator.replication.log.sender import Sender
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.tasks import repair_plan
from replicator.store.bodies.body_rows import lacking_count
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.transaction import Logged
from replicator.tasks import ApplyOptions, ApplyStatus, PlannedMailbox
from tests.replication.cluster import USER, Cluster, cluster
from tests.replication.idle_parts import never, stop_the_log
from tests.replication.tasks.partition import cut_off_dc1, fork, rejoin_dc1
from tests.replication.tasks.planning import apply, plan
from tests.replication.tasks.planted_damage import MAILBOX_DAMAGES
from tests.replication.tasks.running import check_at, tasks_at


@pytest.fixture(autouse=True)
def leave_forks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep forks until their master is told of them."""
    monkeypatch.setattr(ForkScheduler, "_note_commit", lambda *_: None)


def undone(status: ApplyStatus) -> list[tuple[str, str | None, str]]:
    return [(one.outcome, one.folder, one.why) for one in status.undone]


async def digests(nodes: Cluster) -> list[dict[str, str]]:
    return [await node.digests() for node in nodes.all()]


async def fork_thrice(nodes: Cluster) -> None:
    """Let each node of three go on alone, with a folder of its own."""
    await nodes["dc1"].save("common")
    await nodes.converged()
    for sid in nodes.nodes:
        nodes.isolate(sid)
    await nodes.linked(*([sid] for sid in nodes.nodes))
    for node in nodes.all():
        await node.save(f"at {node.sid}")
        await node.flag(1, added={f"${node.sid}"})
        await node.mail.create_folder(USER, f"of {node.sid}")
        await node.save("its own", f"of {node.sid}")
    for sid in nodes.nodes:
        nodes.rejoin(sid)
    await nodes.linked()


# ---- what is repaired --------------------------------------------------------------------------------------------


async def fork_inbox(nodes: Cluster) -> None:
    """Fork INBOX after UIDs 1 to 3: each side saves its own UID 4."""
    for number in range(3):
        await nodes["dc1"].save(f"text {number}")
    await nodes.converged()
    await cut_off_dc1(nodes)
    for node in nodes.all():
        await node.save(f"at {node.sid}")
    await rejoin_dc1(nodes)


@pytest.mark.parametrize("sid", ["dc1", "dc2", "dc3"])
async def test_masters_merge_forks_and_the_next_run_finds_nothing(
    tmp_path: Path, autojump_clock: MockClock, sid: str
) -> None:
    """At two of the three nodes another node masters INBOX, and must be told."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fork_thrice(nodes)
        planned = await plan(nodes)
        assert len(planned) == 2, "new folders come by the log; INBOX and the tree have forked"
        status = await apply(nodes[sid], ApplyOptions(planned))
        assert status.outcomes == {"repaired": 2}
        shown = await digests(nodes)
        assert shown[0] == shown[1] == shown[2], "everything reported as repaired is equal at once"
        texts = await nodes["dc3"].bodies()
        assert sorted(texts.values()) == ["at dc1", "at dc2", "at dc3", "common"]
        assert texts[1] == "common"
        assert {f"$dc{number}" for number in (1, 2, 3)} <= (await nodes["dc2"].messages())[0].flags
        assert await nodes["dc1"].bodies("of dc3") == {1: "its own"}
        again = await apply(nodes[sid], ApplyOptions(planned))
        assert again.outcomes == {"equal": 2}
        await nodes.converged()


async def test_fork_of_two_peers_is_repaired_at_a_node_behind_both(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Sender._send

    async def send_others(sender: Sender, batch: Sequence[Logged]) -> None:
        await (never() if sender._link.sid == "dc1" else send(sender, batch))

    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("common")
        await nodes.converged()
        for one in nodes.nodes:
            nodes.isolate(one)
        await nodes.linked(*([one] for one in nodes.nodes))
        await nodes["dc2"].save("at dc2")
        await nodes["dc3"].save("at dc3")
        before = dict(nodes["dc1"].store.context)
        monkeypatch.setattr(Sender, "_send", send_others)
        for one in nodes.nodes:
            nodes.rejoin(one)
        await nodes.linked()
        planned = await plan(nodes)
        assert (len(planned), len(set(planned[0].heads.values()))) == (1, 3)
        assert nodes["dc1"].store.context == before
        assert (await apply(nodes["dc1"], ApplyOptions(planned))).outcomes == {"repaired": 1}
        assert await plan(nodes) == ()
        assert sorted((await nodes["dc1"].bodies()).values()) == ["at dc2", "at dc3", "common"]


async def test_missing_state_is_adopted_and_trees_go_first(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("common")
        await nodes.converged()
        await cut_off_dc1(nodes)
        await nodes["dc2"].save("at dc2")
        await nodes["dc2"].mail.create_folder(USER, "Work")
        await nodes["dc2"].save("at work", "Work")
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        planned = await plan(nodes)
        assert [one.heads["dc1"] is None for one in planned].count(True) == 1
        order: list[bool] = []
        reconcile = repair_plan.RepairPlanTask._reconcile

        async def noting(job: repair_plan.RepairPlanTask, key: queries.MailboxKey, others: list[str]) -> None:
            order.append(key.uidvalidity == 0)
            await reconcile(job, key, others)

        monkeypatch.setattr(repair_plan.RepairPlanTask, "_reconcile", noting)
        status = await apply(nodes["dc1"], ApplyOptions(planned, texts=True))
        assert (status.outcomes, status.texts_lacking) == ({"repaired": 3}, 0)
        assert order[0] is True
        assert await nodes["dc1"].bodies("Work") == {1: "at work"}
        assert await nodes["dc1"].digests() == await nodes["dc2"].digests()


async def fork_that_dc2_masters(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> PlannedMailbox:
    """Fork INBOX at two nodes, without a log between them; return its part of the plan."""
    await nodes["dc1"].save("common")
    await nodes.converged()
    await cut_off_dc1(nodes)
    for node in nodes.all():
        await node.save(f"at {node.sid}")
    stop_the_log(monkeypatch)
    await rejoin_dc1(nodes)
    [inbox] = await plan(nodes)
    key = queries.MailboxKey(USER, bytes.fromhex(inbox.mailbox), inbox.uidvalidity)
    assert await nodes["dc2"].coordinator.mastership.find(key) == "dc2", "the first node that asks becomes master"
    return inbox


async def test_merged_state_is_adopted_if_the_log_does_not_bring_it(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        inbox = await fork_that_dc2_masters(nodes, monkeypatch)
        status = await apply(nodes["dc1"], ApplyOptions((inbox,)))
        assert status.outcomes == {"repaired": 1}
        assert sorted((await nodes["dc1"].bodies()).values()) == ["at dc1", "at dc2", "common"]
        assert await nodes["dc1"].digests() == await nodes["dc2"].digests()


async def test_master_merges_a_fork_however_long_that_takes(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mailbox counts as large, and the log brings nothing of it."""
    learn = sync_client.learn

    async def slowly(*arguments: Any, **options: Any) -> sync_client.Learned | None:
        await trio.sleep(2 * timing.RECONCILIATION_FIND_TIMEOUT_S)
        return await learn(*arguments, **options)

    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        inbox = await fork_that_dc2_masters(nodes, monkeypatch)
        monkeypatch.setattr(sync_client, "learn", slowly)
        assert (await apply(nodes["dc1"], ApplyOptions((inbox,)))).outcomes == {"repaired": 1}
        assert sorted((await nodes["dc1"].bodies()).values()) == ["at dc1", "at dc2", "common"]


async def test_node_that_lacks_changes_is_named_and_repairs_itself(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for name in ("A", "B", "C"):
            await nodes["dc1"].mail.create_folder(USER, name)
        await nodes.converged()
        await cut_off_dc1(nodes)
        for name in ("A", "B", "C"):
            await nodes["dc2"].save("at dc2", name)
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        planned = await plan(nodes)
        before = trio.current_time()
        status = await apply(nodes["dc2"], ApplyOptions(planned))
        took = trio.current_time() - before
        assert timing.PACING_SHOW_TIMEOUT_S < took < timing.PACING_SHOW_TIMEOUT_S + 5
        assert status.outcomes == {"failed": 3}
        _, folder, text = min(undone(status))
        assert (folder, text.startswith("dc1 and this node did not become equal within 30 s")) == ("A", True)
        assert text.endswith("apply a new plan at dc1")
        status = await apply(nodes["dc1"], ApplyOptions(planned))
        assert status.outcomes == {"repaired": 3}


async def test_slow_node_is_waited_for_less_the_next_time(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_plan, "AT_ONCE", 1)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for name in ("A", "B", "C"):
            await nodes["dc1"].mail.create_folder(USER, name)
        await nodes.converged()
        await cut_off_dc1(nodes)
        for name in ("A", "B", "C"):
            await nodes["dc2"].save("at dc2", name)
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        before = trio.current_time()
        status = await apply(nodes["dc2"], ApplyOptions(await plan(nodes)))
        assert status.outcomes == {"failed": 3}
        expected = timing.PACING_SHOW_TIMEOUT_S + 2 * timing.PACING_SLOW_TIMEOUT_S
        assert trio.current_time() - before == pytest.approx(expected, abs=2)


# ---- what is left alone ------------------------------------------------------------------------------------------


async def test_dry_run_reports_repairs_and_changes_nothing(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fork(nodes)
        await rejoin_dc1(nodes)
        await trio.sleep(5)  # until the log has brought what only one side has changed
        planned, before = await plan(nodes), await digests(nodes)
        for node in nodes.all():
            status = await apply(node, ApplyOptions(planned, dry_run=True))
            assert (status.outcomes, status.undone, status.dry_run) == ({"repaired": len(planned)}, [], True)
        await trio.sleep(timing.PACING_SHOW_TIMEOUT_S)
        assert await digests(nodes) == before
        assert (await apply(nodes["dc2"], ApplyOptions(planned))).outcomes == {"repaired": len(planned)}


@pytest.mark.parametrize("at", ["dc1", "dc3"])
async def test_mailbox_changed_since_the_comparison_is_left_alone(
    tmp_path: Path, autojump_clock: MockClock, at: str
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fork_thrice(nodes)
        planned = await plan(nodes)
        [inbox] = [one for one in planned if one.uidvalidity]
        compared = {**inbox.heads, at: Dot(f"{at}.before", 1)}
        before = await digests(nodes)
        status = await apply(nodes["dc1"], ApplyOptions((replace(inbox, heads=compared),)))
        assert undone(status) == [("moved", "INBOX", f"changed since it was compared, at {at}")]
        await trio.sleep(timing.PACING_SHOW_TIMEOUT_S)
        assert await digests(nodes) == before


async def test_mailbox_that_became_equal_is_not_counted_as_moved(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("text")
        shown = await nodes.converged()
        chains = await nodes["dc1"].store.read(partial(queries.chains_of, user=None))
        heads = {sid: Dot(f"{sid}.before", 7) for sid in nodes.nodes}
        planned = [PlannedMailbox(chain.user, chain.id.hex(), chain.uidvalidity, heads) for chain in chains]
        status = await apply(nodes["dc2"], ApplyOptions(tuple(planned)))
        assert status.outcomes == {"equal": 2}
        assert await nodes.converged() == shown


@pytest.mark.parametrize("dry_run", [False, True])
async def test_unknown_mailbox_is_not_reported_as_equal(
    tmp_path: Path, autojump_clock: MockClock, *, dry_run: bool
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        heads = {"dc1": Dot("dc1.before", 7), "dc2": None, "dc3": None}
        unknown = PlannedMailbox(USER, "ab" * 16, 7, heads)
        [(outcome, folder, text)] = undone(await apply(nodes["dc2"], ApplyOptions((unknown,), dry_run)))
        assert (outcome, folder) == ("failed", "ab" * 16)
        assert text.startswith("no node of the plan knows the mailbox")


@pytest.mark.parametrize("dry_run", [False, True])
async def test_mailboxes_of_unreachable_nodes_are_left_alone(
    tmp_path: Path, autojump_clock: MockClock, *, dry_run: bool
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fork_thrice(nodes)
        planned = await plan(nodes)
        strange = PlannedMailbox(USER, "ab" * 16, 7, {"dc1": None, "dc9": None})
        await nodes.stop("dc3")
        await nodes.linked()
        before = await digests(nodes)
        status = await apply(nodes["dc1"], ApplyOptions((*planned, strange), dry_run=dry_run))
        assert status.outcomes == {"unreachable": 3}
        assert {text for _, _, text in undone(status)} == {
            "dc3 cannot be reached from here", "dc9 cannot be reached from here",
        }  # fmt: skip
        assert await digests(nodes) == before


async def test_node_that_becomes_unreachable_is_reported(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fork(nodes)
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        planned = await plan(nodes)
        async with tasks_at(nodes["dc2"]) as tasks:
            tasks.start(ApplyOptions(planned))
            await trio.sleep(timing.PACING_SHOW_TIMEOUT_S / 2)  # dc1 does not adopt what it lacks
            nodes.isolate("dc1")
            await tasks.wait("apply")
            status = tasks.status("apply")
        assert isinstance(status, ApplyStatus)
        assert (status.state, status.outcomes) == ("done", {"unreachable": 3})


async def test_link_that_ends_during_the_comparison_is_reported(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends(*_arguments: object, **_options: object) -> None:
        raise LinkDownError("dc2")

    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("common")
        await nodes.converged()
        await cut_off_dc1(nodes)
        await nodes["dc2"].save("at dc2")
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        monkeypatch.setattr(sync_client, "learn", ends)
        status = await apply(nodes["dc1"], ApplyOptions(await plan(nodes)))
        assert undone(status) == [("unreachable", "INBOX", "a link went down meanwhile")]


@pytest.mark.parametrize("name", ["fingerprint changed", "numbers changed"])
async def test_different_states_at_one_head_are_damage(tmp_path: Path, autojump_clock: MockClock, name: str) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for number in range(3):
            await nodes["dc1"].save(f"text {number}")
        await nodes["dc1"].flag(2)
        await nodes.converged()
        nodes["dc2"].damage(MAILBOX_DAMAGES[name])
        planned, before = await plan(nodes), await digests(nodes)
        assert len(planned) == 1
        for node in nodes.all():
            for dry_run in (True, False):
                status = await apply(node, ApplyOptions(planned, dry_run=dry_run))
                [(outcome, folder, text)] = undone(status)
                assert (outcome, folder, "run `replicator check --repair`" in text) == ("damaged", "INBOX", True)
        assert await digests(nodes) == before
        assert (await check_at(nodes["dc2"], repair=True)).unrepaired == 0


@pytest.mark.parametrize(("sid", "name"), [("dc1", "row unreadable"), ("dc2", "fingerprint changed")])
async def test_damage_found_by_comparing_rows_is_reported(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, sid: str, name: str
) -> None:
    """dc1 lags behind dc2: their different heads explain their different digests."""
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for number in range(3):
            await nodes["dc1"].save(f"text {number}")
        await nodes.converged()
        await cut_off_dc1(nodes)
        await nodes["dc2"].flag(2, 3)
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        planned = await plan(nodes)
        nodes[sid].damage(MAILBOX_DAMAGES[name])
        status = await apply(nodes["dc1"], ApplyOptions(planned))
        [(outcome, folder, text)] = undone(status)
        assert (outcome, folder, "run `replicator check --repair`" in text) == ("damaged", "INBOX", True), text
        assert (await check_at(nodes[sid], repair=True)).unrepaired == 0


async def test_damaged_database_is_reported_without_advising_a_check(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        damaged = nodes["dc1"].store.damage.note(sqlite3.DatabaseError("database disk image is malformed"))

        async def malformed(*_arguments: object) -> Chain:
            raise damaged

        planned = PlannedMailbox(USER, "ab" * 16, 7, {"dc1": None, "dc2": None})
        monkeypatch.setattr(repair_plan, "chain_of", malformed)
        [(outcome, _, text)] = undone(await apply(nodes["dc1"], ApplyOptions((planned,))))
        assert (outcome, text) == ("damaged", str(damaged))


@pytest.mark.parametrize("sid", ["dc1", "dc2"])
@pytest.mark.parametrize("at", ["dc1", "dc2"])
async def test_lost_row_is_not_taken_for_expunged_in_a_merge(
    tmp_path: Path, autojump_clock: MockClock, sid: str, at: str
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fork_inbox(nodes)
        planned, before = await plan(nodes), await digests(nodes)
        nodes[sid].damage(MAILBOX_DAMAGES["row missing"])
        [(outcome, folder, text)] = undone(await apply(nodes[at], ApplyOptions(planned)))
        assert (outcome, folder, "run `replicator check --repair`" in text) == ("damaged", "INBOX", True)
        assert await digests(nodes) == before
        assert (await check_at(nodes[sid], repair=True)).unrepaired == 0
        assert (await apply(nodes[at], ApplyOptions(planned))).outcomes == {"repaired": 1}
        for node in nodes.all():
            assert sorted((await node.bodies()).values()) == ["at dc1", "at dc2", "text 0", "text 1", "text 2"]


@pytest.mark.long
async def test_master_with_a_lost_row_merges_nothing_and_gives_the_reason(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fork_inbox(nodes)
        planned, before = await plan(nodes), await digests(nodes)
        key = queries.MailboxKey(USER, bytes.fromhex(planned[0].mailbox), planned[0].uidvalidity)
        assert await nodes["dc2"].coordinator.mastership.find(key) == "dc2", "the first node that asks becomes master"
        nodes["dc2"].damage(MAILBOX_DAMAGES["row missing"])
        [(outcome, folder, text)] = undone(await apply(nodes["dc1"], ApplyOptions(planned)))
        assert (outcome, folder) == ("damaged", "INBOX")
        assert "at dc2, the rows of a mailbox do not match their counters; run `replicator check` there" in text
        assert await digests(nodes) == before
        assert caplog.text.count("stay apart") == 1, "logged once a minute, however often the master is asked"
        assert (await check_at(nodes["dc2"], repair=True)).unrepaired == 0
        outcomes = (await apply(nodes["dc1"], ApplyOptions(planned))).outcomes
        assert outcomes in ({"repaired": 1}, {"equal": 1}), "the master may have merged it a moment ago"
        for node in nodes.all():
            assert sorted((await node.bodies()).values()) == ["at dc1", "at dc2", "text 0", "text 1", "text 2"]


async def owners(nodes: Cluster) -> list[set[tuple[bytes, str, int]]]:
    """Return the mailboxes and trees of each node, with their users and UIDVALIDITYs."""
    found = [await node.store.read(partial(queries.chains_of, user=None)) for node in nodes.all()]
    return [{(chain.id, chain.user, chain.uidvalidity) for chain in chains} for chains in found]


async def test_owner_of_a_missing_mailbox_comes_from_its_folder(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one = nodes["dc1"]
        await one.save("common")
        await nodes.converged()
        await cut_off_dc1(nodes)
        await nodes["dc2"].mail.create_folder(USER, "Work")
        await nodes["dc2"].save("secret", "Work")
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        work, tree = await plan(nodes)
        before = await owners(nodes)
        for user in ("mallory", USER):
            [(outcome, _, text)] = undone(await apply(one, ApplyOptions((replace(work, user=user),))))
            assert (outcome, f"tree of {user} at this node lacks the mailbox" in text) == ("failed", True)
            assert await owners(nodes) == before
        assert (await apply(one, ApplyOptions((tree,)))).outcomes == {"repaired": 1}
        [(outcome, folder, text)] = undone(await apply(one, ApplyOptions((replace(work, user="mallory"),))))
        assert (outcome, folder) == ("failed", "Work")
        assert "names another user, but here the owner is alice" in text
        assert (await apply(one, ApplyOptions((replace(work, uidvalidity=99),)))).outcomes == {"repaired": 1}
        mine, theirs = await owners(nodes)
        assert mine == theirs


async def test_fork_is_not_merged_for_another_user(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fork_thrice(nodes)
        planned, before = await plan(nodes), await digests(nodes)
        [inbox] = [one for one in planned if one.uidvalidity]
        wrong = replace(inbox, user="mallory")
        for dry_run in (True, False):
            [(outcome, folder, _)] = undone(await apply(nodes["dc1"], ApplyOptions((wrong,), dry_run=dry_run)))
            assert (outcome, folder) == ("failed", "INBOX")
        assert await digests(nodes) == before
        uid = replace(inbox, uidvalidity=99)
        assert (await apply(nodes["dc2"], ApplyOptions((uid,)))).outcomes == {"repaired": 1}
        known = {(user, uidvalidity) for chains in await owners(nodes) for _, user, uidvalidity in chains}
        assert ({user for user, _ in known}, {uidvalidity for _, uidvalidity in known} & {99}) == ({USER}, set())


async def test_mailbox_planned_as_damaged_is_left_to_a_check(tmp_path: Path, autojump_clock: MockClock) -> None:
    """No node is asked, because the plan comes from rows, and may know damage that no digest shows."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("text")
        await nodes.converged()
        planned = PlannedMailbox(USER, "ab" * 16, 7, {"dc1": None, "dc9": None}, damaged=True)
        [(outcome, folder, text)] = undone(await apply(nodes["dc1"], ApplyOptions((planned,))))
        assert (outcome, folder) == ("damaged", "ab" * 16)
        assert "run `replicator check --repair` at its nodes, and make a new plan" in text


async def test_branches_that_cannot_be_merged_are_reported(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ForkMerger, "is_hopeless", lambda *_: True)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fork(nodes)
        await rejoin_dc1(nodes)
        await trio.sleep(5)
        status = await apply(nodes["dc1"], ApplyOptions(await plan(nodes)))
        assert [(outcome, folder) for outcome, folder, _ in undone(status)] == [("failed", "INBOX")]
        assert "cannot be merged; the log of its master says why" in undone(status)[0][2]


@pytest.mark.long
async def test_timeout_does_not_count_the_wait_for_a_turn(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_plan, "RECONCILED_AT_ONCE", 1)
    reconcile = Reconciliation.reconcile

    async def slowly(reconciliation: Reconciliation, key: queries.MailboxKey, sid: str) -> Outcome:
        await trio.sleep(timing.REPAIR_PLAN_MAILBOX_TIMEOUT_S - 1)
        return await reconcile(reconciliation, key, sid)

    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for name in ("A", "B", "C"):
            await nodes["dc1"].mail.create_folder(USER, name)
        await nodes.converged()
        await cut_off_dc1(nodes)
        for name in ("A", "B", "C"):
            await nodes["dc2"].save("at dc2", name)
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        monkeypatch.setattr(Reconciliation, "reconcile", slowly)
        assert (await apply(nodes["dc1"], ApplyOptions(await plan(nodes)))).outcomes == {"repaired": 3}


async def test_unknown_master_is_not_waited_for(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fork(nodes)
        await rejoin_dc1(nodes)
        await trio.sleep(5)
        [inbox] = [one for one in await plan(nodes) if one.uidvalidity]
        before = trio.current_time()
        monkeypatch.setattr(Mastership, "find", never)
        [(outcome, _, text)] = undone(await apply(nodes["dc1"], ApplyOptions((inbox,))))
        assert (outcome, text) == ("failed", "no node names the master of folder 'INBOX' of alice")
        assert trio.current_time() - before < timing.RECONCILIATION_FIND_TIMEOUT_S + 1


# ---- the task ----------------------------------------------------------------------------------------------------


async def test_next_run_continues_an_interrupted_one(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        names = [f"F{number}" for number in range(10)]
        for name in names:
            await nodes["dc1"].mail.create_folder(USER, name)
            await nodes["dc1"].save("common", name)
        await nodes.converged()
        await cut_off_dc1(nodes)
        for node in nodes.all():
            for name in names:
                await node.save(f"at {node.sid}", name)
        await rejoin_dc1(nodes)
        planned = await plan(nodes)
        async with tasks_at(nodes["dc1"]) as tasks:
            tasks.start(ApplyOptions(planned, rate=1))
            await trio.sleep(5.5)
            tasks.cancel("apply")
            await tasks.wait("apply")
            status = tasks.status("apply")
        assert isinstance(status, ApplyStatus)
        assert (status.state, status.total) == ("cancelled", 10)
        assert 4 <= status.outcomes["repaired"] == status.done <= 6
        again = await apply(nodes["dc1"], ApplyOptions(planned))
        assert again.outcomes["equal"] >= status.done
        assert sum(again.outcomes.values()) == again.outcomes["equal"] + again.outcomes["repaired"] == 10
        await nodes.converged()


async def test_apply_keeps_its_rate(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        planned = tuple(PlannedMailbox(USER, f"{n:032x}", 7, {"dc1": None, "dc2": None}) for n in range(100))
        before = trio.current_time()
        assert (await apply(nodes["dc1"], ApplyOptions(planned, rate=10))).outcomes == {"equal": 100}
        assert trio.current_time() - before == pytest.approx(10, abs=0.5)


async def test_missing_bodies_are_counted(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = Bodies.fetch
    lost = trio.Event()

    async def fetch_one(bodies: Bodies, content_hash: bytes, write: object) -> bool:
        if lost.is_set():
            return False
        lost.set()
        return await fetch(bodies, content_hash, write)  # type: ignore[arg-type]  # passed through

    async def fetch_none(_small_fetch: SmallFetch, _hashes: object, _keep: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Bodies, "fetch", fetch_one)
    monkeypatch.setattr(SmallFetch, "fetch", fetch_none)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("common")
        await nodes.converged()
        await cut_off_dc1(nodes)
        for number in range(3):
            await nodes["dc2"].save(f"text {number}")
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        planned = await plan(nodes)
        before = trio.current_time()
        status = await apply(nodes["dc1"], ApplyOptions(planned, texts=True))
        assert (status.outcomes, status.texts_lacking) == ({"repaired": 1}, 2)
        assert await nodes["dc1"].store.read(lacking_count) == 2
        assert (
            timing.REPAIR_PLAN_BODIES_TIMEOUT_S < trio.current_time() - before < 2 * timing.REPAIR_PLAN_BODIES_TIMEOUT_S
        )
        without = await apply(nodes["dc1"], ApplyOptions(planned))
        assert (without.outcomes, without.texts_lacking) == ({"equal": 1}, None)


async def test_plan_of_other_nodes_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes, tasks_at(nodes["dc1"]) as tasks:
        tasks.start(ApplyOptions((PlannedMailbox(USER, "ab" * 16, 7, {"dc2": None, "dc3": None}),)))
        await tasks.wait("apply")
        status = tasks.status("apply")
        assert status is not None
        assert (status.state, status.error) == (
            "failed", "the plan is not for this node, dc1, but for dc2, dc3; apply it at one of those",
        )  # fmt: skip
