"""`replicator resync` as an operator runs it, after a cut between two parts of a cluster, and on damaged rows."""

from __future__ import annotations

import json
import smtplib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from benchmarks.clusters.cluster import Cluster

COMMAND_TIMEOUT_S = 120.0


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("resync") / "nodes", ["alice"], proxied=True) as started:
        yield started


def replicator(cluster: Cluster, sid: str, *arguments: str) -> tuple[int, dict[str, object]]:
    """Run the command, and return its exit code and report."""
    config = str(cluster.directory / f"{sid}.toml")
    command = [sys.executable, "-m", "replicator", *arguments, "--json", "--config", config]
    ended = subprocess.run(command, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False)
    assert ended.stderr == b""
    report = json.loads(ended.stdout)
    assert isinstance(report, dict)
    return ended.returncode, report


def deliver(cluster: Cluster, sid: str, subject: str) -> None:
    with smtplib.LMTP(*cluster.node(sid).address("lmtp")) as client:
        client.sendmail("sender@example.org", ["alice"], f"Subject: {subject}\r\n\r\n{subject}\r\n")


@pytest.mark.long
def test_resync_makes_parted_nodes_equal_and_names_damage(cluster: Cluster) -> None:
    deliver(cluster, "dc1", "before")
    cluster.partition(["dc1"], ["dc2", "dc3"])
    for sid in ("dc1", "dc3"):
        deliver(cluster, sid, f"apart, at {sid}")
    cluster.heal()
    cluster.wait_together()
    assert replicator(cluster, "dc1", "resync", "--all")[0] == 0
    code, report = replicator(cluster, "dc2", "resync", "alice", "INBOX")
    assert (code, report["state"], report["peers"]) == (0, "done", ["dc1", "dc3"])
    cluster.wait_until_equal()

    database = cluster.directory / "dc2" / "node.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        assert connection.execute("DELETE FROM by_uid WHERE uid = 1").rowcount == 1
    code, report = replicator(cluster, "dc1", "resync", "--user", "alice")
    assert (code, report["differed"], report["mended"], report["unmended"]) == (1, {"damage": 1}, 0, 1)
    assert replicator(cluster, "dc2", "check", "--repair")[0] == 0
    code, report = replicator(cluster, "dc1", "resync", "--user", "alice")
    assert (code, report["differences"]) == (0, [])
