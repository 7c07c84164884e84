"""A node that is drained before it is stopped: who is sent elsewhere, who is served, and when it can be stopped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import Cluster
from tests.end_to_end.helpers.ledger import log_in

COMMAND_TIMEOUT_S = 120.0


def command(cluster: Cluster, *arguments: str) -> Sequence[str]:
    config = str(cluster.directory / "dc1.toml")
    return [sys.executable, "-m", "replicator", *arguments, "--config", config]


def printed(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    """Run the command at dc1, and return what it prints."""
    line = command(cluster, *arguments)
    ended = subprocess.run(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=COMMAND_TIMEOUT_S, check=False, text=True
    )
    assert ended.returncode == code, ended.stdout
    return ended.stdout


@pytest.mark.long
def test_drained_node_serves_on_and_tells_when_it_can_be_stopped(tmp_path: Path) -> None:
    with Cluster(tmp_path, ["alice"], size=2, copies=2) as cluster, ExitStack() as stack:
        alice = log_in(cluster.nodes[0], "alice")
        stack.enter_context(alice)
        waiting = subprocess.Popen(command(cluster, "drain"), stdout=subprocess.PIPE, text=True)
        stack.callback(waiting.kill)
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == (
            "dc1 calls itself unhealthy, so that balancers send new clients to other nodes\n"
        )
        assert waiting.stdout.readline() == "waiting for 1 session\n"
        assert "an operator drains the node, since" in printed(cluster, "health", code=1)
        assert alice.noop()[0] == "OK"
        assert alice.append("INBOX", "", "", b"Subject: late\r\n\r\nlate")[0] == "OK"
        newcomer = log_in(cluster.nodes[0], "alice")
        newcomer.logout()
        alice.logout()
        rest = waiting.stdout.read()
        waiting.stdout.close()
        assert waiting.wait(COMMAND_TIMEOUT_S) == 0
        assert rest.endswith("dc1 can be stopped\n")

        assert printed(cluster, "drain", "--undo") == "dc1 takes new clients again\n"
        printed(cluster, "health")


@pytest.mark.long
def test_sessions_that_are_left_are_ended_when_their_time_is_over(tmp_path: Path) -> None:
    with Cluster(tmp_path, ["alice"], size=2, copies=1) as cluster, ExitStack() as stack:
        alice = log_in(cluster.nodes[0], "alice")
        stack.callback(alice.shutdown)
        cluster.nodes[1].stop()
        waiting = subprocess.Popen(command(cluster, "drain", "--kick-after", "0s"), stdout=subprocess.PIPE, text=True)
        stack.callback(waiting.kill)
        assert waiting.stdout is not None
        assert waiting.stdout.readline().startswith("dc1 calls itself unhealthy")
        assert waiting.stdout.readline() == "ended 1 session\n"
        assert b"BYE [UNAVAILABLE]" in alice.readline()
        while (line := waiting.stdout.readline()) != "waiting for a link to any other node\n":
            assert line.startswith("waiting for 1 session"), line
        cluster.nodes[1].start()
        assert waiting.stdout.read().endswith("dc1 can be stopped\n")
        waiting.stdout.close()
        assert waiting.wait(COMMAND_TIMEOUT_S) == 0

        cluster.nodes[0].stop()
        cluster.nodes[0].start()
        printed(cluster, "health")
