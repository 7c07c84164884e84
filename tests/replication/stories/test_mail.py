"""`explain` at nodes of a cluster: why a mail is there twice, gone, or back, also across cuts and merges."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.errors import FolderNotFoundError
from replicator.imap.rendering.outline import OUTLINER
from replicator.mail.mailstore import NewMessage
from replicator.replication import timing
from replicator.replication.stories import mail, mail_lives, message_ids
from replicator.replication.writes.requests import SaveRequest
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.queries import Connection, MailboxKey
from replicator.store.log.stories import chain_walk, story_rows
from replicator.store.store import Reader
from replicator.tasks import UndeleteOptions, UndeleteStatus
from tests.replication.cluster import USER, Cluster, Node, cluster
from tests.replication.log.truncating import checkpoint, forget_log
from tests.replication.stories.telling import answer, heal, joined, kinds, link_apart, part, story
from tests.replication.tasks.running import run_task

MAIL = "Message-ID: <one@example.org>\r\nSubject: one\r\n\r\n"
WHEN = r"at 2023-\d\d-\d\d \d\d:\d\d:\d\d"


def is_said(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern.replace("WHEN", WHEN), text) is not None


async def guid_of(node: Node, uid: int, name: str = "INBOX") -> bytes:
    return (await node.view(name)).messages[uid].guid


async def test_mail_delivered_on_both_sides_of_a_cut_is_there_twice(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("before")
        await nodes.converged()
        await part(nodes)
        await nodes["dc1"].save(f"{MAIL}at dc1")
        await trio.sleep(5)
        await nodes["dc2"].save(f"{MAIL}at dc2")
        await heal(nodes)
        for mail_asked in ("one@example.org", 3):
            said = await answer(nodes, mail_asked)
            assert is_said(
                "It is here twice because 2 messages with the same Message-ID were delivered or saved by clients:"
                r" by dc1 WHEN as UID \d and by dc2 WHEN as UID \d, while neither node had the other's change;"
                r" dc\d joined their branches WHEN\.",
                said,
            ), said
        told = await joined(nodes, "one@example.org")
        assert [kinds(told, number) for number in (0, 1)] == [["arrived", "renumbered"]] * 2
        assert told.not_asked == ()
        assert {life.any.folder for life in told.lives} == {"INBOX"}
        assert all(set(happened.heard.values()) == {"shown"} for life in told.lives for happened in life.events)
        alone = await joined(nodes, 3, "dc2")
        assert (alone.not_asked, len(alone.lives)) == (("dc1", "dc3"), 2)


async def test_same_body_delivered_one_after_the_other(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("the same")
        await trio.sleep(60)
        await nodes["dc1"].save("the same")
        await nodes["dc1"].save("another")
        await nodes.converged()
        said = await answer(nodes, 1)
        assert is_said(
            "It is here twice because 2 messages with the same body were delivered or saved by clients:"
            r" by dc1 WHEN as UID 1 and by dc1 WHEN as UID 2, one after the other\.",
            said,
        ), said
        assert is_said(r"It is in INBOX once, as UID 3, put there by dc1 WHEN\.", await answer(nodes, 3))


async def test_copies_are_told_from_deliveries(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save("mine")
        await node.mail.create_folder(USER, "Archive")
        await node.mail.copy(await node.view(), UidSet.of([1]), await node.mail.folder(USER, "Archive"))
        said = await answer(nodes, 1)
        assert said.endswith("There are copies of it in other folders: Archive.")
        await node.mail.copy(await node.view(), UidSet.of([1]), await node.inbox())
        said = await answer(nodes, 1)
        assert "It is here twice because 2 messages with the same body" in said
        assert "1 of them came by a client's COPY or MOVE." in said
        told = await joined(nodes, 1)
        assert [(life.same, life.any.folder) for life in told.lives] == [
            ("asked", "INBOX"), ("guid", "Archive"), ("body", "INBOX")
        ]  # fmt: skip
        assert kinds(told, 1) == kinds(told, 2) == ["copied"]


async def test_expunged_mail_is_gone_and_can_come_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("mine")
        await nodes["dc1"].flag(1)
        await trio.sleep(60)
        await nodes["dc1"].expunge(1)
        await nodes.converged()
        for mail_asked in (1, (await story(nodes["dc1"], 1)).lives[0].guid):
            said = await answer(nodes, bytes.fromhex(mail_asked) if isinstance(mail_asked, str) else mail_asked)
            assert is_said(
                r"It is gone because it was expunged \(UID 1\), by dc1 WHEN\. `replicator undelete alice INBOX` at dc\d"
                r" can bring it back until 2023-\d\d-\d\d \d\d:\d\d\.",
                said,
            ), said
        told = await joined(nodes, 1)
        assert kinds(told) == ["arrived", "flags_set", "expunged"]
        await run_task(nodes["dc2"], UndeleteOptions(USER, "INBOX"), UndeleteStatus)
        await nodes.converged()
        said = await answer(nodes, 2)
        assert is_said(
            r"It is back because it was saved again under its old GUID, as `undelete` does, by dc\d WHEN; it had been"
            r" expunged by dc1 WHEN\.",
            said,
        ), said


async def test_mail_that_no_node_keeps_is_gone_for_good(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save(f"{MAIL}mine")
        guid = await guid_of(node, 1)
        await node.expunge(1)
        hash_ = (await story(node, 1)).lives[0].sha256
        node.damage(f"DELETE FROM content WHERE hash = x'{hash_}'")
        said = await answer(nodes, 1)
        assert said.endswith("if another node has its body: dc1 does not.")
        node.damage("DELETE FROM expunged")
        for mail_asked in (1, guid):
            said = await answer(nodes, mail_asked)
            assert is_said(
                r"It is gone because it was expunged \(UID 1\), by dc1 WHEN\. No node that was asked keeps it any more,"
                r" so `replicator undelete` cannot bring it back from them\.",
                said,
            ), said
        [life] = (await story(node, guid)).lives
        assert (life.shown, life.kept, life.sha256, kinds(await story(node, guid))) == (
            None, None, hash_, ["arrived", "expunged"]
        )  # fmt: skip
        assert "No node that was asked knows of such a mail in INBOX" in await answer(nodes, "one@example.org")
        assert "No node that was asked knows of such a mail in INBOX" in await answer(nodes, 77)


async def test_mail_moved_to_another_folder(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save(f"{MAIL}mine")
        mailbox = nodes["dc1"].mail
        await mailbox.create_folder(USER, "Work")
        await mailbox.move(await nodes["dc1"].view(), UidSet.of([1]), await mailbox.folder(USER, "Work"))
        await nodes.converged()
        said = await answer(nodes, 1)
        assert is_said(
            r"It is not in INBOX any more, but in Work as UID 1, where it was put by dc1 WHEN: it was expunged"
            r" \(UID 1\), by dc1 WHEN\.",
            said,
        ), said
        assert await answer(nodes, "one@example.org") == said
        assert (await answer(nodes, 1, name="Work")).startswith("It is in Work once, as UID 1")


async def test_mail_of_a_deleted_folder(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.mail.create_folder(USER, "Work")
        await node.save(f"{MAIL}mine", "Work")
        await node.mail.delete_folder(USER, "Work")
        said = await answer(nodes, 1, name="Work")
        assert is_said(
            r"It is gone because the folder was deleted with its mail, by dc1 WHEN\. `replicator undelete alice Work`"
            r" at dc1 can bring it back until .*\.",
            said,
        ), said
        told = await joined(nodes, 1, name="Work")
        assert [one.kind for one in told.folders] == ["created", "deleted"]
        assert told.lives[0].any.is_deleted
        assert "It is not in INBOX, as far" not in said
        await node.save("another")
        [other] = (await story(node, 1)).lives
        assert other.folder == "INBOX"


async def test_expunge_on_one_side_of_a_cut(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("mine")
        await nodes.converged()
        await part(nodes)
        await nodes["dc1"].expunge(1)
        await nodes["dc2"].flag(1, added=["\\Flagged"])
        apart = await joined(nodes, 1)
        assert (apart.lives[0].shown_at, apart.lives[0].gone_at) == ({"dc2": 1, "dc3": 1}, ["dc1"])
        heard = {happened.event.kind: dict(happened.heard) for happened in apart.lives[0].events}
        assert heard["expunged"] == {"dc1": "shown", "dc2": "absent", "dc3": "absent"}
        assert heard["flags_set"] == {"dc1": "absent", "dc2": "shown", "dc3": "shown"}
        assert "It is shown at dc2 and dc3, and not at dc1: the nodes have yet to become equal." in await answer(
            nodes, 1
        )
        await heal(nodes)
        told = await joined(nodes, 1)
        assert sorted(kinds(told)) == ["arrived", "expunged", "flags_set", "removed"]
        assert is_said(r"It is gone because it was expunged \(UID 1\), by dc1 WHEN\. .*", await answer(nodes, 1))


async def test_mail_that_an_expunge_did_not_mean_stays(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A delivery is tried again on the other side of a cut, under its GUID, and expunged on one side."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("before")
        await nodes.converged()
        await part(nodes)
        for sid in ("dc1", "dc2"):
            folder = await nodes[sid].inbox()
            key = MailboxKey(USER, folder.mailbox_id, folder.uidvalidity)
            request = SaveRequest(key, b"a delivery......", 1_000, (), StoredBody.of(b"delivered twice"))
            await nodes[sid].coordinator.carry_out(request)
        await nodes["dc2"].expunge(2)
        await heal(nodes)
        said = await answer(nodes, b"a delivery......")
        assert is_said(
            r"It is still here although it was expunged by dc2 WHEN, because it had been saved more than once \(by dc1"
            r" WHEN and by dc2 WHEN\), and the expunge removed only what its author saw\.",
            said,
        ), said


async def test_branches_that_are_not_joined_yet(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("before")
        await nodes.converged()
        await part(nodes)
        await nodes["dc1"].save("at dc1")
        await nodes["dc2"].save("at dc2")
        apart = await answer(nodes, 2)
        assert apart.startswith(
            "UID 2 is one mail at dc1, and another at dc2 and dc3, until their branches are joined."
        )
        with monkeypatch.context() as patched:
            await link_apart(nodes, patched)
            told = await joined(nodes, await guid_of(nodes["dc1"], 2))
            [life] = told.lives
            assert (life.shown_at, life.gone_at, life.coming_at) == ({"dc1": 2}, [], ["dc2", "dc3"])
            alone = await answer(nodes, await guid_of(nodes["dc1"], 2), "dc3")
            assert is_said(
                "It was put there by dc1 WHEN, and dc3 does not show it yet: the change is on a branch that is still to"
                r" be joined, or one before it is missing; `replicator mailbox show` at dc3 says which\.",
                alone,
            ), alone
            assert [dict(happened.heard) for happened in life.events] == [
                {"dc1": "shown", "dc2": "waits", "dc3": "waits"}
            ]
        await heal(nodes)


async def test_what_has_left_the_log_is_not_guessed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save(f"{MAIL}one")
        await node.save("two")
        await node.save("three")
        await node.flag(1, 2)
        await checkpoint(node)
        await forget_log(node)
        await trio.sleep(60)
        [life] = (await story(node, 1)).lives
        assert (life.events, life.is_whole, life.log_since_ms) == ((), False, None)
        assert life.shown is not None
        assert [(flag.flag, flag.node, flag.is_set) for flag in life.shown.flags] == [("\\Seen", "dc1", True)]
        assert is_said(r"It is in INBOX once, as UID 1, put there by dc1 WHEN\.", await answer(nodes, 1))
        await node.flag(1, added=["\\Flagged"])
        await node.expunge(2)
        assert kinds(await story(node, 1)) == ["flags_set"], "its UID is older than the log"
        assert kinds(await story(node, 2)) == ["expunged"]
        await forget_log(node)
        said = await answer(nodes, 2)
        assert is_said(
            r"It is gone because it was expunged WHEN, by a change that has left the logs\. `replicator undelete .*",
            said,
        ), said
        again = await node.save(f"{MAIL}one")
        said = await answer(nodes, again)
        assert said.startswith("It is here twice because 2 messages with the same body")
        assert said.endswith("UID 4.")


async def test_message_ids_are_read_from_outlines_and_bodies(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        for number in range(4):
            await node.save(f"Message-ID: <{number}@example.org>\r\n\r\n{number}")
        await node.save("Subject: none\r\n\r\n")
        monkeypatch.setattr(message_ids, "BODIES_MAX", 2)
        told = await story(node, "3@example.org")
        assert ([life.message_id for life in told.lives], told.looked_at.headers_unread) == (["3@example.org"], 3)
        assert (await story(node, "0@example.org")).lives == ()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.coordinator.bodies.outline, OUTLINER)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        told = await story(node, "0@example.org")
        assert ([life.message_id for life in told.lives], told.looked_at.headers_unread) == (["0@example.org"], 0)
        assert told.looked_at.headers == 5
        [alone] = (await story(node, 5)).lives
        assert alone.message_id is None


async def test_limits_are_kept_and_said(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.mail.create_folder(USER, "Archive")
        for name in ("INBOX", "Archive"):
            for number in range(6):
                await node.mail.save(await node.mail.folder(USER, name), NewMessage(f"{MAIL}{number % 3}".encode()))
        whole = await story(node, 1)
        assert (len(whole.lives), whole.lives_left) == (12, 0)
        assert (whole.looked_at.entries_left, whole.looked_at.messages_left, whole.looked_at.headers_left) == (
            False,
            0,
            0,
        )
        monkeypatch.setattr(mail, "LIVES_MAX", 3)
        some = await story(node, 1)
        assert (len(some.lives), some.lives_left, some.lives[0].same) == (3, 9, "asked")
        monkeypatch.setattr(mail, "MESSAGES_MAX", 6)
        assert (await story(node, 1)).looked_at.messages_left == 6
        monkeypatch.setattr(mail, "HEADERS_MAX", 4)
        monkeypatch.setattr(mail, "HEADERS_AT_ONCE", 2)
        looked_at = (await story(node, 1)).looked_at
        assert (looked_at.headers, looked_at.headers_left) == (4, 8)
        monkeypatch.setattr(mail, "ENTRIES_MAX", 5)
        short = await story(node, 1)
        assert (short.looked_at.entries, short.looked_at.entries_left, short.lives[0].is_whole) == (5, True, False)


async def test_story_that_takes_too_long_ends_with_what_it_has(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        for number in range(5):
            await nodes["dc1"].save(f"{MAIL}{number}")
        monkeypatch.setattr(timing, "STORY_READ_S", 0.0)
        monkeypatch.setattr(chain_walk, "SLICE_ENTRIES", 2)
        told = await story(nodes["dc1"], 5)
        assert (told.looked_at.entries, told.looked_at.entries_left) == (2, True)
        assert (told.looked_at.headers, told.looked_at.headers_left) == (0, 5)
        assert [(life.is_whole, kinds(told)) for life in told.lives] == [(False, ["arrived"])]


async def test_expunged_mail_is_looked_at_within_limits(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.mail.create_folder(USER, "Archive")
        for name in ("INBOX", "Archive"):
            for number in range(6):
                await node.mail.save(await node.mail.folder(USER, name), NewMessage(f"{MAIL}{number}".encode()))
            await node.expunge(*range(1, 6), name=name)
        looked_at = (await story(node, "one@example.org")).looked_at
        assert (looked_at.headers, looked_at.headers_left) == (12, 0)
        monkeypatch.setattr(mail, "HEADERS_AT_ONCE", 2)
        monkeypatch.setattr(mail, "KEPT_MAX", 4)
        looked_at = (await story(node, "one@example.org")).looked_at
        assert (looked_at.headers, looked_at.headers_left) == (10, 2), "what is beyond the limit of a folder is told"
        monkeypatch.setattr(mail, "KEPT_IN_ALL_MAX", 2)
        looked_at = (await story(node, "one@example.org")).looked_at
        assert (looked_at.headers, looked_at.headers_left) == (4, 8)
        monkeypatch.setattr(timing, "STORY_READ_S", 0.0)
        looked_at = (await story(node, 6)).looked_at
        assert (looked_at.headers, looked_at.headers_left, looked_at.messages_left) == (0, 12, 2)


async def test_deleted_folders_of_one_name_are_looked_at_within_the_time(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        for _ in range(3):
            await make_twice(nodes, "Work")
            await nodes["dc1"].mail.delete_folder(USER, "Work")
        assert (await story(nodes["dc1"], 99, "Work")).looked_at.entries_left is False
        monkeypatch.setattr(timing, "STORY_READ_S", 0.0)
        looked_at = (await story(nodes["dc1"], 99, "Work")).looked_at
        assert (looked_at.entries, looked_at.entries_left) == (0, True)


async def test_mail_whose_flags_change_all_the_time_has_a_short_story(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save("mine")
        for number in range(6):
            await node.flag(1, added=[f"$Flag{number}"])
        await node.expunge(1)
        [whole] = (await story(node, 1)).lives
        assert (len(whole.events), whole.events_left) == (8, 0)
        monkeypatch.setattr(mail_lives, "EVENTS_MAX", 4)
        [some] = (await story(node, 1)).lives
        assert some.events_left == 4
        assert [(event.kind, event.flags) for event in some.events] == [
            ("arrived", ()), ("flags_set", ("$Flag4",)), ("flags_set", ("$Flag5",)), ("expunged", ())
        ]  # fmt: skip


class CountedFolder(story_rows.KnownFolder):
    """A folder that counts how often its name is read: by a story on the event loop."""

    reads = 0

    @property
    def name(self) -> str:
        CountedFolder.reads += 1
        return self[1]


async def test_user_with_many_folders_costs_no_more_than_the_folders(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing compares each folder with each other, and empty ones are not read one by one."""

    def counted(connection: Connection, user: str) -> list[story_rows.KnownFolder]:
        return [CountedFolder(*folder) for folder in folders_of(connection, user)]

    async def count_read(reader: Reader, query: Callable[[Connection], object]) -> object:
        reads.append(query)
        return await read(reader, query)

    folders_of, read, reads = story_rows.folders_of, Reader.read, list[object]()
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save(f"{MAIL}mine")
        for number in range(50):
            await node.mail.create_folder(USER, f"Folder {number}")
        monkeypatch.setattr(story_rows, "folders_of", counted)
        monkeypatch.setattr(Reader, "read", count_read)
        told = await story(node, "one@example.org")
    assert [life.same for life in told.lives] == ["asked"]
    assert CountedFolder.reads < 5 * 50
    assert len(reads) < 25


async def test_stories_hold_no_reader_of_clients(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Stories read on connections of their own, of which there are two."""
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        await node.save("mine")
        answers: list[int] = []

        async def ask() -> None:
            answers.append(len((await story(node, 1)).lives))

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(ask)
        assert answers == [1] * 6


async def test_unknown_folder(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        await nodes["dc1"].save("x")
        with pytest.raises(FolderNotFoundError, match="alice has no folder 'Nowhere' at dc1"):
            await story(nodes["dc1"], 1, "Nowhere")


async def test_uids_are_those_of_the_folder_that_has_the_name(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node: Node = nodes["dc1"]
        await make_twice(nodes, "Work")
        told = await story(node, 1, "Work")
        assert [(life.folder, life.is_deleted, life.shown is not None) for life in told.lives] == [
            ("Work", False, True)
        ]
        assert [life.is_deleted for life in (await story(node, 2, "Work")).lives] == [True]


async def make_twice(nodes: Cluster, name: str) -> None:
    """Create a folder with two mails, delete it, and create another one of that name with one mail."""
    node = nodes["dc1"]
    await node.mail.create_folder(USER, name)
    await node.save("old one", name)
    await node.save("old two", name)
    await node.mail.delete_folder(USER, name)
    await node.mail.create_folder(USER, name)
    await node.save("new", name)
