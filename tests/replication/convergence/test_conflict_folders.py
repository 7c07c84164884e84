"""Conflicts in folder trees: both sides of a broken link change one user's folders, and a merge joins them."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.mail.annotations import SPECIAL_USE
from replicator.mail.mailstore import INBOX, SEPARATOR, Folder
from replicator.replication import timing
from replicator.replication.convergence.fork_scheduler import ForkScheduler
from replicator.replication.writes.requests import CopyRequest, CreateRequest, SaveRequest
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.queries import MailboxKey
from replicator.store.log.forks import StrayMail, strays
from resync import folder_tree
from resync.folder_tree import WHOLE_SHARE
from tests.replication.cluster import USER, Cluster, Node, cluster, until


class Pair:
    """Two nodes, `here` and `there`, that can be parted. After `heal` both show the same."""

    def __init__(self, nodes: Cluster) -> None:
        self.nodes = nodes
        self.here, self.there = nodes["dc1"], nodes["dc2"]

    async def part(self) -> None:
        await self.nodes.converged()
        self.nodes.isolate("dc1")
        await self.nodes.linked(["dc1"], ["dc2"])

    async def heal(self) -> None:
        """Return when both show the same and no stray mail is left."""
        self.nodes.rejoin("dc1")
        await self.nodes.linked()
        await gathered(*self.nodes.all())
        assert not any([await node.store.read(lambda reader: strays(reader, USER)) for node in self.nodes.all()])
        assert await shown(self.here) == await shown(self.there)
        folders = await self.folders()
        assert len({folder.uidvalidity for folder in folders.values()}) == len(folders)

    async def folders(self) -> dict[str, Folder]:
        return {folder.name: folder for folder in await self.here.mail.folders(USER)}


async def gathered(*nodes: Node) -> None:
    """Return when these nodes show the same, no entry waits, and no stray mail is left."""
    with trio.fail_after(60):
        while True:
            statuses = [await node.report.node_status() for node in nodes]
            left = any(status.waiting_entries or status.stray_folders for status in statuses)
            if not left and len({status.digest for status in statuses}) == 1:
                return
            await trio.sleep(0.1)


async def shown(node: Node) -> dict[str, tuple[int, dict[int, str]]]:
    """Return folder name -> UIDVALIDITY and bodies."""
    return {
        folder.name: (folder.uidvalidity, await node.bodies(folder.name)) for folder in await node.mail.folders(USER)
    }


async def mails(node: Node) -> dict[str, list[str]]:
    """Return folder name -> bodies, for all folders but INBOX."""
    found = await shown(node)
    del found[INBOX]
    return {name: sorted(bodies.values()) for name, (_, bodies) in found.items()}


async def create(node: Node, name: str, *bodies: str) -> None:
    await node.mail.create_folder(USER, name)
    for body in bodies:
        await node.save(body, name)


async def rename(node: Node, old: str, new: str) -> None:
    await trio.sleep(1)  # so that the later rename has the later stamp
    await node.mail.rename_folder(USER, old, new)


@asynccontextmanager
async def pair(directory: Path, clock: MockClock) -> AsyncIterator[Pair]:
    async with cluster(directory, clock, 2) as nodes:
        await nodes["dc1"].inbox()
        await nodes.converged()
        yield Pair(nodes)


async def test_folder_created_on_both_sides_becomes_one_with_all_mail(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await two.part()
        await create(two.here, "Work", "here")
        await create(two.there, "Work", "there")
        before = [(await node.mail.folder(USER, "Work")).uidvalidity for node in two.nodes.all()]
        await two.heal()
        assert await mails(two.here) == {"Work": ["here", "there"]}
        assert (await two.folders())["Work"].uidvalidity > max(before)


async def test_folders_of_both_sides_have_uidvalidities_of_their_own(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Both sides count on from one number, since several folders have been created within a second."""
    async with pair(tmp_path, autojump_clock) as two:
        for number in range(3):
            await create(two.here, f"before {number}")
        await two.part()
        for sid, node in two.nodes.nodes.items():
            for name in ("Work", f"of {sid}", f"more of {sid}"):
                await create(node, name)
        sides = [await node.mail.folders(USER) for node in two.nodes.all()]
        here, there = ({one.name: one.uidvalidity for one in folders} for folders in sides)
        assert here["Work"] != there["Work"]
        await two.heal()
        after = {name: folder.uidvalidity for name, folder in (await two.folders()).items()}
        assert after.pop("Work") > max(*here.values(), *there.values())
        assert after == {name: number for name, number in (here | there).items() if name != "Work"}


async def test_message_with_two_placements_moves_by_one_and_stays_by_the_other(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].inbox()
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        for sid, mailbox_id in (
            ("dc1", b"1" * 16),
            ("dc2", b"2" * 16),
        ):  # the lower id stays
            request = CreateRequest(USER, "Work", mailbox_id, lambda: b"3" * 16)
            await nodes[sid].coordinator.submit(request)
        await until(lambda: nodes["dc3"].store.context == nodes["dc2"].store.context)
        nodes.network.cut(("dc2", "dc3"))
        await nodes.linked(["dc1"], ["dc2"], ["dc3"])
        for sid in ("dc2", "dc3"):
            key = MailboxKey.of(await nodes[sid].mail.folder(USER, "Work"))
            await nodes[sid].coordinator.submit(SaveRequest(key, b"g" * 16, 1_000, (), StoredBody.of(b"twice")))
        await nodes["dc2"].mail.rename_folder(USER, "Work", "Done")
        nodes.network.mend(("dc1", "dc3"))
        await nodes.linked(["dc1", "dc3"], ["dc2"])
        await gathered(nodes["dc1"], nodes["dc3"])
        assert await mails(nodes["dc1"]) == {"Work": ["twice"]}
        nodes.rejoin("dc2")
        await nodes.linked()
        await gathered(*nodes.all())
        assert await mails(nodes["dc1"]) == {"Done": ["twice"], "Work": ["twice"]}


async def test_moved_mail_stays_where_its_folder_got_the_name_of_the_one_it_was_moved_to(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """One side moves a mail from Work to Done; the other deletes Done, renames Work to Done, and has more mail there.

    So the mail is stray, and belongs in the folder that it has left: where it is still shown until a merge.
    """
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "Work", "moved")
        await create(two.here, "Done")
        await two.part()
        source, destination = await two.there.view("Work"), await two.there.mail.folder(USER, "Done")
        await two.there.mail.move(source, UidSet.of([1]), destination)
        await two.here.mail.delete_folder(USER, "Done")
        await rename(two.here, "Work", "Done")
        await two.here.save("more", "Done")
        await two.heal()
        assert await mails(two.here) == {"Done": ["more", "moved"]}


async def test_status_counts_stray_mail_although_nodes_are_equal(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    move, may_move = ForkScheduler._move, trio.Event()

    async def move_later(scheduler: ForkScheduler, stray: StrayMail) -> None:
        await may_move.wait()
        await move(scheduler, stray)

    monkeypatch.setattr(ForkScheduler, "_move", move_later)
    async with pair(tmp_path, autojump_clock) as two:
        await two.part()
        await create(two.here, "Travel", "packing list")
        await create(two.there, "Travel", "train times")
        two.nodes.rejoin("dc1")
        await two.nodes.linked()
        await two.nodes.converged()
        for node in two.nodes.all():
            assert len((await mails(node))["Travel"]) == 1
            assert (await node.report.node_status()).stray_folders == 1
        may_move.set()
        await two.heal()
        assert (await mails(two.here))["Travel"] == ["packing list", "train times"]


async def test_folders_created_apart_never_share_a_uidvalidity(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A folder that later took the other's name would otherwise look like the same mailbox."""
    async with pair(tmp_path, autojump_clock) as two:
        for node in two.nodes.all():
            node.store.take_share(WHOLE_SHARE)  # as of nodes whose configurations differ
        await two.part()
        await create(two.here, "A")
        await create(two.there, "B")
        given = [(await node.mail.folder(USER, name)).uidvalidity for node, name in ((two.here, "A"), (two.there, "B"))]
        assert given[0] == given[1]
        await two.heal()
        after = {name: folder.uidvalidity for name, folder in (await two.folders()).items()}
        assert after["A"] != after["B"]
        assert min(after["A"], after["B"]) >= given[0]


async def test_later_of_two_renames_counts(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "Work", "mail")
        await two.part()
        await rename(two.there, "Work", "Earlier")
        await rename(two.here, "Work", "Later")
        await two.heal()
        assert await mails(two.here) == {"Later": ["mail"]}


async def test_new_mail_keeps_a_deleted_folder(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "Work", "seen")
        await two.part()
        await two.here.mail.delete_folder(USER, "Work")
        await two.there.save("new", "Work")
        await two.heal()
        assert await mails(two.here) == {"Work": ["new"]}
        await two.there.save("more", "Work")
        assert await mails(two.there) == {"Work": ["more", "new"]}


async def test_new_mail_of_a_deleted_folder_moves_to_its_replacement(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "Work", "seen")
        await two.part()
        await two.here.mail.delete_folder(USER, "Work")
        await create(two.here, "Work", "again")
        await two.there.save("new", "Work")
        await two.heal()
        assert await mails(two.here) == {"Work": ["again", "new"]}


async def test_mail_saved_in_a_deleted_folder_moves_to_its_replacement_without_a_regular_look(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has the folder open may save mail there after it is gone."""
    monkeypatch.setattr(timing, "FORK_SCHEDULER_STRAYS_EVERY_S", math.inf)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        here, there = nodes.all()
        await create(here, "Work", "seen")
        opened = await here.mail.folder(USER, "Work")
        await here.mail.delete_folder(USER, "Work")
        await create(here, "Work", "again")
        await gathered(here, there)
        await trio.sleep(1)  # the look at the new folder is over
        late = SaveRequest(MailboxKey.of(opened), b"g" * 16, 1_000, (), StoredBody.of(b"late"))
        await here.coordinator.submit(late)
        await gathered(here, there)
        assert await mails(there) == {"Work": ["again", "late"]}


async def test_delete_wins_over_rename_of_a_folder_without_new_mail(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "Work", "seen")
        await two.part()
        await two.here.mail.delete_folder(USER, "Work")
        await rename(two.there, "Work", "Later")
        await two.heal()
        assert await mails(two.here) == {}


async def test_new_mail_keeps_a_renamed_and_deleted_folder_under_its_new_name(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "Work", "seen")
        await two.part()
        await two.here.mail.delete_folder(USER, "Work")
        await rename(two.there, "Work", "Later")
        await two.there.save("new", "Later")
        await two.heal()
        assert await mails(two.here) == {"Later": ["new"]}


async def test_folder_created_below_a_renamed_one_keeps_a_parent(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "A/old", "old")
        await two.part()
        await rename(two.here, "A", "B")
        await create(two.there, "A/new/deep", "new")
        await two.heal()
        assert await mails(two.here) == {"A": [], "A/new": [], "A/new/deep": ["new"], "B": [], "B/old": ["old"]}
        await create(two.there, "A/more", "more")
        assert "A/more" in await mails(two.there)


async def test_folder_renamed_below_a_renamed_one_keeps_a_parent(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "A/x", "mail")
        await two.part()
        await rename(two.here, "A", "B")
        await rename(two.there, "A/x", "A/y")
        await two.heal()
        assert await mails(two.here) == {"A": [], "A/y": ["mail"], "B": []}


async def test_folder_renamed_below_a_deleted_one_keeps_a_parent(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "A")
        await create(two.here, "x", "mail")
        await two.part()
        await two.here.mail.delete_folder(USER, "A")
        await rename(two.there, "x", "A/x")
        await two.heal()
        assert await mails(two.here) == {"A": [], "A/x": ["mail"]}


async def test_merge_does_not_create_a_parent_that_the_user_deleted(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "A/x", "mail")
        await two.part()
        await two.here.mail.delete_folder(USER, "A")
        await two.there.mail.subscribe(USER, "A/x", subscribed=True)
        await two.heal()
        assert await mails(two.here) == {"A/x": ["mail"]}


async def test_folder_renamed_to_a_name_created_elsewhere_becomes_one_with_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "Work", "work")
        before = (await two.folders())["Work"].uidvalidity
        await two.part()
        await rename(two.here, "Work", "Later")
        await create(two.there, "Later", "later")
        made = (await two.there.mail.folder(USER, "Later")).uidvalidity
        await two.heal()
        assert await mails(two.here) == {"Later": ["later", "work"]}
        assert (await two.folders())["Later"].uidvalidity > max(before, made)


async def test_mail_follows_folders_whose_names_the_other_side_swapped(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "A", "a")
        await create(two.here, "B", "b")
        before = await two.folders()
        await two.part()
        for old, new in (("A", "T"), ("B", "A"), ("T", "B")):
            await rename(two.here, old, new)
        await two.there.save("for A", "A")
        await two.there.save("for B", "B")
        await two.heal()
        assert await mails(two.here) == {"A": ["b", "for B"], "B": ["a", "for A"]}
        after = await two.folders()
        assert (after["A"].mailbox_id, after["B"].mailbox_id) == (before["B"].mailbox_id, before["A"].mailbox_id)


async def test_names_swapped_on_both_sides_are_swapped_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "A", "a")
        await create(two.here, "B", "b")
        await two.part()
        for node in two.nodes.all():
            for old, new in (("A", "T"), ("B", "A"), ("T", "B")):
                await rename(node, old, new)
        await two.heal()
        assert await mails(two.here) == {"A": ["b"], "B": ["a"]}


async def test_folders_in_a_chain_of_renames_keep_their_own_mail(tmp_path: Path, autojump_clock: MockClock) -> None:
    """`here` renames A to B, and `there` renames B to C: two folders, three names."""
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "A", "a")
        await create(two.here, "B", "b")
        await two.part()
        await two.here.mail.delete_folder(USER, "B")
        await rename(two.here, "A", "B")
        await rename(two.there, "B", "C")
        await two.there.save("for C", "C")
        await two.heal()
        assert await mails(two.here) == {"B": ["a"], "C": ["for C"]}


async def test_inbox_renamed_on_both_sides_leaves_one_inbox_with_later_mail(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await two.here.save("old")
        await two.part()
        await rename(two.here, INBOX, "Earlier")
        await rename(two.there, INBOX, "Later")
        for node, body in ((two.here, "here"), (two.there, "there")):
            await node.save(body)
        await two.heal()
        found = await shown(two.here)
        assert {name: sorted(bodies.values()) for name, (_, bodies) in found.items()} == {
            INBOX: ["here", "there"],
            "Later": ["old"],
        }


async def test_repeated_copy_of_stray_mail_has_one_effect(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        here, there = nodes.all()
        work = await there.mail.create_folder(USER, "Work")
        await there.save("makes dc2 the master", "Work")
        await here.save("moves")
        await nodes.converged()
        (message,) = await here.messages()
        source, destination = MailboxKey.of(await here.inbox()), MailboxKey.of(work)
        copy = CopyRequest(source, destination, UidSet.of([1]), (message.guid,), (message.guid,))
        replies = [await here.coordinator.submit(copy) for _ in range(2)]
        assert here.coordinator.mastership.known_master(destination) == "dc2"
        assert await there.bodies("Work") == {1: "makes dc2 the master", 2: "moves"}
        assert replies[0] == replies[1]


async def test_last_change_of_a_subscription_counts(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        for name in ("A", "B", "C"):
            await two.here.mail.subscribe(USER, name, subscribed=True)
        await two.part()
        await two.here.mail.subscribe(USER, "A", subscribed=False)
        await two.here.mail.subscribe(USER, "B", subscribed=False)
        await trio.sleep(1)
        await two.there.mail.subscribe(USER, "A", subscribed=False)
        await two.there.mail.subscribe(USER, "A", subscribed=True)
        await two.there.mail.subscribe(USER, "D", subscribed=True)
        await two.heal()
        for node in two.nodes.all():
            assert await node.mail.subscriptions(USER) == ["A", "C", "D"]


async def test_last_change_of_an_annotation_counts(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        work = await two.here.mail.create_folder(USER, "Work")
        await two.here.mail.annotate(USER, work, {"/private/a": b"1", "/private/b": b"1", "/private/c": b"1"})
        await two.part()
        await two.here.mail.annotate(USER, work, {"/private/a": b"here", "/private/b": None})
        await two.here.mail.annotate(USER, None, {"/private/comment": b"here"})
        await trio.sleep(1)
        await two.there.mail.annotate(USER, work, {"/private/a": None, "/private/b": b"there"})
        await two.there.mail.rename_folder(USER, "Work", "Later")
        await two.heal()
        for node in two.nodes.all():
            later = await node.mail.folder(USER, "Later")
            assert await node.mail.annotations(USER, later) == {"/private/b": b"there", "/private/c": b"1"}
            assert await node.mail.annotations(USER, None) == {"/private/comment": b"here"}


async def test_united_folders_have_the_annotations_of_both(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with pair(tmp_path, autojump_clock) as two:
        await two.part()
        for node, use in ((two.here, "\\Sent"), (two.there, None)):
            folder = await node.mail.create_folder(USER, "Out", use)
            await node.mail.annotate(USER, folder, {f"/shared/{node.sid}": b"x"})
        await two.heal()
        for node in two.nodes.all():
            folder = await node.mail.folder(USER, "Out")
            names = {SPECIAL_USE, *(f"/shared/{one.sid}" for one in two.nodes.all())}
            assert set(await node.mail.annotations(USER, folder)) == names


def test_folder_trees_and_mail_store_use_one_separator() -> None:
    assert folder_tree.SEPARATOR == SEPARATOR


@pytest.mark.parametrize("is_renamed", [False, True])
async def test_deleted_folder_that_is_shown_for_its_mail_is_created_anew(
    tmp_path: Path, autojump_clock: MockClock, *, is_renamed: bool
) -> None:
    """It is renamed, or a folder is created below it."""
    name = "Kept" if is_renamed else "Work"
    async with pair(tmp_path, autojump_clock) as two:
        await create(two.here, "Work")
        await two.part()
        await two.here.mail.delete_folder(USER, "Work")
        await two.there.save("new", "Work")
        await two.heal()
        if is_renamed:
            await two.here.mail.rename_folder(USER, "Work", name)
        else:
            await create(two.here, "Work/More")
        await gathered(*two.nodes.all())
        assert {folder: bodies for folder, bodies in (await mails(two.there)).items() if bodies} == {name: ["new"]}
        await two.there.mail.expunge(view := await two.there.view(name), UidSet.of(view.messages))
        await two.nodes.converged()
        names = {INBOX, "Kept"} if is_renamed else {INBOX, "Work", "Work/More"}
        assert {one.name for one in await two.here.mail.folders(USER)} == names
