"""Imports from Debian's Dovecot, from its files and by IMAP: clients find what they know already."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.clusters.cluster import PASSWORD, Cluster, Node
from benchmarks.clusters.dovecot import Dovecot
from tests import dovecot_accounts
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
    needs_dovecot,
    quoted,
    shown,
    subscribed,
)

pytestmark = needs_dovecot
USERS = [f"user{number}" for number in range(12)]
LAYOUTS = {"plus": "", "fs": ":LAYOUT=fs"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Cluster(tmp_path_factory.mktemp("imports") / "nodes", USERS, "", {}, size=1, copies=1) as cluster:
        yield cluster.nodes[0]


@pytest.fixture(scope="module", params=LAYOUTS)
def server(request: pytest.FixtureRequest) -> Iterator[Dovecot]:
    with dovecot(LAYOUTS[request.param]) as started:
        yield started


@pytest.fixture
def user(request: pytest.FixtureRequest) -> str:
    """Return a user that no other test has."""
    return USERS.pop()


def run(node: Node, tmp_path: Path, *arguments: object, code: int = 0) -> Any:
    """Run an import; return its result."""
    words = [*arguments, "--url", f"http://{node.address('http').host}:{node.address('http').port}", "--json"]
    words += ["--state", tmp_path / "state"]
    command = [sys.executable, "-m", "replicator", "import", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


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
    result = run(node, tmp_path, user, *source)
    assert result["failures"] == []
    counts = {name: result[name] for name in ("imported", "reflagged", "expunged", "stayed")}
    assert counts == {"imported": 1, "reflagged": 1, "expunged": 1, "stayed": 1}
    after = {message.uid: message for message in shown(new, "INBOX").messages}
    assert (after[1].flags, after[3].flags) == ({"$Mine"}, {"\\Flagged", "$New"})
    assert 4 not in after
    assert "\\Draft" in after[10].flags
    assert after[late.uid] == late
    old.select("INBOX")
    expunge(old, "10")
    assert run(node, tmp_path, user, *source)["expunged"] == 0  # it is the node's only now
    old.logout()
    new.logout()
