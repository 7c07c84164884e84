"""Merges: both sides of a broken link change mailboxes, and become equal again."""

import logging
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import EntryCommand, Rename, Save
from protocol.values import UID_MAX, Dot
from replicator.mail.mailstore import INBOX
from replicator.mail.view import MailboxView
from replicator.replication.convergence import fork_merge
from replicator.replication.convergence.fork_merge import PLANS_MAX
from replicator.replication.links import entry_codec
from replicator.replication.links.entry_codec import Arrived, EntryAssembler
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Commit, Logged
from replicator.store.log import forks
from replicator.store.log.apply import receive
from replicator.store.log.forks import merging
from resync.clock import COUNTER_BITS
from resync.entry import Entry, MailAdd, Merge
from resync.merge import merge
from resync.state import MERGE_HEADROOM, MailboxState
from tests.replication.cluster import EPOCH_MS, Cluster, Node, cluster, entries_as_commands
from tests.replication.stranger import INBOX as STRANGE_INBOX
from tests.replication.stranger import header, text_of, visit
from tests.store.harness import INBOX as STORED
from tests.store.harness import creating, deleting, guid, saving

T = TypeVar("T")

SIDES = ("dc1",), ("dc2", "dc3")


async def part(nodes: Cluster) -> None:
    nodes.isolate("dc1")
    await nodes.linked(*SIDES)


async def heal(nodes: Cluster) -> None:
    nodes.rejoin("dc1")
    await nodes.linked()
    await nodes.converged()


async def until_shown(node: Node, name: str, bodies: list[str]) -> None:
    """Return when a client would see these messages in the folder."""
    with trio.fail_after(60):
        while sorted((await node.bodies(name)).values()) != bodies:  # noqa: ASYNC110 - in virtual time
            await trio.sleep(0.01)


async def test_heavy_entries_are_packed_and_unpacked_in_threads(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_thread, seen = False, set[tuple[str, bool]]()
    pack, add = entry_codec.entry_commands, EntryAssembler.add

    async def run(work: Callable[[], T]) -> T:
        nonlocal in_thread
        await trio.lowlevel.checkpoint()
        in_thread = True
        try:
            return work()
        finally:
            in_thread = False

    def note_pack(logged: Logged, number: Callable[[MailboxKey], int]) -> Iterator[EntryCommand]:
        if not logged.entry.is_tree:
            seen.add(("pack", in_thread))
        return pack(logged, number)

    def note_add(assembler: EntryAssembler, command: EntryCommand) -> Arrived | None:
        seen.add((type(command).__name__, in_thread))
        return add(assembler, command)

    entries_as_commands(monkeypatch)
    for limit in ("HEAVY_ROWS", "HEAVY_BYTES"):
        monkeypatch.setattr(entry_codec, limit, 0)
    monkeypatch.setattr("tests.replication.cluster._at_once", run)
    monkeypatch.setattr("replicator.replication.log.sender.entry_commands", note_pack)
    monkeypatch.setattr(EntryAssembler, "add", note_add)
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("x")
        await nodes.converged()
        await part(nodes)
        await nodes["dc1"].save("y")
        await nodes["dc2"].save("z")
        await heal(nodes)
    assert {("pack", True), ("Save", True), ("Merge", True)} <= seen
    assert {name for name, apart in seen if not apart} <= {"Create"}


async def test_uid_given_on_both_sides_goes_to_neither_message(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("x")
        await nodes.converged()
        uidvalidity = (await nodes["dc1"].inbox()).uidvalidity
        await part(nodes)
        assert await nodes["dc1"].save("y") == 2
        assert await nodes["dc2"].save("z") == 2
        await heal(nodes)
        for node in nodes.all():
            found = await node.bodies()
            assert found[1] == "x"
            assert sorted(found) == [1, 3, 4]
            assert sorted(found.values()) == ["x", "y", "z"]
            assert (await node.inbox()).uidvalidity == uidvalidity
        assert await nodes["dc3"].save("after") == 5


async def test_uid_of_an_expunged_rival_is_not_kept(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("x")
        await nodes.converged()
        await part(nodes)
        await nodes["dc1"].save("y")
        await nodes["dc2"].expunge(await nodes["dc2"].save("z"))
        await heal(nodes)
        assert await nodes["dc3"].bodies() == {1: "x", 3: "y"}


async def test_merge_keeps_flags_and_expunges_of_both_sides(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for body in ("1", "2", "3"):
            await nodes["dc1"].save(body)
        await nodes.converged()
        views = [await node.view() for node in nodes.all()]
        await part(nodes)
        await nodes["dc1"].flag(1, added=["\\Flagged"])
        await nodes["dc2"].flag(1, added=["\\Draft"])
        await nodes["dc1"].expunge(2)
        await nodes["dc2"].flag(2)
        await nodes["dc2"].expunge(3)
        await heal(nodes)
        for view in views:
            assert {uid: message.flags for uid, message in view.messages.items()} == {1: {"\\Flagged", "\\Draft"}}


async def test_mailboxes_and_folders_created_on_both_sides_become_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await part(nodes)
        for sid in ("dc1", "dc2"):
            node = nodes[sid]
            await node.save(f"first at {sid}")
            await node.mail.create_folder("alice", "Work")
            await node.save(f"work at {sid}", "Work")
            await node.mail.create_folder("alice", f"Only/{sid}")
        before = [(await nodes[sid].inbox()).uidvalidity for sid in ("dc1", "dc2")]
        await heal(nodes)
        for node in nodes.all():
            await until_shown(node, INBOX, ["first at dc1", "first at dc2"])
            await until_shown(node, "Work", ["work at dc1", "work at dc2"])
            names = [folder.name for folder in await node.mail.folders("alice")]
            assert names == [INBOX, "Only", "Only/dc1", "Only/dc2", "Work"]
            assert (await node.inbox()).uidvalidity > max(before)
        await nodes.converged()


async def test_unshipped_mail_of_a_stopped_master_comes_back_with_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await nodes["dc1"].save("x")
        await nodes.converged()
        await part(nodes)
        await nodes["dc1"].save("not shipped")
        await nodes.stop("dc1")
        await nodes["dc2"].save("meanwhile")
        nodes.rejoin("dc1")
        await nodes.start("dc1")
        await nodes.linked()
        await nodes.converged()
        for node in nodes.all():
            assert sorted((await node.bodies()).values()) == ["meanwhile", "not shipped", "x"]


async def test_new_mail_stays_in_a_folder_that_the_other_side_deletes(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].mail.create_folder("alice", "Work")
        await nodes["dc1"].save("seen by all", "Work")
        await nodes.converged()
        await part(nodes)
        await nodes["dc1"].mail.delete_folder("alice", "Work")
        await nodes["dc2"].save("new", "Work")
        await heal(nodes)
        for node in nodes.all():
            await until_shown(node, "Work", ["new"])


async def test_folder_renamed_on_both_sides_gets_the_later_name(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].mail.create_folder("alice", "Work")
        await nodes.converged()
        await part(nodes)
        await nodes["dc1"].mail.rename_folder("alice", "Work", "Earlier")
        await trio.sleep(1)
        await nodes["dc2"].mail.rename_folder("alice", "Work", "Later")
        await nodes["dc1"].mail.subscribe("alice", "Work", subscribed=True)
        await heal(nodes)
        for node in nodes.all():
            assert [folder.name for folder in await node.mail.folders("alice")] == [INBOX, "Later"]
            assert await node.mail.subscriptions("alice") == ["Work"]


async def test_impossible_branch_is_not_merged(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes, visit(nodes) as stranger:
        await stranger.number_mailbox()
        await stranger.send_entry(1, Save((1,), EPOCH_MS, b"1" * 16, (), text_of(b"one"), 1))
        await stranger.send_entry(2, Save((1,), EPOCH_MS, b"2" * 16, (), text_of(b"two"), 4_000_000_000))
        rename = replace(header(3, after=0), modseq=1)
        await stranger.send(Rename("alice", b"x" * 16, "Nowhere", rename))
        await trio.sleep(10)
        node = nodes["dc2"]
        assert await node.waiting() == 2
        assert await node.save("life goes on") == 1
        view = await node.store.view(STRANGE_INBOX)
        assert (list(view.messages), view.uidnext) == ([1], 2)


async def test_branch_that_is_still_arriving_is_merged_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2"])
        for number in range(300):
            for sid in ("dc1", "dc2"):
                await nodes[sid].store.write(saving(b"%d" % number, f"{sid} {number}".encode().rjust(16), STORED))
        await heal(nodes)
        entries = await nodes["dc1"].store.read(lambda reader: queries.log_after(reader, 0, 1 << 40, 1000, 1 << 30))
        assert sum(item.entry.is_merge for item in entries) == 1


async def test_stray_mail_is_moved_after_a_restart(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        work = await node.mail.create_folder("alice", "Work")
        key = MailboxKey("alice", work.mailbox_id, work.uidvalidity)
        await node.store.write(deleting(work.mailbox_id))
        await node.store.write(creating("Work", b"w" * 16))
        await node.store.write(saving(b"late", guid(1), key))
        await nodes.stop("dc1")
        await nodes.start("dc1")
        await until_shown(nodes["dc1"], "Work", ["late"])


async def test_stray_mail_of_several_folders_of_one_name_is_shown_in_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        keys = []
        for _ in range(2):
            work = await node.mail.create_folder("alice", "Work")
            await node.mail.delete_folder("alice", "Work")
            keys.append(MailboxKey("alice", work.mailbox_id, work.uidvalidity))
        for number, key in enumerate(keys):
            await node.store.write(saving(b"late %d" % number, guid(number), key))
        await until_shown(node, "Work", ["late 0", "late 1"])


# ---- the master of a mailbox receives another branch --------------------------------------------------------------

RIVAL = StoredBody.of(b"rival")


def rival(view: MailboxView, sid: str = "dc8") -> Entry:
    """Return the entry of a node with an empty mailbox that gives UID 1 to a mail of its own."""
    mail = MailAdd(1, sid.encode().rjust(16), EPOCH_MS, (), RIVAL.size_bytes, RIVAL.content_hash, copied=False)
    return Entry(Dot(f"{sid}.a", 1), (), EPOCH_MS << COUNTER_BITS, 1, *MailboxKey.of(view), (mail,))


async def take_in(node: Node, *entries: Entry) -> None:
    for entry in entries:
        await node.store.write(partial(receive, entry=entry, bodies=[RIVAL]))


def after_each_plan(node: Node, monkeypatch: pytest.MonkeyPatch, act: Callable[[int], Awaitable[object]]) -> None:
    """Call `act` with the number of each plan of a merge, before the plan is carried out."""
    read = node.store.read
    plans = 0

    async def read_and_act(query: Callable[[sqlite3.Connection], T]) -> T:
        nonlocal plans
        found = await read(query)
        if isinstance(query, partial) and query.func is forks.plan_merge and found is not None:
            plans += 1
            await act(plans)
        return found

    monkeypatch.setattr(node.store, "read", read_and_act)


async def test_clients_write_while_a_merge_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs in real threads, and holds up the one that plans."""
    planning, going_on = threading.Event(), threading.Event()
    plans: list[int] = []

    def merge_slowly(ours: MailboxState, theirs: MailboxState, dot: Dot, anew: None) -> MailboxState:
        plans.append(len(ours.rows))
        planning.set()
        assert going_on.wait(60)
        return merge(ours, theirs, dot, anew)

    monkeypatch.setattr(merging, "merge", merge_slowly)
    async with cluster(tmp_path, None, 1) as nodes, trio.open_nursery() as nursery:
        node = nodes["dc1"]
        await node.save("mine")
        view = await node.view()
        await take_in(node, rival(view))
        nursery.start_soon(node.coordinator.fork_merger.join_branches, MailboxKey.of(view))
        await trio.to_thread.run_sync(planning.wait)
        with trio.fail_after(30):
            assert await node.save("meanwhile") == 2
            assert await node.save("elsewhere", "INBOX", "bob") == 1
        assert await node.bodies() == {1: "mine", 2: "meanwhile"}
        going_on.set()
        await nodes.converged()
        assert plans == [1, 2]
        assert sorted((await node.bodies()).values()) == ["meanwhile", "mine", "rival"]


async def test_busy_mailbox_is_merged(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save("mine")
        saved: list[str] = []

        async def save(number: int) -> None:
            assert number <= PLANS_MAX
            saved.append(f"after plan {number}")
            await node.save(saved[-1])

        after_each_plan(node, monkeypatch, save)
        await take_in(node, rival(await node.view()))
        await nodes.converged()
        assert len(saved) == PLANS_MAX
        assert sorted((await node.bodies()).values()) == [*saved, "mine", "rival"]


async def test_no_node_merges_in_a_term_that_has_ended(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        mastership, elections = node.coordinator.mastership, node.coordinator.elections
        await node.save("mine")
        view = await node.view()
        allowed: list[bool] = []

        def note(commit: Commit) -> None:
            allowed.extend(mastership.is_ours(MailboxKey.of(view)) for entry in commit.applied if entry.is_merge)

        async def end_the_term(number: int) -> None:
            if number == 1:
                elections._do(elections.machine.component_changed())
            await trio.lowlevel.checkpoint()

        node.store.listeners.append(note)
        after_each_plan(node, monkeypatch, end_the_term)
        await take_in(node, rival(view))
        await nodes.converged()
        assert allowed == [True]


async def test_branches_that_need_more_uids_than_are_left_stay_apart(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.mail.create_folder("alice", "Work")
        await node.save("mine", "Work")
        view = await node.view("Work")
        one, other = rival(view), rival(view, "dc9")
        used_up = Merge(UID_MAX - MERGE_HEADROOM, 0, (one.dot, other.dot), (), ())
        dot = Dot("dc8.a", 2)
        await take_in(
            node, one, other, replace(one, dot=dot, predecessors=(one.dot, other.dot), modseq=2, changes=(used_up,))
        )
        await trio.sleep(60)
        (warning,) = (record for record in caplog.records if record.name == fork_merge.__name__)
        assert "cannot merge a branch of folder 'Work' of alice, which stays apart" in warning.getMessage()
        assert "UIDs" in warning.getMessage()
        assert await node.waiting() == 3
        assert await node.save("life goes on", "Work") == 2


async def test_log_names_merged_folders_by_user_and_name(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, fork_merge.__name__)
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].mail.create_folder("alice", "Work")
        await nodes.converged()
        await part(nodes)
        for sid in ("dc1", "dc2"):
            await nodes[sid].save(f"at {sid}", "Work")
            await nodes[sid].mail.create_folder("alice", sid)
        await heal(nodes)
    assert {record.getMessage() for record in caplog.records if record.name == fork_merge.__name__} == {
        "merged two branches of folder 'Work' of alice",
        "merged two branches of the folder tree of alice",
    }
