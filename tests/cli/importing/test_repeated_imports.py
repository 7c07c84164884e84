"""Imports that are repeated: what has changed at the source and here in between, and what went wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.values import UidSet
from replicator.cli.importing.mail_import import MailImport
from replicator.cli.importing.memory import memory_of
from replicator.cli.importing.results import ImportResult, StopSign
from replicator.cli.sources import Listing, SourceError, read_source
from replicator.cli.sources.local import LocalFolder
from replicator.cli.target import one_node
from replicator.mail.mailstore import NewMessage
from tests.cli.conftest import Invoke
from tests.cli.importing.imports import imported, numbered, uids, write_list
from tests.cli.served_node import ServedNode
from tests.cli.sources.mail_files import FROM, put


def run(served: ServedNode, root: Path, stop: StopSign) -> ImportResult:
    """Import for alice, until this stop sign is set."""
    source, node = read_source(root, "INBOX"), one_node(None, served.url)
    with memory_of(root.parent / "state", "alice", "source") as memory:
        work = MailImport(node, "alice", source, memory=memory, stop=stop, at_once=1, expunge=False)
        return work.run(lambda _: None)


def flags(served: ServedNode, uid: int) -> frozenset[str]:
    [found] = [message.flags for message in served.messages("alice", "INBOX") if message.uid == uid]
    return found


def rename(served: ServedNode, old: str, new: str) -> None:
    served.run(lambda: served.mail.rename_folder("alice", old, new))


def deliver(served: ServedNode, text: bytes) -> None:
    async def run() -> None:
        await served.mail.deliver("alice", NewMessage(text))

    served.run(run)


def expunge(served: ServedNode, *uids: int) -> None:
    async def run() -> None:
        view = await served.mail.open_mailbox(await served.mail.folder("alice", "INBOX"))
        await served.mail.expunge(view, UidSet.of(uids))

    served.run(run)


def flag(root: Path, uid: int) -> None:
    """Flag a mail at the source."""
    (root / "cur" / f"{uid}:2,S").rename(root / "cur" / f"{uid}:2,SF")


def test_flags_of_an_import_that_was_stopped_come_with_the_next_one(
    served: ServedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = numbered(tmp_path / "Maildir", [1, 2], 9)
    run(served, root, StopSign())
    flag(root, 1)
    stop = StopSign()
    listing = LocalFolder.listing

    def listing_while_another_folder_fails(self: LocalFolder, *arguments: object) -> Listing:
        stop.set("interrupted")
        return listing(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as stopped:
        stopped.setattr(LocalFolder, "listing", listing_while_another_folder_fails)
        assert run(served, root, stop).stopped == "interrupted"
    assert flags(served, 1) == {"\\Seen"}
    assert run(served, root, StopSign()).total("reflagged") == 1
    assert flags(served, 1) == {"\\Seen", "\\Flagged"}


def test_mail_that_is_gone_at_the_source_is_expunged_only_if_that_is_asked_for(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    root = numbered(tmp_path / "Maildir", [1, 2, 3], 4)
    imported(served, invoke, root)
    (root / "cur" / "2:2,S").unlink()
    for _ in range(2):
        result = imported(served, invoke, root)
        assert (result["gone"], result["expunged"], uids(served)) == (1, 0, [1, 2, 3])
    told = invoke("import", "alice", root, "--url", served.url)
    assert "1 gone at the source stay here; --expunge would expunge them\n" in told.stdout
    result = imported(served, invoke, root, "--expunge")
    assert (result["gone"], result["expunged"], uids(served)) == (0, 1, [1, 3])
    assert imported(served, invoke, root, "--expunge")["expunged"] == 0


def test_mail_that_a_wrong_look_has_expunged_comes_again(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = numbered(tmp_path / "Maildir", [1, 2, 3], 4)
    imported(served, invoke, root)
    hidden = (root / "cur" / "2:2,S").rename(tmp_path / "hidden")
    imported(served, invoke, root, "--expunge")
    assert uids(served) == [1, 3]
    hidden.rename(root / "cur" / "2:2,S")
    result = imported(served, invoke, root, "--expunge")
    assert (result["imported"], uids(served)) == (1, [1, 3, 4])
    assert imported(served, invoke, root, "--expunge")["imported"] == 0


@pytest.mark.parametrize("left", [[], [1], [5], [5, 6]])
def test_source_that_has_lost_most_of_its_mail_expunges_nothing(
    served: ServedNode, invoke: Invoke, tmp_path: Path, left: list[int]
) -> None:
    root = numbered(tmp_path / "Maildir", [1, 2, 3], 4)
    imported(served, invoke, root)
    for file in (root / "cur").iterdir():
        file.unlink()
    for uid in left:
        put(root / "cur", f"{uid}:2,S", b"Subject: %d\n\nx\n" % uid)
    write_list(root, left, 9)
    for _ in range(2):
        result = imported(served, invoke, root, "--expunge", code=1)
        assert result["expunged"] == 0
        [failure] = result["failures"]
        assert "nothing is expunged: " in failure["reason"]
    assert uids(served) == sorted({1, 2, 3, *left})


def test_mail_that_was_moved_away_and_back_keeps_the_uids(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = numbered(tmp_path / "Maildir", [1, 2, 3], 4)
    imported(served, invoke, root)
    (root / "cur" / "2:2,S").rename(root / "cur" / "5:2,S")
    write_list(root, [1, 3, 5], 6)
    flag(root, 3)
    result = imported(served, invoke, root)
    assert (result["imported"], result["reflagged"], result["gone"]) == (1, 1, 1)
    assert (result["folders"][0]["uids_kept"], result["notes"]) == (True, [])
    assert uids(served) == [1, 2, 3, 5]


def test_flags_are_taken_over_where_uids_were_given_up(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = numbered(tmp_path / "Maildir", [1, 2], 3)
    imported(served, invoke, root)
    deliver(served, b"by another way")
    put(root / "cur", "3:2,S", b"the source's\n")
    write_list(root, [1, 2, 3], 4)
    assert not imported(served, invoke, root)["folders"][0]["uids_kept"]
    flag(root, 1)
    flag(root, 3)
    result = imported(served, invoke, root)
    assert (result["reflagged"], result["imported"], result["notes"]) == (1, 0, [])
    assert flags(served, 1) == {"\\Seen", "\\Flagged"}
    assert flags(served, 3) == frozenset()  # another mail


def test_mail_that_comes_by_another_way_during_the_first_import_is_seen(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    root = numbered(tmp_path / "Maildir", [*range(1, 65), *range(70, 100)], 200)
    batches = 0

    async def deliver_between(user: str) -> None:
        nonlocal batches
        batches += 1
        if batches == 2:
            await served.mail.deliver(user, NewMessage(b"by another way"))

    served.mail.before_change = deliver_between
    result = imported(served, invoke, root)
    assert uids(served) == [*range(1, 66), *range(70, 100)]
    assert not result["folders"][0]["uids_kept"]
    assert "other mail has come under UID 65 here" in result["notes"][0]


def subfolder(tmp_path: Path) -> Path:
    root = numbered(tmp_path / "Maildir", [1], 2)
    numbered(root / ".Sub", [1, 2], 3)
    lines = (root / ".Sub" / "dovecot-uidlist").read_text()
    put(root / ".Sub", "dovecot-uidlist", lines.replace("V1600000001", "V1600000002").encode())
    return root


def test_folder_that_was_renamed_here_goes_on_there(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = subfolder(tmp_path)
    imported(served, invoke, root)
    rename(served, "Sub", "Renamed")
    flag(root / ".Sub", 2)
    put(root / ".Sub" / "new", "late", b"late\n")
    result = imported(served, invoke, root)
    assert (result["imported"], result["reflagged"]) == (1, 1)
    assert result["notes"] == ["Sub: is 'Renamed' here since an earlier import, and goes on there"]
    assert len(served.messages("alice", "Renamed")) == 3


def test_folder_that_was_deleted_here_does_not_come_again(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = subfolder(tmp_path)
    imported(served, invoke, root)
    served.run(lambda: served.mail.delete_folder("alice", "Sub"))
    result = imported(served, invoke, root)
    assert (result["imported"], result["removed"]) == (0, 2)
    assert result["notes"] == ["Sub: was deleted here since an earlier import, so its mail does not come again"]
    told = invoke("import", "alice", root, "--url", served.url)
    assert "2 in folders that were deleted here do not come again\n" in told.stdout


def test_memory_of_another_cluster_does_not_count(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = subfolder(tmp_path)
    imported(served, invoke, root)
    [file] = (tmp_path / "state" / "replicator" / "imports").glob("*.json")
    document = json.loads(file.read_text())
    document["inbox_id"] = "0" * 32
    for folder in document["folders"].values():
        folder["mailbox_id"] = "1" * 32
    file.write_text(json.dumps(document))
    result = imported(served, invoke, root)
    assert (result["present"], result["removed"]) == (3, 0)
    assert result["notes"] == ["earlier imports were into another cluster, so all mail is compared anew"]


def test_flags_that_a_folder_cannot_have_are_told_and_others_are_taken_over(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    def mails(first: str, second: str) -> bytes:
        fields = f"X-IMAPbase: 5 9\nX-UID: 1\nX-Keywords: {first}\n", f"X-UID: 2\nX-Keywords: {second}\n"
        return b"".join(FROM + field.encode() + b"Subject: x\n\nx\n\n" for field in fields)

    imported(served, invoke, put(tmp_path, "mbox", mails("", "")))
    many = " ".join(f"word{number}" for number in range(300))
    result = imported(served, invoke, put(tmp_path, "mbox", mails(many, "other")), code=1)
    assert result["reflagged"] == 1
    [failure] = result["failures"]
    assert failure["reason"].startswith("a mailbox may have 100 keywords")
    result = imported(served, invoke, put(tmp_path, "mbox", mails(many, "word1")))
    assert result["reflagged"] == 1


def test_flags_of_mail_that_gets_its_uid_after_an_import_are_taken_over(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    root = numbered(tmp_path / "Maildir", [1], 2)
    put(root / "new", "2", b"new\n", mtime_s=2000)
    put(root / "new", "3", b"newer\n", mtime_s=2001)
    imported(served, invoke, root)
    put(root / "cur", "4:2,", b"late\n")
    result = imported(served, invoke, root)
    assert (result["imported"], result["present"]) == (1, 3)
    expunge(served, 3)
    (root / "new" / "2").rename(root / "cur" / "2:2,F")
    (root / "new" / "3").rename(root / "cur" / "3:2,")
    write_list(root, [1, 2, 3, 4], 5)
    result = imported(served, invoke, root)
    assert (result["imported"], result["reflagged"], result["folders"][0]["uids_kept"]) == (0, 1, True)
    assert flags(served, 2) == {"\\Flagged"}
    assert uids(served) == [1, 2, 4]


def test_mail_that_the_source_numbers_otherwise_than_it_was_here_costs_the_uids(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    root = numbered(tmp_path / "Maildir", [1], 2)
    for name, second in (("a", 2000), ("b", 2001)):
        put(root / "new", name, b"mail %s\n" % name.encode(), mtime_s=second)
    imported(served, invoke, root)
    for name in "ab":
        (root / "new" / name).rename(root / "cur" / f"{name}:2,F")
    put(root, "dovecot-uidlist", b"3 V1600000001 N4 Gx\n1 :1\n2 :b\n3 :a\n")
    result = imported(served, invoke, root)
    assert (result["imported"], result["reflagged"], result["folders"][0]["uids_kept"]) == (0, 0, False)
    assert [len(flags(served, uid)) for uid in (2, 3)] == [0, 0]


def test_uids_of_another_uidvalidity_here_name_nothing_any_more(
    served: ServedNode, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = numbered(tmp_path / "Maildir", [1, 2], 3)
    imported(served, invoke, root)
    [file] = (tmp_path / "state" / "replicator" / "imports").glob("*.json")
    document = json.loads(file.read_text())
    document["folders"]["INBOX"]["uidvalidity_here"] = 7  # a merge has renumbered the folder since
    file.write_text(json.dumps(document))
    flag(root, 1)

    def fail(*_: object) -> Listing:
        raise SourceError("the disk is gone")

    with monkeypatch.context() as failing:
        failing.setattr(LocalFolder, "listing", fail)
        imported(served, invoke, root, code=1)
    result = imported(served, invoke, root, "--expunge")
    assert (result["reflagged"], result["stayed"], result["expunged"]) == (0, 0, 0)
    assert flags(served, 1) == {"\\Seen"}
