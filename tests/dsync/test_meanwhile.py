"""What users do while a Dovecot syncs, or where it cannot know: their mail and flags stay, and come to both sides."""

from __future__ import annotations

import shutil
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from replicator.dsync.door import server
from replicator.dsync.replica import Replica
from replicator.dsync.rules.mails.telling import Account
from replicator.dsync.rules.tree import INBOX, Adopt, Delete, Rename
from replicator.dsync.users import Syncing
from replicator.dsync.wire.items import ChangeType, Mailbox, MailChange, TreeNode
from replicator.errors import FolderNotFoundError, UnavailableError
from replicator.mail.dovecot_guids import guid_of
from replicator.mail.guids_by_uid import GuidsByUid
from replicator.mail.listing import ListedMessage, Listing
from replicator.mail.mailstore import Folder, NewMessage, SavedMessage
from replicator.mail.scratch import Scratch
from tests.dsync.dovecot import MAILDIR, PASSWORD, SDBOX, Dovecot, dovecot, needs_dovecot
from tests.dsync.memory_replica import MemoryReplica
from tests.dsync.scripted import scripted_master
from tests.dsync.sides import USER, DovecotSide, Master, NodeSide, door, node_replicas
from tests.one_node import HookedMail, nothing, one_node

pytestmark = needs_dovecot
WRITTEN_S = 10.0
NOT_FOUND = 68
"""Dovecot's exit code where it misses a folder."""


def now_ms() -> int:
    return int(time.time() * 1000)


@dataclass
class Two:
    """A Dovecot and a node. `meanwhile` is what users do once in the middle of the next sync."""

    server: Dovecot
    mail: HookedMail
    master: Master
    syncing: Syncing
    meanwhile: list[Callable[[], Awaitable[object]]] = field(default_factory=list)

    @property
    def here(self) -> NodeSide:
        return NodeSide(self.mail)

    @property
    def there(self) -> DovecotSide:
        return DovecotSide(self.server)

    async def become_equal(self, kind: str, most: int = 4) -> None:
        """Sync until both sides have the same."""
        for _ in range(most):
            done = await self.master.sync(kind)
            assert done.returncode in {0, 2}, done
        assert await self.here.shown() == await self.there.shown()

    async def saves(self, *texts: str) -> None:
        for text in texts:
            await self.there.append(f"Subject: {text}\r\n\r\n".encode())


@pytest.fixture
async def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    async with both(tmp_path, monkeypatch) as sides:
        yield sides


@asynccontextmanager
async def both(path: Path, monkeypatch: pytest.MonkeyPatch, location: str = SDBOX) -> AsyncIterator[Two]:
    syncing = Syncing()
    with dovecot(location) as server:
        async with one_node(path) as mail, door(node_replicas(mail, now_ms), syncing=syncing) as address:
            sides = Two(server, mail, Master(server, address), syncing)
            expunged = mail.expunged

            async def changed_meanwhile(folder: Folder, scratch: Scratch | None = None) -> GuidsByUid:
                found = await expunged(folder, scratch)
                while sides.meanwhile:
                    await sides.meanwhile.pop()()
                return found

            monkeypatch.setattr(mail, "expunged", changed_meanwhile)
            yield sides


@pytest.mark.parametrize("kind", ["s", "c", "f"])
@pytest.mark.parametrize("more", [0, 1])
async def test_a_delivery_during_a_sync_stays(two: Two, kind: str, more: int) -> None:
    """The UID that it gets here is that of a mail that Dovecot has expunged."""
    await two.saves("1", "2")
    await two.become_equal(kind)
    await two.saves("3", "4")
    await two.there.expunge(3)
    await two.there.expunge(4)
    await two.saves(*["5"][:more])
    two.meanwhile.append(lambda: two.mail.deliver(USER, NewMessage(b"Subject: meanwhile\r\n\r\n")))
    await two.master.sync(kind)
    assert not two.meanwhile
    await two.saves("6")
    await two.become_equal(kind)
    assert b"Subject: meanwhile\r\n\r\n" in await two.mail.bodies(USER)
    assert len(await two.there.shown()) == 4 + more


@pytest.mark.parametrize("kind", ["s", "c", "f"])
async def test_a_mail_that_dovecot_gets_under_a_uid_that_was_expunged_here_comes_with_the_next_sync(
    two: Two, kind: str
) -> None:
    await two.saves("1")
    await two.become_equal(kind)
    await two.here.append(b"Subject: 2\r\n\r\n")
    await two.here.expunge(2)
    two.meanwhile.append(lambda: two.saves("meanwhile"))
    await two.master.sync(kind)
    assert not two.meanwhile
    await two.become_equal(kind, 2)
    assert len(await two.here.shown()) == 2


@pytest.mark.parametrize("kind", ["s", "c", "f"])
async def test_a_flag_during_a_sync_comes_with_the_next_though_the_node_has_counted_further(
    two: Two, kind: str
) -> None:
    await two.saves("1", "2")
    await two.become_equal(kind)
    for number in range(10):
        await two.here.flag(1, "\\Flagged", is_set=number % 2 == 0)
    two.meanwhile.append(lambda: two.there.flag(2, "\\Answered", is_set=True))
    two.meanwhile.append(lambda: two.mail.deliver(USER, NewMessage(b"Subject: meanwhile\r\n\r\n")))
    await two.master.sync(kind)
    assert not two.meanwhile
    await two.become_equal(kind, 2)
    assert [flags for uid, _, flags in await two.here.shown() if uid == 2] == [{"\\Answered"}]


@pytest.mark.parametrize("mails", [0, 2])
async def test_a_delivery_during_a_sync_that_changes_nothing_comes_with_the_next(two: Two, mails: int) -> None:
    """Dovecot does not ask for a mailbox that is as it remembers it."""
    await two.saves(*map(str, range(mails)))
    await two.become_equal("s")
    two.meanwhile.append(lambda: two.mail.deliver(USER, NewMessage(b"Subject: meanwhile\r\n\r\n")))
    await two.master.sync("s")
    assert not two.meanwhile
    await two.become_equal("s", 2)
    assert len(await two.there.shown()) == mails + 1


@pytest.mark.parametrize("address", ["127.0.0.1", "fd00::5"])
@pytest.mark.parametrize("forgets", [False, True])
async def test_a_delivery_during_a_sync_that_breaks_off_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, *, forgets: bool
) -> None:
    """Also where Dovecot no longer knows that the UID which it gets here is that of an expunged mail.

    `address`: from which Dovecot calls then.
    """
    async with both(tmp_path, monkeypatch, MAILDIR) as two:
        await deliver_and_break_off(two, forgets=forgets)
        monkeypatch.setattr(server, "client_address", lambda _: address)
        await two.become_equal("c")
        assert b"Subject: meanwhile\r\n\r\n" in await two.mail.bodies(USER)
        assert len(await two.there.shown()) == 5


async def deliver_and_break_off(two: Two, *, forgets: bool) -> None:
    await two.saves("1", "2")
    await two.become_equal("c")
    await two.saves("3", "4")
    await two.there.expunge(3)
    await two.there.expunge(4)
    await two.saves("5\r\n" + 70_000 * "x", "6\r\n" + 70_000 * "x")
    if forgets:
        two.there.dovecot.forget_expunges(USER)
    delivered = list[SavedMessage]()

    async def deliver_and_fail(_user: str) -> None:
        two.mail.before_change = nothing
        if not delivered:
            delivered.append(await two.mail.deliver(USER, NewMessage(b"Subject: meanwhile\r\n\r\n")))
            two.mail.before_change = deliver_and_fail
        else:
            raise UnavailableError("the disk is slow")

    two.mail.before_change = deliver_and_fail
    assert (await two.master.sync()).returncode == 75
    assert delivered[0].uid == 3
    assert [uid for uid, _, _ in await two.here.shown()] == [1, 2, 3, 5]


@pytest.mark.parametrize("kind", ["s", "c", "f"])
async def test_an_expunge_of_the_last_mail_that_dovecot_asks_for_takes_no_other(two: Two, kind: str) -> None:
    """Where that mail does not come, Dovecot deletes the files of all mails that the sync has brought before.

    It finds that as somebody reads them, and takes them for expunged.
    """
    await two.saves("1")
    await two.become_equal(kind)
    for number in range(2, 5):
        await two.here.append(b"Subject: %d\r\n\r\n" % number)
    two.meanwhile.append(lambda: two.here.expunge(4))
    await two.master.sync(kind)
    assert not two.meanwhile
    await two.here.append(b"Subject: 5\r\n\r\n")
    await two.master.sync(kind)
    await trio.to_thread.run_sync(two.server.run, "fetch", "-u", USER, "text", "mailbox", "INBOX", "all")
    await two.become_equal(kind)
    assert await two.mail.bodies(USER) == [b"Subject: %d\r\n\r\n" % number for number in (1, 2, 3, 5)]


async def test_flags_that_are_set_during_a_sync_stay(two: Two) -> None:
    await two.saves("1")
    await two.there.flag(1, "Kw", is_set=True)
    await two.become_equal("s")
    await two.there.flag(1, "\\Seen", is_set=True)
    two.meanwhile.append(lambda: two.here.flag(1, "\\Flagged", is_set=True))
    await two.master.sync("s")
    assert not two.meanwhile
    await two.become_equal("s")
    [(_, _, flags)] = await two.there.shown()
    assert flags == {"\\Seen", "\\Flagged", "Kw"}


@pytest.mark.parametrize("kind", ["s", "c", "f"])
async def test_a_flag_that_is_set_while_a_mail_gets_another_uid_stays(two: Two, kind: str) -> None:
    await two.saves("1")
    await two.here.append(b"Subject: other\r\n\r\n")
    two.meanwhile.append(lambda: two.here.flag(1, "\\Flagged", is_set=True))
    await two.master.sync(kind)
    assert not two.meanwhile
    for _ in range(3):
        await two.there.flag(2, "\\Seen", is_set=True)
        await two.there.flag(2, "\\Seen", is_set=False)
        await two.there.flag(3, "\\Seen", is_set=True)
        await two.there.flag(3, "\\Seen", is_set=False)
    await two.become_equal(kind)
    assert sorted(len(flags) for _, _, flags in await two.there.shown()) == [0, 1]


async def test_a_flag_that_is_set_during_a_sync_lies_above_what_both_agree_on() -> None:
    """Else no later sync by a state would tell it: the master's MODSEQ may be far above this side's."""
    replica = MemoryReplica()
    box = replica.create(INBOX, b"i" * 16)
    box.append(b"g" * 16, b"x")
    box.meanwhile = lambda: box.flag(1, added=frozenset({"\\Seen"}))
    numbers = Mailbox(b"i" * 16, box.uidvalidity, 2, 1, 2, 100)
    async with scripted_master(lambda _: replica) as master:
        await master.folders([TreeNode(INBOX, mailbox_id=b"i" * 16, uidvalidity=box.uidvalidity, uidnext=2)])
        told = await master.mailbox(numbers, [MailChange(ChangeType.SAVE, 1, (b"g" * 16).hex(), 50)])
        await master.finish()
    assert "\\Seen" in box.stored[1].flags
    assert told.state is not None
    assert box.stored[1].modseq > told.state.last_common_modseq + 1, "one less than is true is told"


async def test_flags_that_are_cleared_during_a_sync_stay_so(two: Two) -> None:
    await two.saves("1")
    await two.there.flag(1, "\\Flagged", is_set=True)
    await two.become_equal("s")
    await two.there.flag(1, "\\Seen", is_set=True)
    two.meanwhile.append(lambda: two.here.flag(1, "\\Flagged", is_set=False))
    await two.master.sync("s")
    assert not two.meanwhile
    for number in range(3):  # the mail's MODSEQ is greater there
        await two.there.flag(1, f"kw{number}", is_set=True)
    await two.become_equal("s")
    [(_, _, flags)] = await two.there.shown()
    assert "\\Flagged" not in flags


async def test_each_expunge_is_told_once(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    expunges, original = list[list[int]](), Account.changes

    def noted(account: Account, mails: Iterable[ListedMessage]) -> Iterator[MailChange]:
        changes = [*original(account, mails)]
        expunges.append([change.uid for change in changes if change.type is ChangeType.EXPUNGE])
        return iter(changes)

    monkeypatch.setattr(Account, "changes", noted)
    await two.saves("1", "2", "3", "4", "5")
    await two.become_equal("s")
    for uid in (2, 4):
        await two.here.expunge(uid)
    await two.saves("6")
    await two.become_equal("s")
    assert [uids for uids in expunges if 2 in uids] == [[2, 4]], expunges
    state = two.master.state
    await two.here.expunge(3)
    await two.saves("7")
    await two.become_equal("s")
    two.master.state = state
    expunges.clear()
    await two.become_equal("s", 2)  # the node does not remember that sync, so the next one compares all mails
    assert expunges[0] == [2, 3, 4], "to a Dovecot that has forgotten the last sync"


@pytest.mark.parametrize("kind", ["s", "c", "f"])
async def test_copies_within_a_folder_outlive_their_source(two: Two, kind: str) -> None:
    await two.saves("1")
    two.server.do("copy", "-u", USER, "INBOX", "mailbox", "INBOX", "uid", "1")
    two.server.do("copy", "-u", USER, "INBOX", "mailbox", "INBOX", "uid", "1")
    await two.saves("4")
    for _ in range(3):
        await two.master.sync(kind)
    assert len({guid for _, guid, _ in await two.here.shown()}) == 4
    await two.there.expunge(1)
    await two.here.expunge(4)
    for _ in range(3):
        await two.master.sync(kind)
    assert [uid for uid, _, _ in await two.here.shown()] == [uid for uid, _, _ in await two.there.shown()] == [2, 3]
    assert await two.mail.bodies(USER) == 2 * [b"Subject: 1\r\n\r\n"]
    await two.there.expunge(2)
    await two.here.expunge(3)
    for _ in range(3):
        await two.master.sync(kind)
    assert await two.here.shown() == await two.there.shown() == []


async def test_a_folder_with_copies_is_compared_as_a_whole(two: Two) -> None:
    """Dovecot forgets its state then, and remembers a new one after the next sync."""
    await two.saves("1")
    assert [(await two.master.sync("s")).returncode for _ in range(3)] == [0, 0, 0]
    two.server.do("copy", "-u", USER, "INBOX", "mailbox", "INBOX", "uid", "1")
    codes = list[int]()
    for uid in (1, 2, 1, 2):
        await two.here.flag(uid, f"kw{len(codes)}", is_set=True)
        codes.append((await two.master.sync("s")).returncode)
    assert codes == [0, 2, 0, 2]


@pytest.mark.parametrize("kind", ["s", "c"])
async def test_a_deleted_folder_stays_with_mail_that_dovecot_never_saw(two: Two, kind: str) -> None:
    two.server.do("mailbox", "create", "-u", USER, "Work", "Old")
    two.server.save(USER, b"Subject: seen\r\n\r\n", "Work")
    await two.master.sync(kind)
    work = await two.mail.folder(USER, "Work")
    await two.mail.save(work, NewMessage(b"Subject: unseen\r\n\r\n"))
    two.server.do("mailbox", "delete", "-u", USER, "Work", "Old")
    await trio.sleep(1.1)  # Dovecot's clock has seconds
    for _ in range(3):
        await two.master.sync(kind)
    assert {folder.name for folder in await two.mail.folders(USER)} == {"INBOX", "Work"}
    assert await two.mail.bodies(USER, "Work") == [b"Subject: unseen\r\n\r\n"]
    living = [one for one in (await two.mail.tree_changes(USER)).folders if not one.deleted]
    assert [one.guid.hex() for one in living if one.name == "Work"] == [two.server.folders(USER)["Work"][0]]
    assert two.server.folders(USER)["Work"][1] == 1


@pytest.mark.parametrize("kind", ["s", "c"])
async def test_no_uid_names_other_mail_where_a_deleted_folder_comes_back(two: Two, kind: str) -> None:
    """Both sides have given one UID, and the Dovecot's clients know the mail that it has deleted with the folder."""
    two.server.do("mailbox", "create", "-u", USER, "Work", "Work/below")
    await two.master.sync(kind)
    two.server.save(USER, b"Subject: deleted\r\n\r\n", "Work")
    before, [deleted] = two.server.status("Work"), two.server.mails(USER, "Work")
    await two.mail.save(await two.mail.folder(USER, "Work"), NewMessage(b"Subject: unseen\r\n\r\n"))
    two.server.do("mailbox", "delete", "-u", USER, "Work")
    for _ in range(2):
        await two.master.sync(kind)
    after, [unseen] = two.server.status("Work"), two.server.mails(USER, "Work")
    assert (before["uidvalidity"], deleted[0]) != (after["uidvalidity"], unseen[0])
    assert (await two.mail.folder(USER, "Work")).uidvalidity == int(after["uidvalidity"])
    assert await two.mail.bodies(USER, "Work") == [b"Subject: unseen\r\n\r\n"]
    assert {folder.name for folder in await two.mail.folders(USER)} == {"INBOX", "Work", "Work/below"}


async def test_mail_that_comes_while_a_sync_deletes_its_folder_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_node(tmp_path) as mail, node_replicas(mail, now_ms)(USER) as replica:
        work = await mail.create_folder(USER, "Work")
        for text in (b"seen", b"placed anew"):
            await mail.save(work, NewMessage(b"Subject: %s\r\n\r\n" % text))
        delete_seen = mail.delete_seen

        async def delete_late(folder: Folder, seen: Listing) -> None:
            await mail.save(work, NewMessage(b"Subject: late\r\n\r\n"))
            await mail.renumber(await mail.open_mailbox(work), {2: 4})
            await delete_seen(folder, seen)

        monkeypatch.setattr(mail, "delete_seen", delete_late)
        await replica.carry_out(Delete(("Work",), work.mailbox_id, 2))
        assert await mail.bodies(USER, "Work") == [b"Subject: late\r\n\r\n", b"Subject: placed anew\r\n\r\n"]


async def test_a_sync_may_end_while_it_moves_mail_of_a_deleted_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_node(tmp_path) as mail, node_replicas(mail, now_ms)(USER) as replica:
        work = await mail.create_folder(USER, "Work")
        for number in range(3):
            await mail.save(work, NewMessage(b"Subject: %d\r\n\r\n" % number))
        step = Delete(("Work",), work.mailbox_id, 1)

        async def fail(_folder: Folder, _seen: Listing) -> None:
            raise UnavailableError("no node answers")

        with monkeypatch.context() as patched:
            patched.setattr(mail, "delete_seen", fail)
            with pytest.raises(UnavailableError):
                await replica.carry_out(step)
        await mail.save(work, NewMessage(b"Subject: 3\r\n\r\n"))
        await replica.carry_out(step)
        assert await mail.bodies(USER, "Work") == [b"Subject: %d\r\n\r\n" % number for number in range(1, 4)]
        assert {folder.name for folder in await mail.folders(USER)} == {"INBOX", "Work"}


@pytest.mark.parametrize("kind", ["s", "c", "f"])
@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("another_node", [False, True])
async def test_a_folder_that_is_deleted_at_the_node_stays_with_mail_that_no_node_saw(
    two: Two, kind: str, *, unseen: bool, another_node: bool
) -> None:
    """So it is where the node does not know the last sync, as it was with another node."""
    two.server.do("mailbox", "create", "-u", USER, "Work", "Work/Below", "Old")
    for name in ("Work", "Work/Below", "Old"):
        two.server.save(USER, b"Subject: seen\r\n\r\n", name)
    for _ in range(2):
        await two.master.sync(kind)
    if another_node:
        await two.syncing.wait_free(USER, WRITTEN_S)  # Dovecot ends before the node has written down what it remembers
        shutil.rmtree(two.mail.store.path.parent / "dovecots")
    for name in ("Work/Below", "Work", "Old"):
        await two.mail.delete_folder(USER, name)
    if unseen:
        two.server.save(USER, b"Subject: unseen\r\n\r\n", "Work")
    for _ in range(3):
        await two.master.sync(kind)
    left = {"Work": 2} if unseen else {}
    assert {name: mails for name, (_, mails) in two.server.folders(USER).items()} == left
    folders = [folder for folder in await two.mail.folders(USER) if folder.name != "INBOX"]
    assert {folder.name: (await two.mail.status(folder)).messages for folder in folders} == left
    assert (await two.master.sync(kind)).returncode == 0
    for folder in folders:
        await two.mail.delete_folder(USER, folder.name)
    for _ in range(2):
        await two.master.sync(kind)
    assert two.server.folders(USER) == {}, "it is deleted for good, as all its mail was seen"


@pytest.mark.parametrize("kind", ["s", "c"])
async def test_a_folder_that_is_created_anew_at_the_node_becomes_one_with_dovecots(two: Two, kind: str) -> None:
    names = [f"Work{number}" for number in range(6)]  # of some, the id at Dovecot is the greater one
    for name in names:
        two.server.do("mailbox", "create", "-u", USER, name)
        two.server.save(USER, b"Subject: old\r\n\r\n", name)
    await two.master.sync(kind)
    for name in names:
        await two.mail.delete_folder(USER, name)
        await two.mail.save(await two.mail.create_folder(USER, name), NewMessage(b"Subject: new\r\n\r\n"))
    codes = [(await two.master.sync(kind)).returncode for _ in range(3)]
    assert codes[-1] == 0, codes
    for name in names:
        assert len(await two.mail.bodies(USER, name)) == two.server.folders(USER)[name][1] == 2


@pytest.mark.parametrize("kind", ["s", "c"])
async def test_a_folder_below_a_directory_beside_one_that_is_created_anew(two: Two, kind: str) -> None:
    """Dovecot moves `Y` to `B/y`, and then takes an error about `B`, which is no folder, for one about `A`."""
    two.server.do("mailbox", "create", "-u", USER, "A", "Y")
    for _ in range(2):
        await two.master.sync(kind)
    await two.mail.delete_folder(USER, "A")
    await two.mail.create_folder(USER, "A")
    await two.mail.rename_folder(USER, "Y", "B/y")
    await two.mail.delete_folder(USER, "B")
    done = await two.master.sync(kind)
    assert (done.returncode, b"A: Mailbox doesn't exist: B" in done.stderr) == (NOT_FOUND, True)
    assert (await two.master.sync(kind)).returncode == 0
    assert two.server.folders(USER).keys() == {"A", "B/y"}
    assert {folder.name for folder in await two.mail.folders(USER)} == {"INBOX", "A", "B/y"}


async def test_a_mail_that_gets_another_uid_at_the_node_does_not_stay_under_both(two: Two) -> None:
    """So does a merge of branches, of which no UID is known to be expunged."""
    await two.saves("1", "2")
    await two.become_equal("s", 2)
    await two.mail.renumber(await two.mail.open_mailbox(await two.mail.folder(USER, "INBOX")), {1: 5})
    await two.saves("3")
    assert (await two.master.sync("s")).returncode == 2
    assert not two.master.state, "the next sync compares all mails"
    assert (await two.master.sync("s")).returncode == 0
    assert await two.here.shown() == await two.there.shown()
    assert len({guid for _, guid, _ in await two.here.shown()}) == len(await two.here.shown()) == 3


@pytest.mark.parametrize("kind", ["s", "c", "f"])
@pytest.mark.parametrize("flag", ["\\Flagged", "kw"])
@pytest.mark.parametrize("flagged_first", [False, True])
async def test_a_mail_that_was_moved_away_and_back_keeps_the_other_sides_flags(
    two: Two, kind: str, flag: str, *, flagged_first: bool
) -> None:
    await two.saves("1", "2", "3")
    await two.become_equal(kind, 2)
    for deed in ("flag", "move") if flagged_first else ("move", "flag"):
        if deed == "move":
            await two.mail.renumber(await two.mail.open_mailbox(await two.mail.folder(USER, "INBOX")), {1: 5})
            two.server.do("mailbox", "create", "-u", USER, "Away")
            for source, target in (("INBOX", "Away"), ("Away", "INBOX")):
                two.server.do("move", "-u", USER, target, "mailbox", source, "uid", "2" if source == "INBOX" else "1")
        else:
            await two.there.flag(1, flag, is_set=True)
            await two.here.flag(2, flag, is_set=True)
    for _ in range(3):
        await two.master.sync(kind)
    shown = await two.here.shown()
    assert shown == await two.there.shown()
    assert sorted(len(flags) for _, _, flags in shown) == [0, 1, 1]


@pytest.mark.parametrize("kind", ["s", "c"])
async def test_what_dovecot_knows_of_a_folder_says_nothing_of_another_one_with_its_guid(two: Two, kind: str) -> None:
    """A GUID may come to stand for a folder of another branch, where branches join."""
    two.server.do("mailbox", "create", "-u", USER, "Work")
    two.server.save(USER, b"Subject: seen\r\n\r\n", "Work")
    await two.master.sync(kind)
    guid = bytes.fromhex(two.server.folders(USER)["Work"][0])
    await two.mail.delete_folder(USER, "Work")
    other = await two.mail.create_folder(USER, "Work")
    await two.mail.save(other, NewMessage(b"Subject: of the other branch\r\n\r\n"))
    await two.mail.know_as(other, guid)
    two.server.do("mailbox", "delete", "-u", USER, "Work")
    for _ in range(3):
        await two.master.sync(kind)
    assert await two.mail.bodies(USER, "Work") == [b"Subject: of the other branch\r\n\r\n"]
    assert two.server.folders(USER)["Work"][1] == 1


async def test_a_folder_is_deleted_by_its_id(tmp_path: Path) -> None:
    """The folder that has the name by then is another one."""
    async with one_node(tmp_path) as mail:
        old = await mail.create_folder(USER, "Work")
        step = Delete(("Work",), old.mailbox_id)
        await mail.rename_folder(USER, "Work", "Older")
        await mail.create_folder(USER, "Work")
        async with node_replicas(mail, now_ms)(USER) as replica:
            await replica.carry_out(step)
        assert {folder.name for folder in await mail.folders(USER)} == {"INBOX", "Work"}


async def test_a_folder_is_renamed_by_its_id(tmp_path: Path) -> None:
    """A user has given its name to another folder since the steps were planned."""
    async with one_node(tmp_path) as mail, node_replicas(mail, now_ms)(USER) as replica:
        for name in ("Work", "New"):
            await mail.create_folder(USER, name)
        meant = next(node for node in (await replica.tree()).boxes().values() if node.name == ("Work",))
        await mail.rename_folder(USER, "Work", "Old")
        await mail.rename_folder(USER, "New", "Work")
        with pytest.raises(FolderNotFoundError):
            await replica.carry_out(Rename(("Work",), ("Moved",), meant.mailbox_id or b""))
        assert {one.name for one in await mail.folders(USER)} == {"INBOX", "Old", "Work"}


async def test_a_mailbox_is_the_folder_that_has_the_guid_by_then(tmp_path: Path) -> None:
    """Clients, and syncs at other nodes, have changed the folders since the peer was told them."""
    async with one_node(tmp_path) as mail, node_replicas(mail, now_ms)(USER) as replica:
        names = ("Same", "Renamed", "Deleted", "Given", "Taken")
        folders = {name: await mail.create_folder(USER, name) for name in names}
        guids = {name: folder.mailbox_id for name, folder in folders.items()} | {"Given": b"\xff" * 16}
        await mail.know_as(folders["Given"], guids["Given"])
        await replica.tree()
        await mail.rename_folder(USER, "Renamed", "New")
        await mail.delete_folder(USER, "Deleted")
        await mail.know_as(folders["Taken"], guids["Given"])
        found = {name: await uidvalidity(replica, guid) for name, guid in guids.items()}
        has = {name: folder.uidvalidity for name, folder in folders.items()}
        assert found == {
            "Same": has["Same"],
            "Renamed": has["Renamed"],
            "Deleted": None,
            "Given": has["Taken"],
            "Taken": None,
        }


async def uidvalidity(replica: Replica, guid: bytes) -> int | None:
    async with replica.mailbox(guid, "a peer") as box:
        return None if box is None else (await box.numbers()).uidvalidity


async def test_the_last_change_of_each_folder_is_told_as_of_all(tmp_path: Path) -> None:
    async with one_node(tmp_path) as mail:
        inbox, work = await mail.folder(USER, "INBOX"), await mail.create_folder(USER, "Work")
        await mail.create_folder(USER, "Empty")
        await mail.save(work, NewMessage(b"Subject: x\r\n\r\n"))
        await mail.annotate(USER, inbox, {"/private/comment": b"of a folder"})
        for folder in (work, None):
            await mail.annotate(USER, folder, {"/private/comment": b"of a folder, and of the account"})
            told = {one.mailbox_id: (one.head, one.annotated) for one in (await mail.tree_changes(USER)).folders}
            assert {one.mailbox_id: await mail.last_change(one) for one in await mail.folders(USER)} == told


async def test_folders_with_mail_take_a_guid_in_one_step(tmp_path: Path) -> None:
    """Two syncs at two nodes may do so at once, and each may end anywhere: the mail is always where it was."""
    async with one_node(tmp_path) as mail, node_replicas(mail, now_ms)(USER) as replica:
        before = await mail.create_folder(USER, "Work")
        await mail.create_folder(USER, "Work/below")
        await mail.save(before, NewMessage(b"Subject: mine\r\n\r\n"))
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(replica.carry_out, Adopt(("Work",), b"\xff" * 16, 7))
        assert {folder.name for folder in await mail.folders(USER)} == {"INBOX", "Work", "Work/below"}
        assert await mail.folder(USER, "Work") == before
        assert await mail.bodies(USER, "Work") == [b"Subject: mine\r\n\r\n"]
        assert (await replica.tree()).nodes["Work",].mailbox_id == b"\xff" * 16


async def test_a_user_is_in_one_sync_at_a_time(two: Two) -> None:
    answers = list[bytes]()

    async def other() -> None:
        with trio.move_on_after(10):
            await asked()

    async def asked() -> None:
        login = b64encode(f"\0doveadm\0{PASSWORD}".encode())
        async with await trio.open_tcp_stream("127.0.0.1", int(two.master.address.rpartition(":")[2])) as stream:
            await stream.send_all(b"PLAIN\t%s\n\t%s\tdsync-server\n" % (login, USER.encode()))
            answers.append(b"".join([bytes(data) async for data in stream]))

    await two.saves("1")
    two.meanwhile.append(other)
    assert (await two.master.sync()).returncode == 0
    assert answers == [b"-\n+\n\n-TEMPFAIL\n"]
    await two.become_equal("c", 1)


async def test_a_backup_replaces_mail_in_an_inbox_that_was_in_use(two: Two) -> None:
    async def backup() -> None:
        words = ["backup", "-u", USER, two.master.address]
        done = await trio.to_thread.run_sync(lambda: two.server.run(*words))
        assert done.returncode == 0, done

    def guids(shown: list[tuple[int, str, frozenset[str]]]) -> set[tuple[str, frozenset[str]]]:
        return {(guid_of(guid).hex(), flags) for _, guid, flags in shown}

    for number in range(3):
        await two.here.append(b"Subject: here %d\r\n\r\n" % number)
    await two.saves("1", "2")
    await backup()
    first = await two.here.shown()
    assert guids(first) == guids(await two.there.shown())
    await backup()
    assert await two.here.shown() == first, "nothing is brought again"
    await two.here.append(b"Subject: another\r\n\r\n")
    await two.there.flag(1, "kw", is_set=True)
    await two.there.expunge(2)
    await two.saves("3")
    await backup()
    assert guids(await two.here.shown()) == guids(await two.there.shown())


async def test_a_backup_replaces_an_inbox_that_was_renamed_at_the_node(two: Two) -> None:
    """A renamed INBOX takes its id along, and another one is in its place."""
    await two.there.append(b"Subject: one\r\n\r\n")
    await two.become_equal("c")
    await two.mail.rename_folder(USER, "INBOX", "Bar")
    await two.here.append(b"Subject: other\r\n\r\n")
    words = ["backup", "-u", USER, two.master.address]
    for _ in range(2):
        assert (await trio.to_thread.run_sync(lambda: two.server.run(*words))).returncode in {0, 2}
        assert [folder.name for folder in await two.mail.folders(USER)] == ["INBOX"]
    [(_, guid, _)] = await two.there.shown()
    assert [here for _, here, _ in await two.here.shown()] == [guid]
