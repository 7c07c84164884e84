"""`replicator top` at a node that a client keeps busy through a door of its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import Cluster
from tests.end_to_end.helpers.ledger import log_in


@pytest.mark.long
def test_top_tells_what_a_client_does(tmp_path: Path) -> None:
    extra = "[workers]\ndoors = 1\n"
    with Cluster(tmp_path, ["alice"], size=2, copies=2, extra=extra) as cluster, ExitStack() as stack:
        alice = log_in(cluster.nodes[0], "alice")
        stack.callback(alice.shutdown)
        config = str(cluster.directory / "dc1.toml")
        line = [
            sys.executable,
            "-m",
            "replicator",
            "top",
            "--json",
            "--seconds",
            "2",
            "--count",
            "2",
            "--config",
            config,
        ]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as watching:
            while watching.poll() is None:
                assert alice.append("INBOX", "", "", b"Subject: busy\r\n\r\nbusy")[0] == "OK"
            assert watching.stdout is not None
            first, last = (json.loads(view) for view in watching.stdout)
        assert watching.returncode == 0
        assert first["clock_ms"] < last["clock_ms"]
        assert min(last["commands_s"], last["messages_s"], last["commits_s"], last["by_command"]["APPEND"]) > 0
        [peer] = last["peers"]
        assert (peer["peer"], peer["up"]) == ("dc2", True)
        assert (
            min(peer["sent_entries_s"] + peer["received_entries_s"], peer["sent_bytes_s"], peer["received_bytes_s"]) > 0
        )
        assert [one["process"] for one in last["processes"]] == ["core", "door 1"]
        assert all(one["processors"] > 0 < one["memory_bytes"] for one in last["processes"])
        assert [(one["user"], one["sessions"]) for one in last["users"]] == [("alice", 1)]
        assert (last["connections"], last["logged_in"]) == (1, 1)
