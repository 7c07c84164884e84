"""Resync on demand reports what differs and makes it equal, except for damage of unknown extent."""

from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.replication import timing
from replicator.replication.tasks import resync
from replicator.store.db import queries
from replicator.tasks import Difference, ResyncOptions, ResyncStatus
from tests.effort import spread
from tests.replication.cluster import USER, Node, cluster, until
from tests.replication.idle_parts import leave_forks, stop_the_log
from tests.replication.log.truncating import forget_log
from tests.replication.tasks.partition import cut_off_dc1, fork, rejoin_dc1
from tests.replication.tasks.planted_damage import MAILBOX_DAMAGES
from tests.replication.tasks.running import check_at, resync_at, run_task, tasks_at

INBOX = "(SELECT mailbox_id FROM folder WHERE name = 'INBOX' AND user = 'alice')"


@pytest.fixture
def leave_forks_unmerged(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_forks(monkeypatch)


FORKED = {
    "expunged_here": 1, "missing_there": 1, "expunged_there": 1, "flags": 1, "missing_here": 1, "uid_conflict": 2,
}  # fmt: skip
MERGED = {3: "common 2", 4: "common 3", 5: "common 4"}


def by_peer_and_folder(status: ResyncStatus) -> dict[tuple[str, str | None], Difference]:
    return {(one.peer, one.folder): one for one in status.differences}


@pytest.mark.usefixtures("leave_forks_unmerged")
async def test_dry_run_reports_differences_and_changes_nothing(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fork(nodes)
        await until(lambda: nodes["dc3"].store.context == nodes["dc2"].store.context)
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        before = [await node.digests() for node in nodes.all()]
        status = await resync_at(nodes["dc1"], ResyncOptions(user=USER, dry_run=True))
        assert [await node.digests() for node in nodes.all()] == before
        assert (status.peers, status.mended, status.unmended) == (["dc2", "dc3"], 0, 6)
        for peer in ("dc2", "dc3"):
            assert by_peer_and_folder(status)[peer, "INBOX"] == Difference(peer, USER, "INBOX", FORKED, None, None)
            assert by_peer_and_folder(status)[peer, None].differed == {"missing_here": 1}
            assert by_peer_and_folder(status)[peer, "Work"].differed == {"missing_here": 1}
        assert status.differed == {kind: 2 * count for kind, count in FORKED.items()} | {"missing_here": 6}


@pytest.mark.usefixtures("leave_forks_unmerged")
@pytest.mark.parametrize("options", [ResyncOptions(), ResyncOptions(user=USER)], ids=["all", "user"])
async def test_resync_makes_equal_and_the_next_run_finds_nothing(
    tmp_path: Path, autojump_clock: MockClock, options: ResyncOptions
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fork(nodes)
        await rejoin_dc1(nodes)
        async with trio.open_nursery() as nursery:  # either node may be the one that merges the mailbox: both run
            nursery.start_soon(resync_at, nodes["dc2"], options)
            status = await resync_at(nodes["dc1"], options)
        assert by_peer_and_folder(status)["dc2", "INBOX"].differed == FORKED
        assert by_peer_and_folder(status)["dc2", "INBOX"].done in {"merged by dc1", "merged by dc2", "merged by dc3"}
        assert status.unmended == 0
        await nodes.converged()
        texts = await nodes["dc3"].bodies()
        assert (texts | MERGED, len(texts)) == (texts, 5)
        assert await nodes["dc1"].bodies("Work") == {1: "at work"}
        for node in nodes.all():
            again = await resync_at(node, options)
            assert (again.differences, again.differed) == ([], {})


@pytest.mark.usefixtures("leave_forks_unmerged")
async def test_resync_of_a_folder_mends_only_it_and_the_tree(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fork(nodes)
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        status = await resync_at(nodes["dc1"], ResyncOptions(USER, "Work"))
        assert [(one.folder, one.done) for one in status.differences] == [
            (None, "adopted here"), ("Work", "adopted here"),
        ]  # fmt: skip
        assert await nodes["dc1"].bodies("Work") == {1: "at work"}
        assert "at dc1" in (await nodes["dc1"].bodies()).values()
        assert "at dc2" not in (await nodes["dc1"].bodies()).values()


@pytest.mark.usefixtures("leave_forks_unmerged")
async def test_node_that_does_not_adopt_changes_is_named(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fork(nodes)
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        before = trio.current_time()
        status = await resync_at(nodes["dc2"], ResyncOptions(USER, "Work"))
        assert trio.current_time() - before < 2 * timing.PACING_SHOW_TIMEOUT_S, "the node is waited for only once"
        assert [(one.folder, one.differed, one.done) for one in status.differences] == [
            (None, {"missing_there": 1}, None), ("Work", {"missing_there": 1}, None),
        ]  # fmt: skip
        assert "not adopted there within 30 s" in str(status.differences[0].why_not)
        assert await nodes["dc1"].digests() != await nodes["dc2"].digests()


@pytest.mark.usefixtures("leave_forks_unmerged")
async def test_resync_waits_until_the_other_node_adopts_changes(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fork(nodes)
        with monkeypatch.context() as patch:
            stop_the_log(patch)
            await rejoin_dc1(nodes)
            async with tasks_at(nodes["dc2"]) as there, tasks_at(nodes["dc1"]) as here:
                there.start(ResyncOptions(USER, "Work"))
                await trio.sleep(timing.PACING_SHOW_TIMEOUT_S / 2)
                here.start(ResyncOptions(USER, "Work"))
                await there.wait("resync")
                status = there.status("resync")
        assert isinstance(status, ResyncStatus)
        assert [one.done for one in status.differences] == ["adopted there"]
        # nothing was left to do for the second folder


@pytest.mark.usefixtures("leave_forks_unmerged")
async def test_several_mailboxes_are_compared_concurrently(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        names = [f"F{number}" for number in range(30)]
        for name in names:
            await nodes["dc1"].mail.create_folder(USER, name)
        await nodes.converged()
        await cut_off_dc1(nodes)
        for name in names:
            await nodes["dc2"].save("there", name)
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        before = trio.current_time()
        status = await resync_at(nodes["dc1"], ResyncOptions())
        assert trio.current_time() - before < len(names) * timing.DIFF_LOOK_AGAIN_S / 2
        assert sorted((one.folder, one.done) for one in status.differences) == [
            (name, "adopted here") for name in sorted(names)
        ]


# ---- damage ------------------------------------------------------------------------------------------------------


RESTORABLE = {
    "row missing": MAILBOX_DAMAGES["row missing"],
    "flags changed": MAILBOX_DAMAGES["flags changed"],
    "all rows missing": f"DELETE FROM by_uid WHERE mailbox = {INBOX}",
    "sizes changed": f"UPDATE by_uid SET size_bytes = 7 WHERE mailbox = {INBOX}",
}


DAMAGED = [
    *(("dc1", name) for name in MAILBOX_DAMAGES if name not in RESTORABLE),
    *(("dc2", name) for name in MAILBOX_DAMAGES),
]


@pytest.mark.parametrize("statement", RESTORABLE.values(), ids=RESTORABLE.keys())
@pytest.mark.parametrize("is_log_gone", spread(1, [False, True]))
async def test_damaged_rows_are_restored_from_a_peer(
    tmp_path: Path, autojump_clock: MockClock, statement: str, *, is_log_gone: bool
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        one = nodes["dc1"]
        for number in range(3):
            await one.save(f"text {number}")
        await one.flag(2)
        await nodes.converged()
        folder, shown = await one.inbox(), await one.bodies()
        rows = await one.store.read(partial(queries.rows, mailbox_id=folder.mailbox_id))
        if is_log_gone:
            for node in nodes.all():
                await forget_log(node)
        one.damage(statement)
        if is_log_gone:
            checked = await check_at(one, repair=True)
            assert (checked.unproven, checked.damage.get("by_uid"), checked.unrepaired) == (2, 1, 1)
        looked = await resync_at(one, ResyncOptions(USER, "INBOX", dry_run=True))
        assert [different.done for different in looked.differences] == [None]
        status = await resync_at(one, ResyncOptions(USER, "INBOX"))
        assert [(different.folder, different.done) for different in status.differences] == [("INBOX", "restored here")]
        assert await one.bodies() == shown
        assert await one.store.read(partial(queries.rows, mailbox_id=folder.mailbox_id)) == rows
        assert (await resync_at(one, ResyncOptions(USER, "INBOX"))).differences == []
        assert (await check_at(one, repair=True)).damage == {}
        await one.save("later")
        await nodes.converged()


@pytest.mark.parametrize(("sid", "name"), spread(4, DAMAGED))
async def test_other_damage_is_reported_and_left_alone(
    tmp_path: Path, autojump_clock: MockClock, sid: str, name: str
) -> None:
    """dc1 runs the resync, and dc1 or dc2 has the damage."""
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for number in range(3):
            await nodes["dc1"].save(f"text {number}")
        await nodes["dc1"].flag(2)
        await nodes.converged()
        nodes[sid].damage(MAILBOX_DAMAGES[name])
        before = [await node.digests() for node in nodes.all()]
        is_unreadable_there = name == "row unreadable" and sid == "dc2"  # dc2 can report only that
        for options in (ResyncOptions(USER, "INBOX"), ResyncOptions(USER, "INBOX", dry_run=True)):
            status = await resync_at(nodes["dc1"], options)
            assert [(one.folder, one.differed, one.done) for one in status.differences] == [
                ("INBOX", {} if is_unreadable_there else {"damage": 1}, None)
            ]
            assert "run `replicator check" in str(status.differences[0].why_not)
        assert [await node.digests() for node in nodes.all()] == before
        assert (await check_at(nodes[sid], repair=True)).unrepaired == 0
        assert (await resync_at(nodes["dc1"], ResyncOptions(USER, "INBOX"))).differences == []


# ---- the task ----------------------------------------------------------------------------------------------------


async def test_resync_that_is_impossible_fails_with_the_reason(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await nodes["dc1"].save("text")
        await nodes.converged()
        for options, reason in [
            (ResyncOptions(peer="dc9"), "dc9 cannot be reached, only dc2, from dc1"),
            (ResyncOptions(peer="dc1"), "dc1 cannot be reached, only dc2, from dc1"),
            (ResyncOptions(USER, "Nowhere"), "there is no folder 'Nowhere' of alice here or at dc2"),
            (ResyncOptions("nobody"), "there is no user 'nobody' here or at dc2"),
        ]:
            status = await run_task(nodes["dc1"], options, ResyncStatus)
            assert (status.state, reason in str(status.error)) == ("failed", True), status.error
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2"])
        status = await run_task(nodes["dc1"], ResyncOptions(), ResyncStatus)
        assert "no other node can be reached from dc1" in str(status.error)


async def test_node_that_becomes_unreachable_is_named_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for number in range(20):
            await nodes["dc1"].mail.create_folder(USER, f"F{number}")
        await nodes.converged()
        async with tasks_at(nodes["dc1"]) as tasks:
            tasks.start(ResyncOptions(USER, rate=2))
            await trio.sleep(5)
            nodes.isolate("dc1")
            await tasks.wait("resync")
            status = tasks.status("resync")
        assert isinstance(status, ResyncStatus)
        assert [(one.peer, one.user, one.done) for one in status.differences] == [("dc2", None, None)]
        assert (status.state, status.done < status.total) == ("done", True)


async def test_resync_keeps_its_rate_and_ends_when_cancelled(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        for number in range(20):
            await nodes["dc1"].save(f"text {number}")
        await nodes.converged()
        before = trio.current_time()
        status = await resync_at(nodes["dc1"], ResyncOptions(USER, rate=10))
        assert trio.current_time() - before == pytest.approx(status.rows / 10, abs=0.5)
        async with tasks_at(nodes["dc1"]) as tasks:
            tasks.start(ResyncOptions(USER, rate=1))
            await trio.sleep(2)
            tasks.cancel("resync")
            before = trio.current_time()
            await tasks.wait("resync")
            cancelled = tasks.status("resync")
            assert cancelled is not None
            assert (cancelled.state, trio.current_time()) == ("cancelled", before)


@pytest.mark.usefixtures("leave_forks_unmerged")
async def test_differences_above_the_limit_are_counted(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resync, "DIFFERENCES_MAX", 1)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fork(nodes)
        stop_the_log(monkeypatch)
        await rejoin_dc1(nodes)
        async with tasks_at(nodes["dc1"]) as tasks:
            tasks.start(ResyncOptions(dry_run=True))
            await tasks.wait("resync")
            status = tasks.status("resync")
        assert isinstance(status, ResyncStatus)
        assert (len(status.differences), status.left_out, status.unmended) == (1, 2, 3)


@pytest.mark.long
async def test_resync_finds_and_loses_nothing_while_clients_write(tmp_path: Path) -> None:
    async with cluster(tmp_path, None, 2) as nodes, trio.open_nursery() as nursery:
        for node in nodes.all():
            await node.save(f"first at {node.sid}")
        done: set[str] = set()

        async def keep_writing(node: Node) -> None:
            for number in range(60):
                uid = await node.save(f"{node.sid} {number}")
                await node.flag(uid)
                if number % 4 == 0:
                    await node.expunge(uid)
            done.add(node.sid)

        for node in nodes.all():
            nursery.start_soon(keep_writing, node)
        while len(done) < 2:
            for node in nodes.all():
                status = await resync_at(node, ResyncOptions())
                assert "damage" not in status.differed
                assert status.unmended == 0, status.differences
        await nodes.converged()
        assert len(await nodes["dc1"].bodies()) == 2 + 2 * 45


async def test_unreachable_node_is_named(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("text")
        await nodes.converged()
        await nodes.stop("dc3")
        await nodes.linked()
        status = await resync_at(nodes["dc1"], ResyncOptions())
        assert status.peers == ["dc2"]
        assert [(one.peer, one.why_not) for one in status.differences] == [("dc3", "dc3 cannot be reached")]
        assert (await resync_at(nodes["dc1"], ResyncOptions(peer="dc2"))).unmended == 0
