"""Real processes, real signals. Every wait is for a line or an end, and pytest's caller bounds them all."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import smtplib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from replicator.cli.cluster_files import ClusterNode, prepare

WAIT_S = 60


class Running:
    """A `replicator` process whose output is read as it comes."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "replicator", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0
        )
        self.seen = ""

    def read_until(self, pattern: str) -> re.Match[str]:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while (match := re.search(pattern, self.seen, re.MULTILINE)) is None:
            ready, _, _ = select.select([descriptor], [], [], WAIT_S)
            chunk = os.read(descriptor, 65_536) if ready else b""
            assert chunk, f"no {pattern!r} in:\n{self.seen}"
            self.seen += chunk.decode()
        return match

    def finish(self) -> int:
        rest, _ = self.process.communicate(timeout=WAIT_S)
        self.seen += rest.decode()
        return self.process.returncode

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()


@pytest.fixture
def running() -> Iterator[list[Running]]:
    """What a test starts and puts here is gone afterwards."""
    started: list[Running] = []
    yield started
    for each in started:
        if each.process.poll() is None:
            for child in each.children():
                child.kill()
            each.process.kill()
            each.finish()


def start(running: list[Running], *arguments: object) -> Running:
    running.append(Running(*arguments))
    return running[-1]


def test_cluster_runs_ends_and_comes_back_with_its_mail(tmp_path: Path, running: list[Running]) -> None:
    cluster = start(running, "cluster", "run", "--nodes", 2, "--dir", tmp_path)
    cluster.read_until("^Ctrl-C ends")
    passwords = dict(line.split() for line in (tmp_path / "passwords.txt").read_text().splitlines())
    for user, password in passwords.items():
        assert re.search(rf"{user}\W+{password}", cluster.seen)
    deliver = re.search(r"^  (python3 -c .*)$", cluster.seen, re.MULTILINE)
    assert deliver is not None
    subprocess.run(deliver[1].replace("python3", sys.executable, 1), shell=True, check=True)
    twice = start(running, "cluster", "run", "--dir", tmp_path)
    assert (twice.finish(), "runs already" in twice.seen) == (1, True)
    os.killpg(cluster.process.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
    assert cluster.finish() == 0
    assert re.findall(r"(\w+): the node ends$", cluster.seen, re.MULTILINE) == ["SIGTERM", "SIGTERM"]

    again = start(running, "cluster", "run", "--dir", tmp_path)
    again.read_until("^Ctrl-C ends")
    configs = [argument for node in (1, 2) for argument in ("--config", tmp_path / f"dc{node}.toml")]
    status = start(running, "status", *configs, "--user", "alice", "--json")
    assert status.finish() == 0
    document = json.loads(status.seen)
    assert [box["messages"] for node in document["nodes"] for box in node["mailboxes"]] == [1, 1]
    again.process.terminate()
    assert again.finish() == 0


def test_no_node_outlives_a_cluster_that_is_killed(tmp_path: Path, running: list[Running]) -> None:
    cluster = start(running, "cluster", "run", "--nodes", 2, "--dir", tmp_path)
    cluster.read_until("^Ctrl-C ends")
    nodes = cluster.children()
    assert len(nodes) == 2
    cluster.process.kill()
    cluster.finish()
    _, alive = psutil.wait_procs(nodes, timeout=WAIT_S)
    for orphan in alive:
        orphan.kill()
    assert not alive


def test_node_that_dies_is_said_and_the_others_go_on(tmp_path: Path, running: list[Running]) -> None:
    cluster = start(running, "cluster", "run", "--nodes", 2, "--dir", tmp_path)
    cluster.read_until("^Ctrl-C ends")
    first, second = cluster.children()
    first.kill()
    cluster.read_until(r"^dc\d \| the node has ended, killed by SIGKILL")
    assert second.is_running()
    second.kill()
    assert cluster.finish() == 1
    assert "all nodes have ended" in cluster.seen


@pytest.fixture
def node(tmp_path: Path) -> ClusterNode:
    [node] = prepare(tmp_path, 1)
    fast = node.file.read_text().replace('heartbeat = "1s"', 'heartbeat = "20ms"').replace('"4s"', '"50ms"')
    node.file.write_text(fast)
    return node


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_node_ends_cleanly_on_a_signal(node: ClusterNode, running: list[Running], number: signal.Signals) -> None:
    process = start(running, "node", "--config", node.file)
    process.read_until("^ready$")
    lmtp = node.config.listen.lmtp
    assert lmtp is not None
    with smtplib.LMTP(lmtp.host, lmtp.port) as client:
        client.sendmail("me@example.org", ["alice"], b"Subject: x\r\n\r\n")
    process.process.send_signal(number)
    assert process.finish() == 0


def test_node_says_which_port_is_taken(node: ClusterNode, running: list[Running]) -> None:
    imap = node.config.listen.imap
    assert imap is not None
    with socket.create_server((imap.host, imap.port)):
        process = start(running, "node", "--config", node.file)
        assert process.finish() == 1
    last = process.seen.splitlines()[-1]
    assert last.startswith(f"Error: {node.file}: ")
    assert "ready" not in process.seen.splitlines()


def test_node_with_a_broken_configuration(tmp_path: Path, running: list[Running]) -> None:
    file = tmp_path / "dc1.toml"
    file.write_text("[node]\n")
    process = start(running, "node", "--config", file)
    assert (process.finish(), f"Error: {file}:1: " in process.seen) == (2, True)
