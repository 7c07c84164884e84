"""Both sides of a broken link go on, and come together again."""

from dataclasses import replace
from pathlib import Path

import trio
from trio.testing import MockClock

from protocol.commands import Rename, Save
from replicator.mailstore import INBOX
from replicator.store import reading
from replicator.store.reading import MailboxKey
from tests.replication.cluster import EPOCH_MS, Cluster, Node, cluster
from tests.replication.stranger import INBOX as STRANGE_INBOX
from tests.replication.stranger import header, visit
from tests.store.harness import INBOX as STORED
from tests.store.harness import creating, deleting, guid, saving

SIDES = ("dc1",), ("dc2", "dc3")


async def part(nodes: Cluster) -> None:
    nodes.isolate("dc1")
    await nodes.linked(*SIDES)


async def heal(nodes: Cluster) -> None:
    nodes.rejoin("dc1")
    await nodes.linked()
    await nodes.converged()


async def shows(node: Node, name: str, texts: list[str]) -> None:
    """Return when a client would see these messages in the folder."""
    with trio.fail_after(60):
        while sorted((await node.texts(name)).values()) != texts:  # noqa: ASYNC110 - in virtual time
            await trio.sleep(0.01)


async def test_a_uid_that_two_sides_gave_apart_goes_to_neither(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("x")
        await nodes.converged()
        uidvalidity = (await nodes["dc1"].inbox()).uidvalidity
        await part(nodes)
        assert await nodes["dc1"].save("y") == 2
        assert await nodes["dc2"].save("z") == 2
        await heal(nodes)
        for node in nodes.all():
            found = await node.texts()
            assert found[1] == "x"
            assert sorted(found) == [1, 3, 4]
            assert sorted(found.values()) == ["x", "y", "z"]
            assert (await node.inbox()).uidvalidity == uidvalidity
        assert await nodes["dc3"].save("after") == 5


async def test_a_uid_whose_other_owner_was_expunged_is_not_used(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("x")
        await nodes.converged()
        await part(nodes)
        await nodes["dc1"].save("y")
        await nodes["dc2"].expunge(await nodes["dc2"].save("z"))
        await heal(nodes)
        assert await nodes["dc3"].texts() == {1: "x", 3: "y"}


async def test_flags_and_expunges_of_both_sides_count(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        for text in ("1", "2", "3"):
            await nodes["dc1"].save(text)
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


async def test_mailboxes_and_folders_that_both_sides_made_become_one(tmp_path: Path, autojump_clock: MockClock) -> None:
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
            await shows(node, INBOX, ["first at dc1", "first at dc2"])
            await shows(node, "Work", ["work at dc1", "work at dc2"])
            names = [folder.name for folder in await node.mail.folders("alice")]
            assert names == [INBOX, "Only", "Only/dc1", "Only/dc2", "Work"]
            assert (await node.inbox()).uidvalidity > max(before)
        await nodes.converged()


async def test_what_a_master_had_not_shipped_when_it_died_comes_back_with_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
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
            assert sorted((await node.texts()).values()) == ["meanwhile", "not shipped", "x"]


async def test_mail_for_a_folder_that_the_other_side_deletes_is_kept_there(
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
            await shows(node, "Work", ["new"])


async def test_a_folder_renamed_on_both_sides_has_the_later_name(tmp_path: Path, autojump_clock: MockClock) -> None:
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
            assert await node.mail.subscriptions("alice") == {"Work"}


async def test_a_branch_that_no_node_can_have_numbered_is_left_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2, start=["dc2"]) as nodes, visit(nodes) as stranger:
        await stranger.number_mailbox()
        await stranger.send_entry(1, Save((1,), EPOCH_MS, b"1" * 16, (), b"one", 1))
        await stranger.send_entry(2, Save((1,), EPOCH_MS, b"2" * 16, (), b"two", 4_000_000_000))
        rename = replace(header(3, after=0), modseq=1)
        await stranger.send(Rename("alice", b"x" * 16, "Nowhere", rename))
        await trio.sleep(10)
        node = nodes["dc2"]
        assert await node.waiting() == 2
        assert await node.save("life goes on") == 1
        view = await node.store.view(STRANGE_INBOX)
        assert (list(view.messages), view.uidnext) == ([1], 2)


async def test_a_branch_that_is_still_on_its_way_is_joined_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2"])
        for number in range(300):
            for sid in ("dc1", "dc2"):
                await nodes[sid].store.write(saving(b"%d" % number, f"{sid} {number}".encode().rjust(16), STORED))
        await heal(nodes)
        entries = await nodes["dc1"].store.read(lambda reader: reading.log_after(reader, 0, 1000, 1 << 30))
        assert sum(item.entry.is_merge for item in entries) == 1


async def test_mail_that_lay_in_a_folder_of_the_past_when_the_node_stopped_is_moved_when_it_starts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        work = await node.mail.create_folder("alice", "Work")
        key = MailboxKey("alice", work.mailbox_id, work.uidvalidity)
        await node.store.write(deleting(work.mailbox_id))
        await node.store.write(creating("Work", b"w" * 16))
        await node.store.write(saving(b"late", guid(1), key))
        await nodes.stop("dc1")
        await nodes.start("dc1")
        await shows(nodes["dc1"], "Work", ["late"])


async def test_mail_in_several_deleted_folders_of_one_name_comes_to_be_seen_in_one(
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
        await shows(node, "Work", ["late 0", "late 1"])
