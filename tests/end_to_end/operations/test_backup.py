"""A backup of a running node, restored as docs/backup-and-recovery.md says."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

from benchmarks.clients.wire import connect_lmtp, deliver
from benchmarks.clusters.cluster import Cluster, Node
from tests.end_to_end.helpers.ledger import Cache, log_in

PAGE = Path(__file__).parents[3] / "docs" / "backup-and-recovery.md"
LARGE = 3 << 20  # octets: an attachment


def mail(token: str, size: int = 0) -> bytes:
    head = f"Message-ID: <{token}@example.org>\r\nContent-Type: application/octet-stream\r\n\r\n"
    return head.encode() + b"x" * 70 * (size // 70 + 1) + b"\r\n"


def shown(node: Node) -> set[str]:
    client = log_in(node, "alice")
    found = {message.token for message in Cache(node.sid).select(client)}
    client.logout()
    return found


def run(command: str, node: Node, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "replicator", command, "--config", str(node.data.with_suffix(".toml")), *options]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


def test_commands_back_up_and_restore_a_busy_node(tmp_path: Path) -> None:
    copy = tmp_path / "backup"
    with Cluster(tmp_path / "nodes", ["alice"], size=2) as cluster:
        dc1, dc2 = cluster.nodes
        stopped, acknowledged = threading.Event(), list[str]()

        def deliver_on() -> None:
            with connect_lmtp(dc1.address("lmtp")) as connection:
                while not stopped.is_set():
                    token = f"mail{len(acknowledged)}"
                    deliver(connection, ["alice"], mail(token, LARGE if len(acknowledged) == 3 else 0))
                    acknowledged.append(token)

        sender = threading.Thread(target=deliver_on)
        sender.start()
        while len(acknowledged) < 10:
            stopped.wait(0.01)
        at_least = set(acknowledged)
        done = run("backup", dc1, "--to", str(copy))
        stopped.set()
        sender.join()
        assert done.returncode == 0, done.stderr
        refused = run("restore", dc1, "--from", str(copy), "--replace")
        assert (refused.returncode, "another process has it open" in refused.stderr) == (1, True)
        cluster.wait_until_equal()
        dc1.kill()
        dc2.kill()
        refused = run("restore", dc1, "--from", str(copy))
        assert (refused.returncode, "give --replace" in refused.stderr) == (1, True)
        shutil.rmtree(dc1.data)
        for path in [path for path in copy.rglob("*") if path.is_file()]:
            sound = path.read_bytes()
            path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]) if sound else b"x")
            refused = run("restore", dc1, "--from", str(copy), "--check")
            assert (refused.returncode, "damaged" in refused.stderr) == (1, True), (path, refused.stderr)
            path.write_bytes(sound)
        done = run("restore", dc1, "--from", str(copy))
        assert done.returncode == 0, done.stderr
        dc1.start()
        assert at_least <= shown(dc1) <= set(acknowledged)
        dc2.start()
        cluster.wait_together()
        cluster.wait_until_equal()
        assert shown(dc1) == shown(dc2) == set(acknowledged)


def back_up(node: Node, database: Path, attachments: Path) -> None:
    """Run the statement of the page, and copy the attachments after it."""
    [statement] = re.findall(
        r"`umask 077; sqlite3 node\.db \"(VACUUM INTO '/backup/dc1\.db')\"`", PAGE.read_text("utf-8")
    )
    with closing(sqlite3.connect(node.data / "node.db", isolation_level=None)) as connection:
        connection.execute(statement.replace("/backup/dc1.db", str(database)))
    shutil.copytree(node.data / "attachments", attachments)


def test_backup_of_a_busy_node_is_restored(tmp_path: Path) -> None:
    with Cluster(tmp_path / "nodes", ["alice"], size=2) as cluster:
        dc1, dc2 = cluster.nodes
        stopped, acknowledged = threading.Event(), list[str]()

        def deliver_on() -> None:
            with connect_lmtp(dc1.address("lmtp")) as connection:
                while not stopped.is_set():
                    token = f"mail{len(acknowledged)}"
                    deliver(connection, ["alice"], mail(token, LARGE if len(acknowledged) == 3 else 0))
                    acknowledged.append(token)

        sender = threading.Thread(target=deliver_on)
        sender.start()
        while len(acknowledged) < 10:
            stopped.wait(0.01)
        at_least = set(acknowledged)
        back_up(dc1, tmp_path / "dc1.db", tmp_path / "attachments")
        stopped.set()
        sender.join()
        dc1.stop()
        aside = tmp_path / "aside"
        aside.mkdir()
        for name in ("node.db", "node.db-wal", "node.db-shm", "attachments"):
            if (dc1.data / name).exists():
                shutil.move(dc1.data / name, aside / name)
        shutil.copyfile(tmp_path / "dc1.db", dc1.data / "node.db")
        shutil.copytree(tmp_path / "attachments", dc1.data / "attachments")
        dc1.start()
        cluster.wait_together()
        cluster.wait_until_equal()
        assert shown(dc1) == shown(dc2) == set(acknowledged)
        dc2.stop()
        dc1.stop()
        shutil.rmtree(dc1.data)  # all nodes are lost
        shutil.rmtree(dc2.data)
        (dc1.data / "attachments").parent.mkdir()
        shutil.copyfile(tmp_path / "dc1.db", dc1.data / "node.db")
        shutil.copytree(tmp_path / "attachments", dc1.data / "attachments")
        dc1.start()
        kept = shown(dc1)
        assert at_least <= kept <= set(acknowledged)
        dc2.start()
        cluster.wait_until_equal()
        assert shown(dc2) == kept
