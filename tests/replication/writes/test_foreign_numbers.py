"""Mailboxes with the numbers of another server, as clients and imports meet them at a node."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from protocol.values import UidSet
from replicator.errors import FolderExistsError, FolderNotFoundError, InvalidNameError, UnavailableError
from replicator.mail.mailstore import CoreMailStore, Folder, NewMessage
from replicator.replication.writes.uid_retry import Added
from replicator.store.log.sequencing.sequencer import NewMail
from resync.node_annotations import KEPT_UIDVALIDITY
from tests.imap.client import connected, services
from tests.one_node import HookedMail, one_node

LOW, HIGH = 12345, 4_000_000_000
"""UIDVALIDITYs of other servers: below and above those that folders get here."""


@pytest.fixture
async def mail(tmp_path: Path) -> AsyncIterator[HookedMail]:
    async with one_node(tmp_path) as mail:
        yield mail


async def kept(mail: CoreMailStore, uidvalidity: int = LOW) -> Folder:
    return await mail.keep_uidvalidity(await mail.create_folder("alice", "Work"), uidvalidity)


@pytest.mark.parametrize("uidvalidity", [LOW, HIGH])
async def test_folder_with_a_foreign_uidvalidity_is_used_and_deleted_like_any(
    mail: HookedMail, uidvalidity: int
) -> None:
    folder = await kept(mail, uidvalidity)
    await mail.save_all(folder, [NewMessage(b"one", uid=7), NewMessage(b"two", uid=9), NewMessage(b"three", uid=12)])
    view = await mail.open_mailbox(folder)
    assert (view.uidvalidity, [*view.messages]) == (uidvalidity, [7, 9, 12])
    await mail.store_flags(view, UidSet.of([7]), added=frozenset({"\\Seen"}))
    assert view.messages[7].flags == {"\\Seen"}
    copied = await mail.copy(view, UidSet.of([9]), folder)
    assert (copied.uidvalidity, copied.uids) == (uidvalidity, ((9, 13),))
    await mail.move(view, UidSet.of([9]), await mail.folder("alice", "INBOX"))
    await mail.expunge(view, UidSet.of([12]))
    assert [*view.messages] == [7, 13]
    await mail.delete_folder("alice", "Work")
    with pytest.raises(FolderNotFoundError):
        await mail.folder("alice", "Work")


async def test_clients_see_the_foreign_uidvalidity_everywhere(mail: HookedMail) -> None:
    await mail.save(await kept(mail), NewMessage(b"x", uid=7))
    async with connected(services(mail)) as client:
        await client.log_in("alice")
        told = await client.run("STATUS Work (UIDVALIDITY UIDNEXT)")
        told += await client.run("SELECT Work")
        told += await client.run("APPEND Work {1+}\r\ny")
        assert any(line.startswith("* STATUS") and f"UIDVALIDITY {LOW}" in line for line in told)
        assert any(f"[UIDVALIDITY {LOW}]" in line for line in told)
        assert any(f"[APPENDUID {LOW} 8]" in line for line in told)
        assert any(line.split()[1] == "OK" for line in await client.run("DELETE Work"))
        assert not any("Work" in line for line in await client.run('LIST "" *') if line.startswith("*"))


async def test_watchers_hear_of_it_and_not_of_its_annotations(mail: HookedMail) -> None:
    folder = await mail.create_folder("alice", "Work")
    watched = await mail.watch_folders("alice")
    async with connected(services(mail)) as client:
        await client.log_in("alice")
        events = "MessageNew MessageExpunge MailboxName MailboxMetadataChange ServerMetadataChange"
        await client.run(f"NOTIFY SET (personal ({events}))")
        await mail.keep_uidvalidity(folder, LOW)
        told = await client.run("NOOP")
        assert not any("METADATA" in line for line in told)
        assert not any(
            "mail-replicator" in line for line in await client.run("GETMETADATA (DEPTH infinity) Work (/private)")
        )
        refused = await client.run(f'SETMETADATA Work ({KEPT_UIDVALIDITY} "5")')
        assert refused[-1].split()[1] == "NO"
    await watched.take()
    assert (await mail.watch_folders("alice")).tree.folders["Work"].uidvalidity == LOW
    watched.close()


@pytest.mark.parametrize("highest", ["raised first", "not raised"])
async def test_client_of_the_other_server_hears_of_what_it_has_missed(mail: HookedMail, highest: str) -> None:
    """It has seen all up to MODSEQ 500 there; then UID 5 became seen, at 700, and the mailbox came here."""
    folder = await kept(mail)
    if highest == "raised first":
        await mail.raise_numbers(folder, 1, 900)
    flags = {5: frozenset({"\\Seen"})}
    await mail.save_all(folder, [NewMessage(b"%d" % uid, flags.get(uid, frozenset()), uid=uid) for uid in (3, 5, 9)])
    await mail.raise_numbers(folder, 20, 0)
    async with connected(services(mail)) as client:
        await client.log_in("alice")
        await client.run("ENABLE QRESYNC")
        told = await client.run(f"SELECT Work (QRESYNC ({LOW} 500 1:19))")
    assert any("UID 5" in line and "\\Seen" in line for line in told)
    assert any("[UIDNEXT 20]" in line for line in told)


async def test_repeated_import_gives_each_message_its_uid_once(
    mail: HookedMail, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = await kept(mail)
    messages = [NewMessage(b"%d" % uid, uid=uid) for uid in range(1, 101)]
    save, calls = HookedMail._save, list[int]()

    async def fails_once(self: HookedMail, to: Folder, mails: Sequence[NewMail]) -> tuple[Folder, Added]:
        calls.append(len(mails))
        if len(calls) == 2:
            raise UnavailableError("the link broke")
        return await save(self, to, mails)

    monkeypatch.setattr(HookedMail, "_save", fails_once)
    with pytest.raises(UnavailableError):
        await mail.save_all(folder, messages)
    for _ in range(2):
        assert [one.uid for one in await mail.save_all(folder, messages)] == [*range(1, 101)]
    assert len((await mail.open_mailbox(folder)).messages) == 100


async def test_messages_get_other_uids(mail: HookedMail) -> None:
    folder = await kept(mail)
    await mail.save_all(folder, [NewMessage(b"%d" % uid, uid=uid) for uid in (1, 2, 3)])
    view = await mail.open_mailbox(folder)
    guids = {uid: view.messages[uid].guid for uid in (1, 3)}
    await mail.renumber(view, {1: 7, 3: 9, 5: 11})
    assert {uid: message.guid for uid, message in view.messages.items() if uid > 2} == {7: guids[1], 9: guids[3]}
    assert await mail.bodies("alice", "Work") == [b"2", b"1", b"3"]


async def test_wrong_numbers_are_refused(mail: HookedMail) -> None:
    folder = await kept(mail)
    other = await mail.create_folder("alice", "Other")
    with pytest.raises(FolderExistsError):
        await mail.keep_uidvalidity(other, LOW)
    with pytest.raises(InvalidNameError):
        await mail.annotate("alice", other, {KEPT_UIDVALIDITY: b"5"})
    assert (await mail.keep_uidvalidity(folder, None)).uidvalidity not in {LOW, HIGH}


@pytest.mark.parametrize(("value", "common_uid"), [(b"7", 7), (b"x", 0), (b"9" * 5_000, 0)])
async def test_a_note_of_an_unfinished_sync_that_is_garbled_counts_as_the_lowest(
    mail: HookedMail, value: bytes, common_uid: int
) -> None:
    """A faulty node may bring any value, and numbers of thousands of digits are no integers to Python."""
    folder = await mail.folder("alice", "INBOX")
    await mail.note_unfinished_sync(folder, "dovecot", 9)
    await mail.store.write(lambda tx: tx.connection.execute("UPDATE annotation SET value = ?", (value,)).rowcount)
    assert await mail.unfinished_sync(folder) == common_uid
