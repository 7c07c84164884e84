"""Backups of running nodes, restored while their cluster goes on, or after all of it was lost."""

from __future__ import annotations

import imaplib
import shutil
import signal
import smtplib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.clients.wire import connect_lmtp
from benchmarks.clients.wire import deliver as deliver_by
from benchmarks.clusters.cluster import PASSWORD, Cluster, Node
from tests.end_to_end.helpers.ledger import Cache, log_in
from tests.end_to_end.helpers.mail_clients import deliver

LARGE = 300_000  # octets: an attachment


def mail(token: str, size: int = 0) -> bytes:
    head = f"Message-ID: <{token}@example.org>\r\nContent-Type: application/octet-stream\r\n\r\n"
    return head.encode() + f"{token} xxxxxxxxx\r\n".encode() * (size // (len(token) + 12) + 1)


def shown(node: Node, cache: Cache | None = None) -> set[str]:
    client = log_in(node, "alice")
    found = {message.token for message in (cache or Cache(node.sid)).select(client)}
    client.logout()
    return found


def words(command: str, node: Node, *options: str) -> list[str]:
    return [sys.executable, "-m", "replicator", command, "--config", str(node.data.with_suffix(".toml")), *options]


def run(command: str, node: Node, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words(command, node, *options), capture_output=True, text=True, check=False, timeout=120)


@contextmanager
def under_load(node: Node, name: str, acknowledged: list[str]) -> Iterator[None]:
    """Deliver mail while the block runs, each tenth with an attachment; ten before it begins."""
    stopped, began = threading.Event(), threading.Event()

    def deliver_on() -> None:
        with connect_lmtp(node.address("lmtp")) as connection:
            while not stopped.is_set():
                token = f"{name}.{len(acknowledged)}"
                deliver_by(connection, ["alice"], mail(token, LARGE if len(acknowledged) % 10 == 3 else 0))
                acknowledged.append(token)
                if len(acknowledged) == 10:
                    began.set()

    sender = threading.Thread(target=deliver_on)
    sender.start()
    assert began.wait(60)
    try:
        yield
    finally:
        stopped.set()
        sender.join()


@contextmanager
def begun(node: Node, to: Path) -> Iterator[subprocess.Popen[str]]:
    """Begin a backup, and yield once it writes."""
    with subprocess.Popen(words("backup", node, "--to", str(to)), stderr=subprocess.PIPE, text=True) as backup:
        while not (to / "manifest.jsonl.unfinished").exists() and not (to / "manifest.jsonl").exists():
            assert backup.poll() is None
        yield backup


def expunge_first(node: Node, count: int) -> set[str]:
    client = log_in(node, "alice")
    messages = Cache(node.sid).select(client)[:count]
    client.uid("STORE", ",".join(str(message.uid) for message in messages), "+FLAGS", "(\\Deleted)")
    client.expunge()
    client.logout()
    return {message.token for message in messages}


@pytest.mark.long
def test_restored_node_becomes_equal_and_no_uid_is_used_twice(tmp_path: Path) -> None:
    here, there, backup = list[str](), list[str](), tmp_path / "backup"
    with Cluster(tmp_path / "nodes", ["alice"], size=3) as cluster:
        dc1, dc2, dc3 = cluster.nodes
        caches = {node.sid: Cache(node.sid) for node in cluster.nodes}
        with under_load(dc1, "here", here), under_load(dc2, "there", there):
            at_least = {*here, *there[:5]}
            done = run("backup", dc1, "--to", str(backup))
            assert done.returncode == 0, done.stderr
            refused = run("restore", dc1, "--from", str(backup), "--replace")
            assert (refused.returncode, "another process has it open" in refused.stderr) == (1, True)
        deliver(dc1, [mail(f"later.{number}", LARGE * (number % 2)) for number in range(4)], ["alice"])
        cluster.wait_until_equal()
        expunged = expunge_first(dc3, 3)
        cluster.wait_until_equal()
        for node in cluster.nodes:
            shown(node, caches[node.sid])
        dc1.kill()
        deliver(dc3, [mail("meanwhile")], ["alice"])
        shutil.rmtree(dc1.data)
        done = run("restore", dc1, "--from", str(backup))
        assert done.returncode == 0, done.stderr
        dc1.start()
        cluster.wait_together()
        cluster.wait_until_equal()
        deliver(dc1, [mail("after")], ["alice"])
        cluster.wait_until_equal()
        everything = {*here, *there, *(f"later.{number}" for number in range(4)), "meanwhile", "after"} - expunged
        assert at_least <= everything | expunged
        for node in cluster.nodes:
            assert shown(node, caches[node.sid]) == everything
        checked = run("scrub", dc1)
        assert checked.returncode == 0, checked.stderr


def serves(node: Node) -> bool:
    client = imaplib.IMAP4(*node.address("imap"))
    with suppress(imaplib.IMAP4.error):
        client.login("alice", PASSWORD)
    is_in = client.state == "AUTH"
    client.logout()
    return is_in


@pytest.mark.long
def test_restored_node_serves_nobody_before_it_meets_its_cluster(tmp_path: Path) -> None:
    acknowledged, backup = list[str](), tmp_path / "backup"
    with Cluster(tmp_path / "nodes", ["alice"], size=2) as cluster:
        dc1, dc2 = cluster.nodes
        with under_load(dc1, "load", acknowledged):
            at_least = {*acknowledged}
            assert run("backup", dc1, "--to", str(backup)).returncode == 0
        cluster.wait_until_equal()
        cache = Cache("dc1")
        assert shown(dc1, cache) == {*acknowledged}
        dc2.stop()
        dc1.stop()
        done = run("restore", dc1, "--from", str(backup), "--replace")
        assert done.returncode == 0, done.stderr
        dc1.start()
        assert not serves(dc1)
        with smtplib.LMTP(*dc1.address("lmtp"), "localhost") as client, pytest.raises(smtplib.SMTPException) as refused:
            client.sendmail("a@example.org", ["alice"], mail("too early"))
        assert "451" in str(refused.value)
        dc2.start()
        cluster.wait_together()
        cluster.wait_until_equal()
        deliver(dc1, [mail("after")], ["alice"])
        assert shown(dc1, cache) == {*acknowledged, "after"}
        dc1.kill()
        dc2.kill()
        shutil.rmtree(dc1.data)  # all nodes are lost
        shutil.rmtree(dc2.data)
        assert run("restore", dc1, "--from", str(backup)).returncode == 0
        dc1.launch("--new-cluster")
        dc1.wait_ready()
        kept = shown(dc1)
        assert at_least <= kept <= {*acknowledged}
        dc2.start()
        cluster.wait_together()
        cluster.wait_until_equal()
        assert shown(dc2) == kept


@pytest.mark.long
def test_death_of_the_node_or_of_the_command_in_the_middle_of_a_backup(tmp_path: Path) -> None:
    with Cluster(tmp_path / "nodes", ["alice"], size=2) as cluster:
        dc1, _ = cluster.nodes
        sent = [f"mail{number}" for number in range(20)]
        deliver(dc1, [mail(token, LARGE) for token in sent], ["alice"])
        cluster.wait_until_equal()
        with begun(dc1, tmp_path / "killed") as command:
            command.send_signal(signal.SIGSTOP)
            is_complete = (tmp_path / "killed" / "manifest.jsonl").exists()
            command.kill()
        refused = run("restore", dc1, "--from", str(tmp_path / "killed"), "--check")
        assert is_complete or (refused.returncode, "there is no manifest.jsonl" in refused.stderr) == (1, True)
        deliver(dc1, [mail("after")], ["alice"])
        with begun(dc1, tmp_path / "backup") as command:
            dc1.kill()
            assert command.wait(120) == 0
        checked = run("restore", dc1, "--from", str(tmp_path / "backup"), "--check")
        assert checked.returncode == 0, checked.stderr
        dc1.start()
        cluster.wait_together()
        cluster.wait_until_equal()
        assert shown(dc1) == {*sent, "after"}
