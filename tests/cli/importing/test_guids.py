"""Imports of a Dovecot's mail: each mail has the GUID by which syncs with that Dovecot know it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from protocol.values import UidSet
from replicator.http import server as http_server
from replicator.mail.dovecot_guids import COPIES_MAX, guid_of, guid_of_copy
from replicator.mail.mailstore import NewMessage
from tests.cli.conftest import Invoke
from tests.cli.importing.imports import imported, numbered, uids, write_list
from tests.cli.served_node import ServedNode
from tests.cli.sources.mail_files import put

A, B = "a" * 32, "1.M2.host,S=9"


def guids(served: ServedNode) -> dict[int, bytes]:
    return {message.uid: message.guid for message in served.messages("alice", "INBOX")}


def copies_of(text: str, count: int) -> list[bytes]:
    """Return the GUIDs of a mail of Dovecot's and of copies of it."""
    return [guid_of(text), *(guid_of_copy(guid_of(text), number) for number in range(1, count + 1))]


def save(served: ServedNode, message: NewMessage) -> None:
    """Save a mail at the node."""

    async def run() -> None:
        await served.mail.save(await served.mail.folder("alice", "INBOX"), message)

    served.run(run)


def test_mail_has_dovecots_guids_and_copies_have_others(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = numbered(tmp_path / "Maildir", [3, 4, 7, 9], 20)
    write_list(root, [3, 4, 7, 9], 20, {4: A, 7: A, 9: A})
    put(root / "new", "20", b"new\n")
    imported(served, invoke, root)
    first, *copies = copies_of(A, 3)
    assert guids(served) == {3: guid_of("3"), 4: first, 7: copies[0], 9: copies[1], 20: guid_of("20")}
    put(root / "cur", "30:2,", b"another copy\n")
    write_list(root, [3, 4, 7, 9, 20, 30], 31, {4: A, 7: A, 9: A, 30: A})
    assert imported(served, invoke, root)["imported"] == 1
    assert guids(served)[30] == copies[2]


def test_more_copies_than_a_sync_can_tell_apart_are_imported(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    numbers = [*range(1, COPIES_MAX + 4)]
    root = numbered(tmp_path / "Maildir", numbers, 200)
    write_list(root, numbers, 200, dict.fromkeys(numbers, B))
    assert imported(served, invoke, root)["imported"] == len(numbers)
    found = [*guids(served).values()]
    assert found[: COPIES_MAX + 1] == copies_of(B, COPIES_MAX)
    assert len({*found}) == len(numbers)


def test_mail_of_a_folder_with_other_mail_has_guids_of_the_cluster(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    """A sync would take the other mail for expunged, if a mail above it had UID and GUID of one of the Dovecot's."""
    save(served, NewMessage(b"here\r\n", guid=guid_of("3")))
    root = numbered(tmp_path / "Maildir", [2, 3], 4)
    assert imported(served, invoke, root)["imported"] == 2
    assert [*guids(served)] == [1, 2, 3]
    assert not {*guids(served).values()} & {guid_of("2"), *copies_of("3", 1)[1:]}


@pytest.mark.parametrize("below", [b"\x1f\x8b", b"", b"x" * (2 << 20)])
def test_mail_above_one_that_is_not_imported_has_guids_of_the_cluster(
    served: ServedNode, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: bytes
) -> None:
    """A sync would take that one for expunged here, and delete it there."""
    monkeypatch.setattr(http_server, "BODY_BYTES_MAX", 1 << 20)
    root = numbered(tmp_path / "Maildir", [1], 2)
    imported(served, invoke, root)
    for name, text in (("2:2,", below), ("3:2,", b"three\n")):
        put(root / "cur", name, text)
    write_list(root, [1, 2, 3], 4)
    imported(served, invoke, root, code=int(below != b""))
    put(root / "cur", "4:2,S", b"four\n")
    write_list(root, [1, 2, 3, 4], 5)
    imported(served, invoke, root, code=int(below != b""))
    put(root / "cur", "2:2,", b"two\n")
    put(root / "cur", "6:2,S", b"six\n")
    write_list(root, [1, 2, 3, 4, 6], 7)
    imported(served, invoke, root)
    assert [*guids(served)] == [1, 3, 4, 5, 6]
    assert [uid for uid, guid in guids(served).items() if guid == guid_of(str(uid))] == [1]
    put(root / "cur", "8:2,S", b"eight\n")
    write_list(root, [1, 2, 3, 4, 6, 8], 9)
    imported(served, invoke, root)
    assert len(guids(served)) == 6
    assert guid_of("8") not in guids(served).values()


def test_mail_above_one_that_came_by_another_way_has_guids_of_the_cluster(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    root = numbered(tmp_path / "Maildir", [1], 2)
    imported(served, invoke, root)
    save(served, NewMessage(b"here\r\n"))
    put(root / "cur", "3:2,S", b"new\n")
    write_list(root, [1, 3], 4)
    imported(served, invoke, root)
    assert [*guids(served)] == [1, 2, 3]
    assert (guids(served)[1] == guid_of("1"), guids(served)[3] == guid_of("3")) == (True, False)


def test_mail_that_comes_during_an_import_is_not_taken_for_expunged_by_a_sync(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    root = numbered(tmp_path / "Maildir", [*range(1, 65), 70], 80)
    saved = 0

    async def deliver_before_the_last(_: str) -> None:
        nonlocal saved
        saved += 1
        if saved == 2:
            await served.mail.save(await served.mail.folder("alice", "INBOX"), NewMessage(b"here\r\n"))

    served.mail.before_change = deliver_before_the_last
    assert "other mail has come under UID 65 here" in str(imported(served, invoke, root)["notes"])
    assert guids(served)[70] == guid_of("70")

    async def check() -> None:
        inbox = await served.mail.folder("alice", "INBOX")
        assert await served.mail.unfinished_sync(inbox) == 0

    served.run(check)


@pytest.mark.parametrize("remembers", [True, False])
def test_mail_of_an_earlier_import_without_guids_is_not_doubled(
    served: ServedNode, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, remembers: bool
) -> None:
    root = numbered(tmp_path / "Maildir", [3, 4], 5)
    with monkeypatch.context() as earlier:
        earlier.setattr("replicator.cli.sources.maildir.guid_of", lambda _: None)
        imported(served, invoke, root)
    before = guids(served)
    assert not {*before.values()} & {guid_of("3"), guid_of("4")}
    if not remembers:
        shutil.rmtree(tmp_path / "state")
    put(root / "cur", "5:2,", b"new\n")
    write_list(root, [3, 4, 5], 6)
    assert imported(served, invoke, root)["imported"] == 1
    assert guids(served) == {**before, 5: guid_of("5")}


def test_mail_that_has_got_another_uid_is_found_by_its_guid(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    """An import was cut as other mail came: the UID that the mail has here names another mail at the source."""
    root = numbered(tmp_path / "Maildir", [9], 10)
    imported(served, invoke, root)
    save(served, NewMessage(b"Subject: 12\r\n\r\nx\r\n", uid=13, guid=guid_of("12")))
    shutil.rmtree(tmp_path / "state")
    for uid in (12, 13):
        put(root / "cur", f"{uid}:2,S", b"Subject: %d\n\nx\n" % uid)
    write_list(root, [9, 12, 13], 14)
    result = imported(served, invoke, root)
    assert (result["imported"], result["present"]) == (1, 2)
    assert len(guids(served)) == 3


def test_expunged_mail_does_not_come_again(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = numbered(tmp_path / "Maildir", [3, 4], 5)
    write_list(root, [3, 4], 5, {3: A, 4: A})
    imported(served, invoke, root)

    async def expunge() -> None:
        view = await served.mail.open_mailbox(await served.mail.folder("alice", "INBOX"))
        await served.mail.expunge(view, UidSet.of([3]))

    served.run(expunge)
    put(root / "cur", "5:2,", b"another copy\n")
    write_list(root, [3, 4, 5], 6, {3: A, 4: A, 5: A})
    assert imported(served, invoke, root)["imported"] == 1
    assert guids(served) == {4: copies_of(A, 1)[1], 5: guid_of(A)}
    assert uids(served) == [4, 5]
