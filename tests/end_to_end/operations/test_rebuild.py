"""A node whose `node.db` is damaged, as its operator sees it: processes, exit codes and messages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import Cluster, Node
from replicator.store.db import schema
from tests.end_to_end.helpers.mail_clients import deliver, imap, uids
from tests.store.damaging import leaves_of, overwrite

MAILS = [b"Subject: %d\r\n\r\n%s\r\n" % (number, b"text " * 50) for number in range(60)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "nodes", ["alice"]) as started:
        deliver(started.nodes[0], MAILS, ["alice"])
        started.wait_until_equal()
        yield started


@pytest.fixture
def stopped(cluster: Cluster) -> Iterator[Node]:
    """Node dc3, stopped during the test; afterwards it starts and must have all mail."""
    node = cluster.node("dc3")
    node.stop()
    yield node
    node.start()
    cluster.wait_until_equal()
    with imap(node) as client:
        assert len(uids(client)) == len(MAILS)
    assert len(list((cluster.directory / "dc3").glob("node.db.*.damaged"))) == 1
    for left in (cluster.directory / "dc3").glob("node.db.*.damaged*"):
        left.unlink()
    assert {file.name for file in (cluster.directory / "dc3").glob("node.db*")} <= {
        "node.db", "node.db-wal", "node.db-shm", "node.db.lock",
    }  # fmt: skip


def replicator(cluster: Cluster, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    config = str(cluster.directory / "dc3.toml")
    arguments = [sys.executable, "-m", "replicator", command, *options, "--config", config]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)


def magic(path: Path) -> None:
    overwrite(path, 1, b"garbage!garbage!")


def header(path: Path) -> None:
    overwrite(path, 1, b"\xa5" * 100)


def text_file(path: Path) -> None:
    path.write_bytes(b"From: someone\r\n" * 1000)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 5 * schema.PAGE_BYTES + 100])


def chains(path: Path) -> None:
    overwrite(path, leaves_of(path, "chain")[0])


def log_begins(path: Path) -> None:
    overwrite(path, leaves_of(path, "log")[0])


def emptied(path: Path) -> None:
    path.write_bytes(b"")
    path.with_name("node.db-wal").write_bytes(b"\xa5" * 10_000)


@pytest.mark.parametrize(
    ("harm", "exit_code"),
    [
        (magic, 0),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [(truncated, 1), (chains, 0), (header, 1), (text_file, 1), (log_begins, 0), (emptied, 1)]
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_node_with_a_damaged_database_does_not_run_until_rebuilt(
    cluster: Cluster, stopped: Node, harm: Callable[[Path], None], exit_code: int
) -> None:
    path = cluster.directory / stopped.sid / "node.db"
    harm(path)
    refused = replicator(cluster, "node")
    assert (refused.returncode, refused.stdout) == (1, "")
    [line] = refused.stderr.splitlines()
    assert f"{path}: the database is damaged: " in line
    assert line.endswith(f"rebuild --from-peers --config {cluster.directory / 'dc3.toml'}`")
    rebuilt = replicator(cluster, "rebuild", "--from-peers", "--json")
    assert rebuilt.returncode == exit_code, rebuilt.stderr
    report = json.loads(rebuilt.stdout)
    assert (report["peers"], report["messages"], report["texts"]) == (["dc1", "dc2"], len(MAILS), len(MAILS))
    assert (report["missing_texts"], report["differing"]) == ([], [])
    assert report["lost_entries"] == (None if exit_code else 0)
    assert "Traceback" not in rebuilt.stderr


@pytest.mark.long
def test_rebuild_interrupted_before_any_data_leaves_the_node_unchanged(cluster: Cluster, stopped: Node) -> None:
    others = [node for node in cluster.nodes if node is not stopped]
    for node in others:
        node.stop()
    chains(cluster.directory / stopped.sid / "node.db")
    arguments = ["rebuild", "--from-peers", "--config", str(cluster.directory / "dc3.toml")]
    with subprocess.Popen(
        [sys.executable, "-m", "replicator", *arguments], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        waits = next(line for line in process.stderr if "waiting for a peer: dc1: " in line)
        assert "dc2: " in waits
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 1
    assert "interrupted; the node is unchanged; run `" in said
    assert "Traceback" not in said
    assert not list((cluster.directory / stopped.sid).glob("node.db.rebuild*"))
    refused = replicator(cluster, "node")
    assert (refused.returncode, "the database is damaged: " in refused.stderr) == (1, True)
    for node in others:
        node.start()
    rebuilt = replicator(cluster, "rebuild", "--from-peers")
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert rebuilt.stdout.startswith(f"rebuilt from dc1, dc2: 1 folders, {len(MAILS)} messages, {len(MAILS)} bodies\n")


@pytest.mark.long
def test_rebuild_refuses_a_running_node(cluster: Cluster) -> None:
    refused = replicator(cluster, "rebuild", "--from-peers")
    assert (refused.returncode, "another process has it open" in refused.stderr) == (1, True)
    assert cluster.node("dc3").is_running


@pytest.mark.long
def test_rebuild_requires_the_source_of_the_mail(cluster: Cluster) -> None:
    refused = replicator(cluster, "rebuild")
    assert (refused.returncode, "confirm by --from-peers" in refused.stderr) == (2, True)
