"""`log show` at nodes of a cluster: forks, merges, folder trees, and what has left the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from replicator.cli.stories.history_lines import lines
from replicator.errors import FolderNotFoundError
from replicator.replication import timing
from replicator.replication.stories import history
from replicator.store.log.stories import chain_walk
from replicator.stories import LAST_DEFAULT, LoggedHistory
from tests.replication.cluster import EPOCH_MS, USER, Cluster, Node, cluster
from tests.replication.log.truncating import forget_log
from tests.replication.stories.telling import heal, link_apart, part, stories_at


async def told(node: Node, name: str | None = "INBOX", last: int = LAST_DEFAULT, since_ms: int = 0) -> LoggedHistory:
    return await stories_at(node).history(USER, name, last=last, since_ms=since_ms)


def shape(found: LoggedHistory) -> list[str]:
    """Return graph, node and deed of each entry, without time and name."""
    shown = []
    for line in lines(found):
        graph, _, rest = line.partition("20")
        shown.append(f"{graph}{rest[19:].partition('  [')[0]}".rstrip() if rest else line)
    return shown


async def fork(nodes: Cluster) -> None:
    await nodes["dc1"].save("x")
    await nodes["dc1"].save("w")
    await nodes.converged()
    await part(nodes)
    await nodes["dc1"].save("y")
    await nodes["dc2"].save("z")
    await nodes["dc2"].flag(1)
    await nodes["dc1"].expunge(2)


async def test_fork_and_merge_are_drawn(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fork(nodes)
        apart = await told(nodes["dc1"])
        assert [deed.kind for one in apart.entries for deed in one.deeds] == [
            "expunged",
            "arrived",
            "arrived",
            "arrived",
        ]
        await heal(nodes)
        found = await told(nodes["dc1"])
        assert {one.state for one in found.entries} == {"shown"}
        assert found.head == found.entries[0].entry
        merge = found.entries[0]
        assert len(merge.predecessors) == 2
        [deed] = merge.deeds
        assert {(one.before, one.after) for one in deed.renumbered} == {((3,), 4), ((3,), 5)}
        assert (deed.messages, deed.joined, deed.changed, deed.removed) == (2, 0, 1, 1)
        assert [line for line in shape(found) if "*" not in line] == ["|\\", "|/"]
        for node in nodes.all():
            other = await told(node)
            assert {one.entry for one in other.entries} == {one.entry for one in found.entries}


async def test_branch_that_waits_is_marked(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        with monkeypatch.context() as patched:
            await fork(nodes)
            await link_apart(nodes, patched)
            found = await told(nodes["dc1"])
            states = {one.entry: (one.node, one.state) for one in found.entries}
            assert sorted(states.values()) == [*[("dc1", "shown")] * 4, *[("dc2", "waiting")] * 2]
            assert sum("(waits)" in line for line in lines(found)) == 2
            there = await told(nodes["dc3"])
            assert sorted((one.node, one.state) for one in there.entries if one.state == "waiting") == [
                ("dc1", "waiting"), ("dc1", "waiting")
            ]  # fmt: skip


async def test_last_and_since_limit_the_story(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        for number in range(5):
            await nodes["dc1"].save(str(number))
        found = await told(nodes["dc1"], last=2)
        assert ([one.modseq for one in found.entries], found.is_cut) == ([5, 4], True)
        assert [*lines(found)][-1] == "there are older entries: ask for them by --last or --since"
        whole = await told(nodes["dc1"], last=5)
        assert (len(whole.entries), whole.is_cut) == (5, False)
        late = await told(nodes["dc1"], since_ms=EPOCH_MS + 3_600_000)
        assert (late.entries, late.is_cut) == ((), True)
        assert len((await told(nodes["dc1"], since_ms=EPOCH_MS)).entries) == 5


async def test_history_that_takes_too_long_ends_with_what_it_has(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        for number in range(5):
            await nodes["dc1"].save(str(number))
        monkeypatch.setattr(timing, "STORY_READ_S", 0.0)
        monkeypatch.setattr(chain_walk, "SLICE_ENTRIES", 2)
        found = await told(nodes["dc1"])
        assert ([one.modseq for one in found.entries], found.is_cut) == ([5, 4], True)


async def test_merge_is_told_by_entries_before_those_asked_for(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await fork(nodes)
        await heal(nodes)
        [deed] = (await told(nodes["dc1"], last=1)).entries[0].deeds
        assert {one.before for one in deed.renumbered} == {(3,)}
        monkeypatch.setattr(history, "BEFORE", 0)
        [deed] = (await told(nodes["dc1"], last=1)).entries[0].deeds
        assert {one.before for one in deed.renumbered} == {()}, "it is not guessed"


async def test_entries_that_left_the_log_are_said_to_have_left(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save("x")
        await forget_log(node)
        gone = await told(node)
        assert (gone.entries, [one.why for one in gone.absent]) == ((), ["left"])
        assert [*lines(gone)] == [
            "all entries have left the log of dc1: they are in checkpoints, which tell no history",
        ]
        await node.flag(1)
        found = await told(node)
        assert len(found.entries) == 1
        last = [*lines(found)][-1]
        assert last.startswith("entries before 20")
        assert last.endswith("have left the log of dc1: they are in checkpoints, which tell no history")


async def test_folder_tree_has_a_story(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        mail = nodes["dc1"].mail
        await nodes["dc1"].inbox()
        await mail.create_folder(USER, "Work/Plans")
        await mail.rename_folder(USER, "Work/Plans", "Work/Past")
        await mail.subscribe(USER, "Work", subscribed=True)
        await mail.annotate(USER, await mail.folder(USER, "Work"), {"/private/comment": b"mine"})
        await mail.delete_folder(USER, "Work/Past")
        await nodes.converged()
        assert shape(await told(nodes["dc2"], None)) == [
            "* dc1  deleted Work/Past",
            "* dc1  annotations of Work: /private/comment",
            "* dc1  subscribed Work",
            "* dc1  renamed Work/Plans to Work/Past",
            "* dc1  created Work; created Work/Plans",
            "* dc1  created INBOX",
        ]
        await part(nodes)
        await nodes["dc1"].mail.create_folder(USER, "One")
        await nodes["dc2"].mail.create_folder(USER, "Two")
        await heal(nodes)
        merge = (await told(nodes["dc2"], None)).entries[0].deeds[0]
        assert (merge.kind, set(merge.names), merge.changed) == ("trees_merged", {"One", "Two"}, 2)


async def test_deleted_folder_has_a_story(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.mail.create_folder(USER, "Work")
        await node.save("x", "Work")
        await node.mail.delete_folder(USER, "Work")
        found = await told(node, "Work")
        assert [deed.kind for one in found.entries for deed in one.deeds] == ["expunged", "arrived"]
        again = await node.mail.create_folder(USER, "Work")
        fresh = await told(node, "Work")
        assert (fresh.mailbox_id, fresh.entries) == (again.mailbox_id.hex(), ())
        assert [*lines(fresh)] == ["nothing has happened here yet"]


async def test_unknown_folders_and_users(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        await nodes["dc1"].save("x")
        with pytest.raises(FolderNotFoundError, match="alice has no folder 'Nowhere' at dc1, not even a deleted one"):
            await told(nodes["dc1"], "Nowhere")
        with pytest.raises(FolderNotFoundError, match="bob has no folders at dc1, and had none"):
            await stories_at(nodes["dc1"]).history("bob", None, last=1, since_ms=0)
