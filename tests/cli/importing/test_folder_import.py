"""Imports of folders with UIDs into a node: what is kept, what happens after failures, and what is remembered."""

from __future__ import annotations

import fcntl
import json
import shutil
import struct
from pathlib import Path

import pytest

from protocol.values import UidSet
from replicator.errors import UnavailableError
from replicator.http import server as http_server
from replicator.mail.mailstore import NewMessage
from tests.cli.conftest import Invoke
from tests.cli.importing.imports import imported, numbered, uids, write_list
from tests.cli.served_node import ServedNode
from tests.cli.sources.mail_files import FROM, make_maildir, put
from tests.one_node import failing, nothing


def test_uids_stay_and_mail_without_one_comes_after_all(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = numbered(tmp_path / "Maildir", [3, 4, 90], 200)
    put(root / "new", "new", b"new\n")
    result = imported(served, invoke, root)
    assert (uids(served), result["folders"][0]["uids_kept"]) == ([3, 4, 90, 200], True)
    assert imported(served, invoke, root)["present"] == 4


def test_mail_that_dovecot_has_seen_meanwhile_is_not_imported_again(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    root = numbered(tmp_path / "Maildir", [3], 5)
    put(root / "new", "5", b"new\n")
    imported(served, invoke, root)
    put(root / "cur", "6:2,", b"newer\n")
    write_list(root, [3, 5, 6], 7)
    result = imported(served, invoke, root)
    assert (uids(served), result["imported"], result["present"]) == ([3, 5, 6], 1, 2)
    assert result["folders"][0]["uids_kept"]


def test_mail_after_a_failure_waits_so_that_it_keeps_its_uid(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    root = numbered(tmp_path / "Maildir", [*range(1, 200)], 300)
    saved = 0

    async def fail_later(user: str) -> None:
        nonlocal saved
        saved += 1
        if saved == 2:
            await failing(UnavailableError("no master can be reached"))(user)

    served.mail.before_change = fail_later
    result = imported(served, invoke, root, code=1)
    assert (result["imported"], len(result["failures"]), result["left"]) == (64, 64, 71)
    served.mail.before_change = nothing
    result = imported(served, invoke, root)
    assert (result["imported"], result["present"], result["folders"][0]["uids_kept"]) == (135, 64, True)
    assert uids(served) == [*range(1, 200)]


def test_message_that_fails_alone_is_tried_again_under_another_uid(
    served: ServedNode, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = numbered(tmp_path / "Maildir", [1, 2, 3], 10)
    put(root / "cur", "2:2,S", b"x" * (2 << 20))
    with monkeypatch.context() as limited:
        limited.setattr(http_server, "BODY_BYTES_MAX", 1 << 20)
        assert imported(served, invoke, root, code=1)["imported"] == 2
    result = imported(served, invoke, root)
    assert (uids(served), result["folders"][0]["uids_kept"]) == ([1, 3, 10], False)
    assert result["notes"] == []  # the UIDVALIDITY stays: no UID names two mails


def test_expunged_mail_is_not_imported_again(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = numbered(tmp_path / "Maildir", [1, 2, 3], 4)
    imported(served, invoke, root)

    async def expunge() -> None:
        view = await served.mail.open_mailbox(await served.mail.folder("alice", "INBOX"))
        await served.mail.expunge(view, UidSet.of([2]))

    served.run(expunge)
    put(root / "cur", "1:2,SF", b"Subject: 1\n\nx\n")
    (root / "cur" / "1:2,S").unlink()
    result = imported(served, invoke, root)
    assert (result["imported"], result["reflagged"], uids(served)) == (0, 1, [1, 3])


def test_source_that_is_empty_now_empties_nothing(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = numbered(tmp_path / "Maildir", [1, 2, 3], 4)
    imported(served, invoke, root)
    for file in (root / "cur").iterdir():
        file.unlink()
    result = imported(served, invoke, root)
    assert (result["expunged"], result["gone"], uids(served)) == (0, 3, [1, 2, 3])


def test_memory_that_is_broken_is_put_aside_and_told(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = numbered(tmp_path / "Maildir", [1, 2, 3], 4)
    imported(served, invoke, root)
    [file] = (tmp_path / "state" / "replicator" / "imports").glob("*.json")
    broken = (b"", b"{}", b"[]", b'{"folders": {"INBOX": 5}, "subscriptions": []}', b"\xff", b"[" * 100_000)
    for content in broken:
        file.write_bytes(content)
        result = imported(served, invoke, root)
        assert (result["present"], result["folders"][0]["uids_kept"]) == (3, True)
        assert file.with_suffix(".broken").read_bytes() == content
        assert f"{file.with_suffix('.broken')}: makes no sense" in result["notes"][0]
    file.unlink()
    result = imported(served, invoke, root)
    assert (result["present"], result["notes"]) == (3, [])
    assert uids(served) == [1, 2, 3]


def test_second_import_at_the_same_time_is_refused(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = numbered(tmp_path / "Maildir", [1, 2, 3], 4)
    imported(served, invoke, root)
    [lock] = (tmp_path / "state" / "replicator" / "imports").glob("*.lock")
    users = put(tmp_path, "users", f"alice {root}\nbob {root}\n".encode())
    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        result = invoke("import", "alice", root, "--url", served.url)
        assert (result.exit_code, "another import of this source is running" in result.stderr) == (1, True)
        told = json.loads(invoke("import", "--users", users, "--url", served.url, "--json").stdout)
        assert [bool(one["stopped"]) for one in told] == [True, False]
    assert imported(served, invoke, root)["present"] == 3


def test_source_without_a_modseq_leaves_clients_of_the_old_server_none_above(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    imported(served, invoke, numbered(tmp_path / "Maildir", [1], 2))

    async def check() -> None:
        status = await served.mail.status(await served.mail.folder("alice", "INBOX"))
        assert status.highestmodseq >= 2**32

    served.run(check)


def test_mbox_of_an_earlier_version_is_not_imported_again(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    text = b"Subject: x\nStatus: RO\nX-UID: 7\n\nbody\n"

    async def save_as_before() -> None:
        inbox = await served.mail.folder("alice", "INBOX")
        await served.mail.save(inbox, NewMessage(text.replace(b"\n", b"\r\n")))

    served.run(save_as_before)
    result = imported(served, invoke, put(tmp_path, "mbox", FROM + text + b"\n"))
    assert (result["imported"], result["present"]) == (0, 1)


def test_subscriptions_are_taken_once(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = numbered(tmp_path / "Maildir", [], 1)
    make_maildir(root / ".Sent")
    put(root, "subscriptions", b"V\t2\n\nSent\nGone\nbad\x01\x01name\n")
    result = imported(served, invoke, root)
    assert [folder["name"] for folder in result["folders"]] == ["INBOX", "Sent"]
    listed = json.loads(invoke("mailbox", "list", "alice", "--json", "--url", served.url).stdout)
    assert [one["name"] for one in listed["folders"] if one["subscribed"]] == ["Sent"]
    assert listed["stray_subscriptions"] == ["Gone", "bad_name"]
    assert invoke("mailbox", "unsubscribe", "alice", "Gone", "--url", served.url).exit_code == 0
    imported(served, invoke, root)
    listed = json.loads(invoke("mailbox", "list", "alice", "--json", "--url", served.url).stdout)
    assert listed["stray_subscriptions"] == ["bad_name"]


def test_mail_comes_without_its_keywords_where_the_folder_has_too_many(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    fields = [f"X-Keywords: {' '.join(f'word{at}' for at in range(start, start + 60))}" for start in (0, 60, 30)]
    mails = [FROM + f"{field}\nStatus: R\n\n{at}\n\n".encode() for at, field in enumerate(fields)]
    imported(served, invoke, put(tmp_path, "mbox", mails[0]))
    result = imported(served, invoke, put(tmp_path, "mbox", b"".join(mails)))
    assert (result["imported"], result["left"], result["failures"]) == (2, 0, [])
    [note] = result["notes"]
    assert "mbox, message 2: imported without its keywords: a mailbox may have 100 keywords" in note
    assert [len(message.flags) for message in served.messages("alice", "INBOX")] == [61, 1, 61]


def test_folder_keeps_uids_without_a_modseq_that_is_too_high(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    root = numbered(tmp_path / "Maildir", [5, 6], 9)
    put(root, "dovecot.index.log", struct.pack("<BBHIIIIIQ", 1, 3, 40, 7, 1, 0, 0, 0, 2**61))
    result = imported(served, invoke, root)
    assert (result["imported"], result["folders"][0]["uids_kept"]) == (2, True)
    assert "INBOX: HIGHESTMODSEQ is not kept: " in result["notes"][0]
    assert uids(served) == [5, 6]


@pytest.mark.parametrize(("uidnext", "is_kept"), [(6, False), (3, True)])
def test_uid_of_mail_that_the_source_has_expunged_may_name_no_other(
    served: ServedNode, invoke: Invoke, tmp_path: Path, uidnext: int, *, is_kept: bool
) -> None:
    root = numbered(tmp_path / "Maildir", [1, 2], 3)
    imported(served, invoke, root)

    async def deliver() -> None:
        await served.mail.deliver("alice", NewMessage(b"by another way"))

    served.run(deliver)
    assert uids(served) == [1, 2, 3]
    (root / "cur" / "1:2,S").rename(root / "cur" / "1:2,SF")
    write_list(root, [1, 2], uidnext)  # 6: mail came and went there
    result = imported(served, invoke, root)
    assert result["folders"][0]["uids_kept"] == is_kept
    assert bool(result["notes"]) == (not is_kept)
    assert uids(served) == [1, 2, 3]


def test_uids_at_the_end_of_all_are_not_kept(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    forged = FROM + b"X-IMAPbase: 5 4294967290\nX-UID: 3\n\none\n\n" + FROM + b"X-UID: 4294967280\n\ntwo\n\n"
    result = imported(served, invoke, put(tmp_path, "mbox", forged + FROM + b"a: b\n\nthree\n\n"))
    assert (result["imported"], result["failures"], result["folders"][0]["uids_kept"]) == (3, [], False)
    assert max(uids(served)) < 2**31
    forged = FROM + b"X-IMAPbase: 5 4294967290\nX-UID: 3\n\none\n\n" + FROM + b"a: b\n\nthree\n\n"
    again = invoke("import", "bob", put(tmp_path, "mbox2", forged), "--url", served.url, "--json")
    told = json.loads(again.stdout)
    assert (again.exit_code, told["imported"], told["folders"][0]["uids_kept"]) == (0, 2, False)
    assert "mail programs load it anew" in told["notes"][1]


def test_twins_of_which_one_is_expunged_here_keep_their_uids_without_a_memory(
    served: ServedNode, invoke: Invoke, tmp_path: Path
) -> None:
    root = numbered(tmp_path / "Maildir", [5, 9], 10)
    for uid in (5, 9):
        put(root / "cur", f"{uid}:2,S", b"twin\n")
    imported(served, invoke, root)

    async def expunge() -> None:
        view = await served.mail.open_mailbox(await served.mail.folder("alice", "INBOX"))
        await served.mail.expunge(view, UidSet.of([5]))

    served.run(expunge)
    shutil.rmtree(tmp_path / "state")
    result = imported(served, invoke, root)
    assert (result["imported"], result["notes"], uids(served)) == (1, [], [9, 10])


def test_flag_that_is_none_is_told_once(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = numbered(tmp_path / "Maildir", [1], 2)
    put(root, "dovecot-keywords", b"0 (no)flag\n")
    (root / "cur" / "1:2,S").rename(root / "cur" / "1:2,Sa")
    result = imported(served, invoke, root)
    assert (result["failures"], result["notes"]) == ([], ["INBOX: the flag '(no)flag' is left out: no flag of IMAP"])
    assert imported(served, invoke, root)["notes"] == []
