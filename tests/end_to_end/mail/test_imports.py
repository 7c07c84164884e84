"""Imports from Debian's Dovecot, from its files and by IMAP: clients find what they know already."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.clusters.cluster import PASSWORD, Cluster, Node
from benchmarks.clusters.dovecot import Dovecot
from tests.dovecot_accounts import (
    FOLDERS,
    MASTER,
    MASTER_PASSWORD,
    SUBSCRIBED,
    client,
    dovecot,
    expunge,
    fill,
    listed,
    shown,
    subscribed,
)
from tests.imap_data.dovecot import needs_dovecot

pytestmark = needs_dovecot
USERS = [f"user{number}" for number in range(40)]
LAYOUTS = {"plus": "", "fs": ":LAYOUT=fs"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Cluster(tmp_path_factory.mktemp("imports") / "nodes", USERS, "", {}, size=1, copies=1) as cluster:
        yield cluster.nodes[0]


@pytest.fixture(scope="module", params=["plus", pytest.param("fs", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> Iterator[Dovecot]:
    with dovecot(LAYOUTS[request.param]) as started:
        yield started


@pytest.fixture
def user() -> str:
    """Return a user that no other test has."""
    return USERS.pop()


def run(node: Node, tmp_path: Path, *arguments: object, code: int = 0) -> Any:
    """Run an import; return its result."""
    command = run_command(node, tmp_path, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def run_command(node: Node, tmp_path: Path, *arguments: object) -> list[str]:
    """Return the command of an import."""
    host, port = node.address("http")
    words = (*arguments, "--url", f"http://{host}:{port}", "--json", "--state", tmp_path / "state")
    return [sys.executable, "-m", "replicator", "import", *map(str, words)]


def check_same(server: Dovecot, node: Node, user: str) -> None:
    """Check that a client sees the same at both."""
    old, new = client(server.address, user), client(node.address("imap"), user)
    for name in FOLDERS:
        before, after = shown(old, name), shown(new, name)
        assert after.messages == before.messages, name
        assert (after.uidvalidity, after.uidnext) == (before.uidvalidity, before.uidnext), name
        assert after.highestmodseq >= before.highestmodseq
    assert subscribed(new) == subscribed(old) == SUBSCRIBED
    assert listed(new).keys() == listed(old).keys()
    old.logout()
    new.logout()


def by_imap(server: Dovecot, user: str, tmp_path: Path) -> tuple[object, ...]:
    """Return the arguments of an import by IMAP."""
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    return (f"imap://{user}@{server.address.host}:{server.address.port}", "--password-file", file)


def test_maildir_keeps_what_clients_cache(server: Dovecot, node: Node, user: str, tmp_path: Path) -> None:
    fill(server, user)
    result = run(node, tmp_path, user, server.mail(user))
    assert (result["imported"], result["failures"]) == (14, [])
    assert all(folder["uids_kept"] for folder in result["folders"]), json.dumps(result)
    check_same(server, node, user)
    again = run(node, tmp_path, user, server.mail(user))
    assert (again["imported"], again["present"]) == (0, 14)
    check_same(server, node, user)


def test_imap_keeps_what_clients_cache(server: Dovecot, node: Node, user: str, tmp_path: Path) -> None:
    fill(server, user)
    result = run(node, tmp_path, user, *by_imap(server, user, tmp_path))
    assert (result["imported"], result["failures"]) == (14, [])
    assert all(folder["uids_kept"] for folder in result["folders"]), json.dumps(result)
    check_same(server, node, user)
    new = client(node.address("imap"), user)
    assert b"\\Sent" in listed(new)["Gesendet"]
    new.logout()


@pytest.mark.parametrize("place", ["files", "imap"])
def test_changes_at_the_source_are_taken_over_where_nothing_has_changed_here(
    server: Dovecot, node: Node, user: str, tmp_path: Path, place: str
) -> None:
    fill(server, user)
    source = (server.mail(user),) if place == "files" else by_imap(server, user, tmp_path)
    run(node, tmp_path, user, *source)
    old, new = client(server.address, user), client(node.address("imap"), user)
    new.select("INBOX")
    new.uid("STORE", "1", "FLAGS", "($Mine)")
    new.uid("STORE", "10", "+FLAGS", "(\\Draft)")
    old.select("INBOX")
    old.uid("STORE", "3,10", "FLAGS", "(\\Flagged $New)")
    expunge(old, "4")
    old.append("INBOX", "$Late", None, b"Subject: late\r\n\r\nx\r\n")
    late = shown(old, "INBOX").messages[-1]
    result = run(node, tmp_path, user, *source, "--expunge")
    assert result["failures"] == []
    counts = {name: result[name] for name in ("imported", "reflagged", "expunged", "stayed")}
    assert counts == {"imported": 1, "reflagged": 1, "expunged": 1, "stayed": 1}
    after = {message.uid: message for message in shown(new, "INBOX").messages}
    assert [after[uid].flags for uid in (1, 3)] == [{"$Mine"}, {"\\Flagged", "$New"}]
    assert 4 not in after
    assert "\\Draft" in after[10].flags
    assert after[late.uid] == late
    old.select("INBOX")
    expunge(old, "10")
    assert run(node, tmp_path, user, *source, "--expunge")["expunged"] == 0  # it is the node's only now
    old.logout()
    new.logout()


def test_new_mail_comes_after_modseqs_of_the_server_begin_anew(
    server: Dovecot, node: Node, user: str, tmp_path: Path
) -> None:
    fill(server, user)
    old = client(server.address, user)
    old.select("INBOX")
    for change in "+-" * 10:
        old.uid("STORE", "1:*", f"{change}FLAGS", "(\\Flagged)")
    run(node, tmp_path, user, *by_imap(server, user, tmp_path))
    old.logout()
    for file in server.mail(user).glob("dovecot.index*"):
        file.unlink()
    old = client(server.address, user)
    for text in (b"one", b"two"):
        old.append("INBOX", "", None, b"Subject: " + text + b"\r\n\r\nx\r\n")
        result = run(node, tmp_path, user, *by_imap(server, user, tmp_path))
        assert (result["imported"], result["failures"]) == (1, [])
    old.logout()


def test_mail_that_the_server_cannot_read_is_named_and_others_come(
    server: Dovecot, node: Node, user: str, tmp_path: Path
) -> None:
    fill(server, user)
    old = client(server.address, user)
    for number in range(5):
        old.append("Archive", "", None, b"Subject: %d\r\n\r\nx\r\n" % number)
    uid = shown(old, "Archive").messages[-3].uid
    old.logout()
    lost = sorted(server.mail(user).rglob("*M*P*"), key=lambda file: file.stat().st_mtime_ns)[-3]
    lost.unlink()
    lost.mkdir()  # as a file on a broken disk, whoever the server runs as
    result = run(node, tmp_path, user, *by_imap(server, user, tmp_path), code=1)
    assert result["imported"] == 18, json.dumps(result)
    assert [failure["message"] for failure in result["failures"]] == [f"Archive, UID {uid}"]


def test_folder_that_has_mail_gets_the_mail_under_new_uids(
    server: Dovecot, node: Node, user: str, tmp_path: Path
) -> None:
    fill(server, user)
    new = client(node.address("imap"), user)
    new.append("INBOX", "", None, b"Subject: here already\r\n\r\nx\r\n")
    result = run(node, tmp_path, user, server.mail(user))
    kept = {folder["name"]: folder["uids_kept"] for folder in result["folders"]}
    assert kept == {"INBOX": False, "Archive": True, "Archive/2024": True, "Entwürfe": True, "Gesendet": True}
    assert "INBOX: has had mail here, so what comes gets new UIDs" in result["notes"]
    old = client(server.address, user)
    before, after = shown(old, "INBOX"), shown(new, "INBOX")
    assert before.uidvalidity != after.uidvalidity
    assert [one.text for one in after.messages[1:]] == [one.text for one in before.messages]
    again = run(node, tmp_path, user, server.mail(user))
    assert (again["imported"], again["present"]) == (0, 14)
    assert {folder["name"]: folder["uids_kept"] for folder in again["folders"]} == kept
    old.logout()
    new.logout()


def test_users_of_a_list_are_imported_by_a_master(server: Dovecot, node: Node, user: str, tmp_path: Path) -> None:
    users = [user, USERS.pop(), USERS.pop()]
    for one in users:
        fill(server, one)
    host, port = server.address
    lines = [f"{one} imap://{one}@{host}:{port}" for one in users[:2]]
    lines += [
        f"{users[2]}\t{server.mail(users[2])}",
        "",
        "# a comment",
        f"nobody {server.mail(user)}",
        f"{user} /nowhere",
    ]
    (tmp_path / "users").write_text("\n".join(lines))
    (tmp_path / "password").write_text(MASTER_PASSWORD)
    options = ("--users", tmp_path / "users", "--password-file", tmp_path / "password", "--master-user", MASTER)
    result = run(node, tmp_path, *options, code=1)
    assert [(one["user"], one["imported"]) for one in result] == [
        *((one, 14) for one in users),
        ("nobody", 0),
        (user, 0),
    ]
    assert [bool(one["stopped"]) for one in result] == [False, False, False, True, True]
    assert "no user 'nobody'" in result[3]["stopped"]
    for one in users:
        check_same(server, node, one)
    again = run(node, tmp_path, *options, code=1)
    assert [(one["imported"], one["present"]) for one in again] == [(0, 14)] * 3 + [(0, 0)] * 2


@pytest.mark.parametrize("lost", [False, True])
def test_uids_are_given_up_where_mail_has_come_by_another_way(
    server: Dovecot, node: Node, user: str, tmp_path: Path, *, lost: bool
) -> None:
    fill(server, user)
    run(node, tmp_path, user, server.mail(user))
    old, new = client(server.address, user), client(node.address("imap"), user)
    for connection in (old, new):
        connection.append("INBOX", "", None, b"Subject: %d\r\n\r\nx\r\n" % connection.port)
    assert shown(old, "INBOX").messages[-1].uid == shown(new, "INBOX").messages[-1].uid
    new.logout()  # the node would end the session
    if lost:
        shutil.rmtree(tmp_path / "state")
    result = run(node, tmp_path, user, server.mail(user))
    [inbox] = [folder for folder in result["folders"] if folder["name"] == "INBOX"]
    assert (inbox["imported"], inbox["uids_kept"]) == (1, False)
    assert [note for note in result["notes"] if "other mail has come under UID 13 here" in note]
    new = client(node.address("imap"), user)
    assert shown(new, "INBOX").uidvalidity != shown(old, "INBOX").uidvalidity
    assert len(shown(new, "INBOX").messages) == 11
    assert run(node, tmp_path, user, server.mail(user))["imported"] == 0
    old.logout()
    new.logout()


def test_mail_that_comes_here_is_no_reason_to_give_uids_up_as_long_as_its_uid_is_new(
    server: Dovecot, node: Node, user: str, tmp_path: Path
) -> None:
    fill(server, user)
    run(node, tmp_path, user, server.mail(user))
    old, new = client(server.address, user), client(node.address("imap"), user)
    new.append("INBOX", "", None, b"Subject: here\r\n\r\nx\r\n")
    old.select("INBOX")
    old.uid("STORE", "3", "+FLAGS", "(\\Answered)")
    result = run(node, tmp_path, user, server.mail(user))
    assert all(folder["uids_kept"] for folder in result["folders"]), json.dumps(result)
    assert result["reflagged"] == 1
    old.logout()
    new.logout()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_import_goes_on_with_uids(
    server: Dovecot, node: Node, user: str, tmp_path: Path, end: signal.Signals
) -> None:
    fill(server, user, messages=400)
    new = client(node.address("imap"), user)
    command = run_command(node, tmp_path, user, server.mail(user))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while new.select("INBOX")[1] == [b"0"]:
            assert process.poll() is None
        process.send_signal(end)
        said, _ = process.communicate(timeout=60)
    new.logout()
    if end == signal.SIGINT:
        stopped = json.loads(said)
        assert (process.returncode, stopped["stopped"]) == (1, "interrupted")
        assert 0 < stopped["imported"] < 532
        assert stopped["imported"] + stopped["left"] == 532
    result = run(node, tmp_path, user, server.mail(user))
    assert (result["failures"], result["imported"] + result["present"]) == ([], 532)
    check_same(server, node, user)


MBSYNC = shutil.which("mbsync")


def mbsync(address: tuple[str, int], user: str, directory: Path) -> str:
    """Sync the account with `directory`, where mbsync keeps what it knows; return what it says it has done."""
    (directory / "mail").mkdir(parents=True, exist_ok=True)
    config = directory / "mbsyncrc"
    config.write_text(
        f"""
IMAPAccount account
Host {address[0]}
Port {address[1]}
User {user}
Pass {PASSWORD}
SSLType None
AuthMechs LOGIN

IMAPStore far
Account account

MaildirStore near
Path {directory}/mail/
Inbox {directory}/mail/INBOX
SubFolders Verbatim

Channel all
Far :far:
Near :near:
Patterns *
Create Both
Expunge Both
SyncState *
"""
    )
    assert MBSYNC is not None
    command = [MBSYNC, "-V", "-D", "-c", str(config), "all"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(MBSYNC is None, reason="mbsync is not installed: apt-get install isync")
@pytest.mark.parametrize("place", ["files", "imap"])
def test_mbsync_that_is_switched_over_fetches_nothing_again(
    server: Dovecot, node: Node, user: str, tmp_path: Path, place: str
) -> None:
    fill(server, user)
    said = mbsync(server.address, user, tmp_path / "mbsync")
    assert bodies_in(said) == 14
    run(node, tmp_path, user, *((server.mail(user),) if place == "files" else by_imap(server, user, tmp_path)))
    assert bodies_in(mbsync(node.address("imap"), user, tmp_path / "mbsync")) == 0
    check_same(server, node, user)  # nor has it sent anything back
    new = client(node.address("imap"), user)
    new.append("INBOX", "", None, b"Subject: later\r\n\r\nx\r\n")
    new.logout()
    assert bodies_in(mbsync(node.address("imap"), user, tmp_path / "mbsync")) == 1


def bodies_in(said: str) -> int:
    """Return how many messages mbsync has received, by what it tells of the wire."""
    return len(re.findall(r"^F: \* \d+ FETCH \(.*BODY\[\]", said, re.MULTILINE))
