"""Modes of files that a node and the commands create, whatever the umask that they are started under."""

from __future__ import annotations

import smtplib
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import Cluster, Node
from resync.inventory import MANIFEST

UMASK_0 = """sh -c 'umask 000; exec "$@"' sh"""
ATTACHMENT = (
    b"Subject: A picture\r\nMIME-Version: 1.0\r\nContent-Type: image/png\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    + b"\r\n".join([b"QUJD" * 19] * 2000)
)


def modes(*roots: Path) -> dict[str, str]:
    """Return the kind and mode of everything in these trees, by path."""
    found = [path for root in roots for path in (root, *root.rglob("*"))]
    return {str(path): stat.filemode(path.lstat().st_mode) for path in found}


def deliver(node: Node) -> None:
    with smtplib.LMTP(*node.address("lmtp")) as client:
        client.sendmail("bob@example.org", ["alice"], ATTACHMENT)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", ["alice"], UMASK_0, size=1, copies=1) as cluster:
        yield cluster


def test_everything_that_a_node_creates_is_for_its_user_alone(cluster: Cluster, tmp_path: Path) -> None:
    [node] = cluster.nodes
    deliver(node)
    node.ask("POST", "/api/v1/checkpoint")
    command = [
        "-m",
        "replicator",
        "inventory",
        "--to",
        "new/inventory",
        "--config",
        str(cluster.directory / "dc1.toml"),
    ]
    subprocess.run([sys.executable, *command], cwd=tmp_path, umask=0, check=True, capture_output=True)

    found = modes(node.data, cluster.directory / "checkpoints", tmp_path / "new")
    names = {Path(path).name for path in found}
    assert {"node.db", "node.db-wal", "node.db-shm", "node.db.lock", "attachments", MANIFEST} <= names
    assert any(name.startswith("content.") for name in names)
    assert any(path.startswith(str(cluster.directory / "checkpoints" / "mail")) for path in found)
    assert {path: mode for path, mode in found.items() if mode[1:] not in {"rwx------", "rw-------"}} == {}


def test_directory_that_is_open_to_its_group_is_shared_with_it_and_nothing_else_is(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    extra = f'[content]\nattachments = "{shared}"\n'
    with Cluster(tmp_path / "cluster", ["alice"], UMASK_0, size=1, copies=1, extra=extra) as cluster:
        [node] = cluster.nodes
        deliver(node)
        node.ask("POST", "/api/v1/checkpoint")
        private = modes(node.data, cluster.directory / "checkpoints")
        assert private.pop(str(node.data)) == private.pop(str(cluster.directory / "checkpoints")) == "drwx------"
        assert {path for path, mode in private.items() if not mode.endswith("---")} == set()
        assert {mode for path, mode in private.items() if "/node.db" in path} == {"-rw-------"}
        assert {mode.replace("s", "x") for mode in modes(shared).values()} == {"drwxrwx---", "-rw-rw----"}


@pytest.mark.long
def test_what_others_can_read_is_told_at_the_start_and_left_alone(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", ["alice"], size=1, copies=1) as cluster:
        [node] = cluster.nodes
        node.stop()
        assert "chmod" not in node.log_tail().replace(f"chmod o= {cluster.directory / 'users.passwd'}", "")
        node.data.chmod(0o755)
        (node.data / "node.db").chmod(0o644)
        node.start()
        told = f"close it by `chmod o= {cluster.directory / 'users.passwd'}`"
        log = cluster.directory / f"{node.sid}.log"
        before = log.read_text().count(told)
        assert before > 0
        node.ask("POST", "/api/v1/reload")
        node.stop()
        assert log.read_text().count(told) == before + 1
        assert f"such as node.db (mode 0755); close it by `chmod -R go= {node.data}`" in node.log_tail()
        assert stat.S_IMODE((node.data / "node.db").stat().st_mode) == 0o644
