"""Mail of a user that an operator expunges: gone at all nodes and for clients that watch, and back by `undelete`."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import Cluster
from tests.end_to_end.helpers.doors import wait_for
from tests.end_to_end.helpers.ledger import log_in

COMMAND_TIMEOUT_S = 120.0
MAILS = 5


def replicator(cluster: Cluster, sid: str, *arguments: str) -> dict[str, object]:
    """Run the command at the node, and return the JSON that it prints."""
    config = str(cluster.directory / f"{sid}.toml")
    command = [sys.executable, "-m", "replicator", *arguments, "--json", "--config", config]
    ended = subprocess.run(command, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    found: dict[str, object] = json.loads(ended.stdout)
    return found


@pytest.mark.long
@pytest.mark.parametrize("doors", [0, 1])
def test_mail_goes_at_all_nodes_and_comes_back(tmp_path: Path, doors: int) -> None:
    extra = f"[workers]\ndoors = {doors}\n"
    with Cluster(tmp_path, ["alice"], size=2, copies=2, extra=extra) as cluster, ExitStack() as stack:
        clients = [log_in(node, "alice") for node in cluster.nodes]
        for client in clients:
            stack.callback(client.shutdown)
        near, far = clients
        for number in range(MAILS):
            text = f"Message-ID: <{number}@example.org>\r\n\r\n{number}".encode()
            assert near.append("INBOX", "", "", text)[0] == "OK"
        assert far.select("INBOX") == ("OK", [str(MAILS).encode()])

        told = replicator(cluster, "dc1", "expunge", "alice", "INBOX", "--message-id", "<2@example.org>", "--yes")
        assert (told["messages"], told["expunged"]) == (1, 1)
        told = replicator(cluster, "dc2", "expunge", "alice", "INBOX", "--uid", "4:*", "--dry-run")
        assert (told["messages"], told["expunged"]) == (2, 0)
        told = replicator(cluster, "dc2", "expunge", "alice", "INBOX", "--uid", "4:*", "--yes")
        assert (told["messages"], told["expunged"]) == (2, 2)

        for client in clients:
            wait_for("the mail is still there", lambda: client.select("INBOX")[1] == [b"2"])  # noqa: B023
            assert client.uid("SEARCH", "ALL")[1] == [b"1 2"]
        cluster.wait_until_equal()

        back = replicator(cluster, "dc2", "undelete", "alice", "INBOX")
        assert back["restored"] == 3
        wait_for("the mail is not back", lambda: near.select("INBOX")[1] == [str(MAILS).encode()])
