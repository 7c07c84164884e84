from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from replicator.errors import DiskFullError, UnavailableError
from replicator.http import api
from replicator.http import server as http_server
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode
from tests.cli.sources.mail_files import FROM, make_maildir, put
from tests.one_node import Hook, failing


@pytest.fixture
def maildir(tmp_path: Path) -> Path:
    root = make_maildir(tmp_path / "Maildir")
    make_maildir(root / ".Sent")
    for number in range(20):
        put(root / "cur", f"{number}:2,S", b"Subject: %d\n\nbody\n" % number, mtime_s=1000 + number)
    put(root / ".Sent" / "new", "1", b"sent\n")
    return root


def test_maildir_is_imported_with_folders_flags_and_dates(served: ServedNode, invoke: Invoke, maildir: Path) -> None:
    result = invoke("import", "alice", maildir, "--url", served.url)
    assert (result.exit_code, result.stdout) == (
        0,
        "21 imported, 0 already there, 0 empty and skipped, 0 failed, 0 not tried\n",
    )
    assert result.stderr == ""
    assert served.bodies("alice", "INBOX") == [b"Subject: %d\r\n\r\nbody\r\n" % n for n in range(20)]
    assert served.bodies("alice", "Sent") == [b"sent\r\n"]
    messages = served.messages("alice", "INBOX")
    assert {message.flags for message in messages} == {frozenset({"\\Seen"})}
    assert {message.received_ms for message in messages} == {(1000 + n) * 1000 for n in range(20)}


def test_second_import_continues_where_the_first_ended(
    served: ServedNode, invoke: Invoke, maildir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MESSAGES_PAGE", 7)
    put(maildir / "cur", "20:2,", b"twin\n", mtime_s=3000)
    assert invoke("import", "alice", maildir, "--url", served.url).exit_code == 0
    put(maildir / "cur", "21:2,", b"twin\n", mtime_s=3001)
    put(maildir / "new", "22", b"late\n")
    again = invoke("import", "alice", maildir, "--url", served.url, "--json")
    assert again.exit_code == 0
    result = json.loads(again.stdout)
    assert [folder.pop("name") for folder in result["folders"]] == ["INBOX", "Sent"]
    assert [folder.pop("uids_kept") for folder in result.pop("folders")] == [None, None]
    assert result == {
        "imported": 2,
        "present": 22,
        "empty": 0,
        "reflagged": 0,
        "expunged": 0,
        "stayed": 0,
        "gone": 0,
        "removed": 0,
        "left": 0,
        "failures": [],
        "notes": [],
        "stopped": None,
    }
    assert served.bodies("alice", "INBOX").count(b"twin\r\n") == 2


def test_mbox_is_imported_into_the_named_mailbox(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    file = put(tmp_path, "mbox", b"".join(FROM + b"a: b\n\n%d\n\n" % number for number in range(30)))
    result = invoke("import", "bob", file, "--mailbox", "Old/Übung", "--url", served.url)
    assert result.exit_code == 0
    assert served.bodies("bob", "Old/Übung") == [b"a: b\r\n\r\n%d\r\n" % number for number in range(30)]


def barrier(count: int) -> Hook:
    """Return a hook that holds the first changes back until so many are under way at once."""
    begun, gathered = 0, trio.Event()

    async def wait(_user: str) -> None:
        nonlocal begun
        begun += 1
        if begun == count:
            gathered.set()
        await gathered.wait()

    return wait


def test_subfolders_are_not_put_below_inbox_in_any_case(served: ServedNode, invoke: Invoke, maildir: Path) -> None:
    assert invoke("import", "alice", maildir, "--mailbox", "inbox", "--url", served.url).exit_code == 0
    assert served.bodies("alice", "INBOX")
    assert served.bodies("alice", "Sent")


def test_folders_are_imported_in_parallel(served: ServedNode, invoke: Invoke, maildir: Path) -> None:
    served.mail.before_change = barrier(2)
    assert invoke("import", "alice", maildir, "--url", served.url).exit_code == 0


def test_maildir_is_imported_by_date_then_name(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    for place, name, text, mtime_s in (("cur", "b", b"2", 10), ("new", "a", b"1", 10), ("new", "c", b"0", 9)):
        put(root / place, name, text + b"\n", mtime_s=mtime_s)
    assert invoke("import", "alice", root, "--url", served.url).exit_code == 0
    assert served.bodies("alice", "INBOX") == [b"0\r\n", b"1\r\n", b"2\r\n"]


def test_flags_that_are_none_are_named_and_the_mail_imported(served: ServedNode, invoke: Invoke, maildir: Path) -> None:
    for number in (100, 101):
        put(maildir / "cur", f"{number}:2,Sab", b"text %d\n" % number, mtime_s=5000)
    put(maildir, "dovecot-keywords", b"0 (no)flag\n1 Junk\n")
    gone = maildir / "new" / "gone"
    gone.symlink_to(maildir / "nowhere")
    result = invoke("import", "alice", maildir, "--url", served.url)
    assert result.exit_code == 1
    assert result.stderr == (
        f"INBOX: the flag '(no)flag' is left out: no flag of IMAP\n{gone}: Too many levels of symbolic links\n"
    )
    assert "23 imported, 0 already there, 0 empty and skipped, 1 failed, 0 not tried\n" in result.stdout
    assert [message.flags for message in served.messages("alice", "INBOX")][-2:] == [{"\\Seen", "Junk"}] * 2


def test_too_large_message_is_named_and_the_others_imported(
    served: ServedNode, invoke: Invoke, maildir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "BODY_BYTES_MAX", 1 << 20)
    large = put(maildir / "cur", "0large:2,", b"x" * (8 << 20), mtime_s=1)
    result = invoke("import", "alice", maildir, "--url", served.url)
    assert result.exit_code == 1
    assert result.stderr == f"{large}: {served.url}: the body is larger than 1 MiB, the limit here\n"
    assert "21 imported, 0 already there, 0 empty and skipped, 1 failed, 0 not tried\n" in result.stdout


def test_empty_messages_are_left_out(served: ServedNode, invoke: Invoke, maildir: Path) -> None:
    put(maildir / "new", "empty", b"")
    result = invoke("import", "alice", maildir, "--url", served.url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "21 imported, 0 already there, 1 empty and skipped, 0 failed, 0 not tried\n"


def test_temporary_failure_fails_each_message_with_its_reason(
    served: ServedNode, invoke: Invoke, maildir: Path
) -> None:
    served.mail.before_change = failing(UnavailableError("no master can be reached"))
    result = invoke("import", "alice", maildir, "--url", served.url)
    assert (result.exit_code, result.stdout) == (
        1,
        "0 imported, 0 already there, 0 empty and skipped, 21 failed, 0 not tried\n",
    )
    assert result.stderr.count("no master can be reached\n") == 21


def test_full_disk_ends_the_import(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    served.mail.before_change = failing(DiskFullError("the disk is full"))
    file = put(tmp_path, "mbox", b"".join(FROM + b"a: %d\n\n\n" % number for number in range(100)))
    result = invoke("import", "alice", file, "--url", served.url)
    assert result.exit_code == 1
    assert "Error: stopped: " in result.stderr
    assert " 0 not tried" not in result.stdout


def test_unknown_user_and_unreachable_node_are_reported_at_once(
    served: ServedNode, invoke: Invoke, maildir: Path
) -> None:
    unknown = invoke("import", "eve", maildir, "--url", served.url)
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert unknown.stderr.startswith(f"Error: {served.url}: there is no user 'eve'")
    nobody = invoke("import", "alice", maildir, "--url", "http://127.0.0.1:1")
    assert nobody.exit_code == 1
    assert nobody.stderr == "Error: http://127.0.0.1:1: no answer (Connection refused); is the node running?\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("import", "alice", "/nowhere", "--url", "http://127.0.0.1:1"),
        ("import", "alice", "/dev/null", "--url", "http://127.0.0.1:1"),
        ("import", "alice", "."),
        ("import", "alice", ".", "--url", "http://127.0.0.1:1", "--config", "x.toml"),
        ("import", "alice", ".", "--url", "https://127.0.0.1"),
        ("import", "alice", ".", "--url", "http://127.0.0.1:port"),
        ("import", "alice", ".", "--config", "/nowhere.toml"),
    ],
)
def test_wrong_usage(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2
