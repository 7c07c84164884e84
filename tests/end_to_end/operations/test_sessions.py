"""Sessions of real mail clients at the core and at doors in processes of their own, seen and ended from outside."""

from __future__ import annotations

import imaplib
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.clients.wire import connect_lmtp
from benchmarks.clusters.cluster import Cluster, Node
from tests.end_to_end.helpers.doors import clients_of, doors_of, wait_for
from tests.end_to_end.helpers.ledger import log_in

COMMAND_TIMEOUT_S = 120.0
CLIENTS_MAX = 90


def replicator(cluster: Cluster, *arguments: str) -> list[dict[str, object]]:
    """Run the command at the node, and return the JSON that it prints."""
    config = str(cluster.directory / "dc1.toml")
    command = [sys.executable, "-m", "replicator", *arguments, "--json", "--config", config]
    ended = subprocess.run(command, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    found: list[dict[str, object]] = json.loads(ended.stdout)
    return found


def client_of(user: str, node: Node, stack: ExitStack) -> imaplib.IMAP4:
    client = log_in(node, user)
    stack.callback(client.shutdown)
    return client


def clients_at_all_doors(node: Node, doors: int, stack: ExitStack) -> list[imaplib.IMAP4]:
    """Return clients of alice, so many that each door has a client at least."""
    clients = [client_of("alice", node, stack)]
    while doors and not all(clients_of(door) for door in doors_of(node)):
        assert len(clients) < CLIENTS_MAX, "one door accepts all connections"
        clients.append(client_of("alice", node, stack))
    return clients


@pytest.mark.long
@pytest.mark.parametrize("doors", [0, 2])
def test_sessions_are_listed_and_ended_in_whichever_process_they_are(tmp_path: Path, doors: int) -> None:
    with (
        Cluster(tmp_path, ["alice", "bob"], size=1, copies=1, extra=f"[workers]\ndoors = {doors}\n") as cluster,
        ExitStack() as stack,
    ):
        node = cluster.nodes[0]
        bob = client_of("bob", node, stack)
        bob.select("INBOX")
        alices = clients_at_all_doors(node, doors, stack)
        stack.enter_context(connect_lmtp(node.address("lmtp")))
        found = replicator(cluster, "who")
        processes = {str(one["process"]) for one in found}
        assert processes == ({f"door {number}" for number in range(1, doors + 1)} if doors else {"core"})
        assert sorted(str(one["user"]) for one in found) == ["None", *["alice"] * len(alices), "bob"]
        [of_bob] = replicator(cluster, "who", "bob")
        assert (of_bob["mailbox"], of_bob["doing"], of_bob["address"]) == ("INBOX", None, "127.0.0.1")

        ended = replicator(cluster, "kick", "alice")
        assert {str(one["id"]) for one in ended} == {str(one["id"]) for one in found if one["user"] == "alice"}
        for client in alices:
            assert client.readline() == b"* BYE [UNAVAILABLE] An operator has ended this session; try again later\r\n"
            assert client.readline() == b""
        wait_for("ended sessions are listed", lambda: replicator(cluster, "who", "alice") == [])
        assert bob.noop()[0] == "OK"
        client_of("alice", node, stack)
