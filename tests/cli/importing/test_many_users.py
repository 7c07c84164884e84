"""Imports for lists of users: the list, the table, and what one user's trouble means for others."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from replicator.cli.importing.many_users import ManyImports, UserListError, Wanted, read_user_list
from replicator.cli.importing.results import ImportResult, StopSign
from replicator.errors import DiskFullError
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode
from tests.cli.sources.mail_files import FROM, make_maildir, put
from tests.one_node import failing


def test_list_has_users_and_places(tmp_path: Path) -> None:
    content = b"alice /mail/alice\n\n# bob /mail/bob\nbob\t \timaps://bob:s%20x@host\ncarol /mail/a name with spaces \n"
    assert read_user_list(put(tmp_path, "users", content)) == [
        Wanted("alice", "/mail/alice"),
        Wanted("bob", "imaps://bob:s%20x@host"),
        Wanted("carol", "/mail/a name with spaces"),
    ]


WRONG_URLS = [
    b"imaps://bob@old..example.org",
    b"imap://b\xffb@127.0.0.1",
    b"imaps://carol:se/cret#pw@old.example.org",
    b"imaps://carol:12/secret@old.example.org",
    "imaps://carol:secret℀@old.example.org".encode(),
    b"imaps://carol:secret%FF@old.example.org",
    b"imaps://carol:secret?@old.example.org",
]


@pytest.mark.parametrize(
    "line",
    [
        b"alice",
        b"alice ",
        b"bob /mail/bob",
        b"x" * 6000,
        b"b\xffb /mail/bob",
        b"alice /mail/\0",
        *(b"alice " + url for url in WRONG_URLS),
    ],
)
def test_wrong_line_is_named(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(UserListError, match="line 2") as refused:
        read_user_list(put(tmp_path, "users", b"bob /mail/bob\n" + line + b"\n"))
    assert not {"se", "cret", "secret", "pw", "12"} & {*str(refused.value).replace("'", " ").split()}
    assert "secret" not in str(refused.value)


def test_wrong_line_ends_the_command_before_anything_begins(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    mbox = put(tmp_path, "mbox", FROM + b"a: b\n\ntwo\n\n")
    lines = f"alice {mbox}\nbob ".encode() + WRONG_URLS[0] + b"\n"
    result = invoke("import", "--users", put(tmp_path, "users", lines), "--url", served.url)
    assert (result.exit_code, "users, line 2: not of the form" in result.output) == (2, True)
    assert served.bodies("alice", "INBOX") == []


def test_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    assert read_user_list(put(tmp_path, "users", b"\xef\xbb\xbfalice /mail/alice\n"))[0].user == "alice"


def test_names_of_files_that_are_no_utf8_are_escaped(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    maildir = make_maildir(tmp_path / "Maildir")
    (maildir / "cur" / "\udcff:2,").write_bytes(b"\x1f\x8bx")
    lines = f"alice {maildir}\nbob {tmp_path}/\udcfe\n".encode("utf-8", "surrogateescape")
    result = invoke("import", "--users", put(tmp_path, "users", lines), "--url", served.url, "--json")
    alice, bob = json.loads(result.stdout_bytes.decode())
    assert alice["failures"][0]["message"].endswith("\udcff:2,")
    assert bob["source"].endswith("\udcfe")


def users_file(tmp_path: Path) -> Path:
    """Write a list of users with a mail each, but the last, who has none of the kind that is known."""
    maildir = make_maildir(tmp_path / "Maildir")
    put(maildir / "cur", "1:2,S", b"one\n")
    mbox = put(tmp_path, "mbox", FROM + b"a: b\n\ntwo\n\n")
    lines = f"alice {maildir}\nbob {mbox}\nalice {mbox}\nbob {tmp_path}/none\neve {mbox}\n"
    return put(tmp_path, "users", lines.encode())


def test_table_ends_with_what_was_not_taken(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("import", "--users", users_file(tmp_path), "--url", served.url)
    assert result.exit_code == 1
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith(" ")][2:]
    assert [row[:2] for row in rows if row[0] in {"alice", "bob", "eve"}] == [
        ["alice", "1"],
        ["bob", "1"],
        ["alice", "1"],
        ["bob", "0"],
        ["eve", "0"],
    ]
    assert "No such file or directory" in " ".join(result.stdout.split())
    assert result.stdout.endswith("3 of 5 users complete\n")
    assert len(served.bodies("alice", "INBOX")) == 2


def test_full_disk_fails_each_user_by_name(served: ServedNode, invoke: Invoke, tmp_path: Path) -> None:
    served.mail.before_change = failing(DiskFullError("the disk is full"))
    result = invoke("import", "--users", users_file(tmp_path), "--url", served.url, "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert [(one["user"], one["imported"], bool(one["stopped"])) for one in told] == [
        ("alice", 0, True),
        ("bob", 0, True),
        ("alice", 0, True),
        ("bob", 0, True),
        ("eve", 0, True),
    ]


def test_node_that_does_not_answer_ends_everything(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("import", "--users", users_file(tmp_path), "--url", "http://127.0.0.1:1", "--json")
    assert result.exit_code == 1
    assert all(one["stopped"] for one in json.loads(result.stdout))


def test_several_users_are_imported_at_once_and_one_user_never_twice() -> None:
    meeting = threading.Barrier(2, timeout=30)
    running: set[str] = set()

    def run_one(one: Wanted) -> ImportResult:
        assert one.user not in running
        running.add(one.user)
        meeting.wait()
        running.remove(one.user)
        return ImportResult(notes=[one.place])

    wanted = [Wanted(user, place) for place in ("first", "second") for user in ("alice", "bob")]
    results = ManyImports(run_one, StopSign(), 4).run(wanted, lambda: None)
    assert [result.notes for result in results] == [["first"], ["first"], ["second"], ["second"]]


def test_nothing_is_begun_after_the_end_is_told() -> None:
    stop = StopSign()

    def run_one(_: Wanted) -> ImportResult:
        stop.set("interrupted")
        return ImportResult()

    results = ManyImports(run_one, stop, 1).run([Wanted(f"user{n}", "x") for n in range(3)], lambda: None)
    assert [result.stopped for result in results] == [None, "interrupted", "interrupted"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("alice",),
        (),
        ("alice", "/x", "--users", "/y"),
        ("--users", "/nowhere"),
        ("alice", "imap://alice:secret@127.0.0.1"),
        ("alice", "imap://127.0.0.1"),
        ("alice", "imap://alice@127.0.0.1", "--password-file", "/nowhere"),
        ("--users", "/dev/null", "--at-once", "0"),
    ],
)
def test_wrong_usage(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    result = invoke("import", *arguments, "--url", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "secret" not in result.output


def test_account_without_a_password_is_refused(invoke: Invoke) -> None:
    result = invoke("import", "alice", "imap://alice@127.0.0.1:1", "--url", "http://127.0.0.1:1")
    assert (result.exit_code, "--password-file" in result.output) == (1, True)
