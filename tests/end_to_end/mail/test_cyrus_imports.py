"""Imports from Debian's Cyrus by IMAP: clients find what they know already."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.clusters.cluster import PASSWORD, Cluster, Node
from benchmarks.peers.pairs.cyrus import CyrusPair, CyrusServer
from tests.dovecot_accounts import client, expunge, quoted, shown, subscribed
from tests.effort import IN_CI

pytestmark = pytest.mark.skipif(
    CyrusPair.version() is None and not IN_CI, reason="Cyrus is not there: docs/comparison.md says how to unpack it"
)
USER = "alice"
FOLDERS = {
    "INBOX": "INBOX",
    "INBOX.Archive": "Archive",
    "INBOX.Archive.2024": "Archive/2024",
    "INBOX.Entw&APw-rfe": "Entw&APw-rfe",
    "INBOX.Gesendet": "Gesendet",
}
"""Names at Cyrus, and here."""
SUBSCRIBED = ("INBOX", "INBOX.Archive.2024", "INBOX.Entw&APw-rfe")
MAILS = 15


@pytest.fixture
def server() -> Iterator[CyrusServer]:
    """A Cyrus in a directory that its user may enter, unlike pytest's."""
    directory = Path(tempfile.mkdtemp(prefix="cyrus-"))
    directory.chmod(0o755)
    started = CyrusServer(directory / "near", [USER])
    try:
        started.start(None)
        started.create_mailboxes()
        yield started
    finally:
        started.stop()
        shutil.rmtree(directory)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Cluster(tmp_path / "nodes", [USER], "", {}, size=1, copies=1) as cluster:
        yield cluster.nodes[0]


def next_second() -> None:
    """Wait for the clock's next second: Cyrus takes the time in seconds for a folder's UIDVALIDITY.

    Its clock, time(2), is some milliseconds late.
    """
    time.sleep(1.05 - time.time() % 1)


def create(server: CyrusServer, *, apart: bool) -> None:
    """Create the folders, `apart` each in a second of its own, or all at once."""
    imap = client(server.doors.imap, USER)
    for name in list(FOLDERS)[1:]:
        if apart:
            next_second()
        options = " (USE (\\Sent))" if name.endswith("Gesendet") else ""
        assert imap.create(quoted(name) + options)[0] == "OK"
    if apart:
        next_second()
    for name in SUBSCRIBED:
        imap.subscribe(quoted(name))
    imap.logout()


def fill(server: CyrusServer) -> None:
    """Put mail into the folders, and expunge some, in the middle and at the end."""
    imap = client(server.doors.imap, USER)
    imap.append("INBOX.Archive", "", '"17-Nov-1994 00:49:30 +0100"', b"Subject: old\r\n\r\nold\r\n")
    for number in range(12):
        flags = ("", "\\Seen", "\\Flagged $Label1", "\\Answered \\Seen Junk")[number % 4]
        text = f"Subject: mail {number}\r\nMessage-ID: <{number}@example.org>\r\n\r\ntext {number}\r\n".encode()
        imap.append("INBOX", flags, f'"0{1 + number % 9}-Feb-2024 10:20:30 +0000"', text)
        if not number % 3:
            imap.append("INBOX.Archive.2024", "Junk", '"01-Jan-2024 00:00:00 +0000"', text * 2)
    expunge(imap, "2,5")
    expunge(imap, "12")
    imap.append("INBOX.Gesendet", "\\Draft", '"01-Jan-2024 00:00:00 +0000"', b"Subject: sent\r\n\r\nsent\r\n")
    imap.logout()


def run(server: CyrusServer, node: Node, tmp_path: Path, *options: str) -> Any:
    """Run an import, and return its result."""
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    source, (host, port) = server.doors.imap, node.address("http")
    words = ["import", USER, f"imap://{USER}@{source.host}:{source.port}", "--password-file", tmp_path / "password"]
    words += ["--url", f"http://{host}:{port}", "--json", "--state", tmp_path / "state", *options]
    command = [sys.executable, "-m", "replicator", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_same(server: CyrusServer, node: Node) -> None:
    """Check that a client sees the same at both."""
    old, new = client(server.doors.imap, USER), client(node.address("imap"), USER)
    for theirs, ours in FOLDERS.items():
        before, after = shown(old, theirs), shown(new, ours)
        assert after.messages == before.messages, ours
        assert (after.uidvalidity, after.uidnext) == (before.uidvalidity, before.uidnext), ours
        assert after.highestmodseq >= before.highestmodseq
    assert subscribed(new) == {FOLDERS[name] for name in SUBSCRIBED}
    old.logout()
    new.logout()


def kept(result: Mapping[str, Any]) -> set[bool]:
    return {folder["uids_kept"] for folder in result["folders"]}


def test_import_keeps_what_clients_cache(server: CyrusServer, tmp_path: Path) -> None:
    create(server, apart=True)
    fill(server)
    with Cluster(tmp_path / "nodes", [USER], "", {}, size=1, copies=1) as cluster:  # later than the folders there
        node = cluster.nodes[0]
        result = run(server, node, tmp_path)
        assert (result["imported"], result["failures"], result["notes"]) == (MAILS, [], [])
        assert kept(result) == {True}
        check_same(server, node)
        again = run(server, node, tmp_path)
        assert (again["imported"], again["present"]) == (0, MAILS)
        imap = client(server.doors.imap, USER)
        imap.select("INBOX")
        imap.uid("STORE", "3,10", "FLAGS", "(\\Flagged $New)")
        expunge(imap, "4")
        imap.append("INBOX", "$Late", '"01-Mar-2024 00:00:00 +0000"', b"Subject: late\r\n\r\nx\r\n")
        imap.logout()
        later = run(server, node, tmp_path, "--expunge")
        counts = {name: later[name] for name in ("imported", "reflagged", "expunged", "failures")}
        assert counts == {"imported": 1, "reflagged": 2, "expunged": 1, "failures": []}
        check_same(server, node)


def test_folders_that_were_made_in_one_second_get_new_uids_but_for_one(
    server: CyrusServer, node: Node, tmp_path: Path
) -> None:
    """Cyrus gives them one UIDVALIDITY, which folders of a node cannot share."""
    create(server, apart=False)
    imap = client(server.doors.imap, USER)
    validities = [shown(imap, name).uidvalidity for name in FOLDERS]
    imap.logout()
    fill(server)
    result = run(server, node, tmp_path)
    assert (result["imported"], result["failures"]) == (MAILS, [])
    assert sum(folder["uids_kept"] for folder in result["folders"]) <= len(set(validities)) < len(FOLDERS)
    assert run(server, node, tmp_path)["imported"] == 0
