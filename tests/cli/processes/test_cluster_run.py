"""`cluster run` and `node` as real processes with real signals. Each wait is for a line of output or for an end."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import smtplib
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
import trio
import trio.testing

from replicator.cli.processes.cluster_files import ClusterNode, prepare
from replicator.cli.processes.cluster_processes import STOP_S, NodeProcess, run_processes

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
    """A list for the processes that a test starts. They and their children are killed after the test."""
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


@pytest.mark.long
def test_cluster_stops_and_starts_again_with_its_mail(tmp_path: Path, running: list[Running]) -> None:
    cluster = start(running, "cluster", "run", "--nodes", 2, "--dir", tmp_path)
    cluster.read_until("^Ctrl-C stops")
    passwords = dict(line.split() for line in (tmp_path / "passwords.txt").read_text().splitlines())
    for user, password in passwords.items():
        assert re.search(rf"{user}\W+{password}", cluster.seen)
    deliver = re.search(r"^  (python3 -c .*)$", cluster.seen, re.MULTILINE)
    assert deliver is not None
    subprocess.run(deliver[1].replace("python3", sys.executable, 1), shell=True, check=True)
    twice = start(running, "cluster", "run", "--dir", tmp_path)
    assert (twice.finish(), "is already running" in twice.seen) == (1, True)
    os.killpg(cluster.process.pid, signal.SIGINT)  # as a terminal sends it on Ctrl-C
    os.kill(cluster.process.pid, signal.SIGINT)  # as make then sends it once more
    assert cluster.finish() == 0
    assert "killed" not in cluster.seen
    assert re.findall(r"(\w+): the node is stopping$", cluster.seen, re.MULTILINE) == ["SIGTERM", "SIGTERM"]

    again = start(running, "cluster", "run", "--dir", tmp_path)
    again.read_until("^Ctrl-C stops")
    configs = [argument for node in (1, 2) for argument in ("--config", tmp_path / f"dc{node}.toml")]
    status = start(running, "status", *configs, "--user", "alice", "--json")
    assert status.finish() == 0
    document = json.loads(status.seen)
    assert [box["messages"] for node in document["nodes"] for box in node["mailboxes"]] == [1, 1]
    again.process.terminate()
    assert again.finish() == 0


@pytest.mark.long
def test_cluster_under_nohup_outlives_the_terminal(tmp_path: Path, running: list[Running]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which the process inherits
    try:
        cluster = start(running, "cluster", "run", "--nodes", 1, "--dir", tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    cluster.read_until("^Ctrl-C stops")
    ignored = re.search(
        r"^SigIgn:\s*([0-9a-f]+)$", Path(f"/proc/{cluster.process.pid}/status").read_text(), re.MULTILINE
    )
    assert ignored is not None
    assert int(ignored[1], 16) & 1 << (signal.SIGHUP - 1)
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.finish() == 0


@pytest.mark.long
def test_no_node_outlives_a_killed_cluster(tmp_path: Path, running: list[Running]) -> None:
    cluster = start(running, "cluster", "run", "--nodes", 2, "--dir", tmp_path)
    cluster.read_until("^Ctrl-C stops")
    nodes = cluster.children()
    assert len(nodes) == 2
    assert all(re.search(rf"^ dc\d .* {node.pid} ", cluster.seen, re.MULTILINE) for node in nodes), (
        "the table names the processes"
    )
    cluster.process.kill()
    cluster.finish()
    _, alive = psutil.wait_procs(nodes, timeout=WAIT_S)
    for orphan in alive:
        orphan.kill()
    assert not alive


def test_death_of_a_node_is_reported_and_the_others_go_on(tmp_path: Path, running: list[Running]) -> None:
    cluster = start(running, "cluster", "run", "--nodes", 2, "--dir", tmp_path)
    cluster.read_until("^Ctrl-C stops")
    first, second = cluster.children()
    first.kill()
    ended = cluster.read_until(r"^(dc\d) \| \d{4}-\S+Z WARNING \S+ the node has stopped, killed by SIGKILL; .*: (.*)$")
    assert ended[2] == f"{sys.executable} -m replicator node --config {tmp_path / ended[1]}.toml"
    assert second.is_running()
    second.kill()
    assert cluster.finish() == 1
    assert "all nodes have stopped" in cluster.seen


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
    assert f"checkpoints go to {node.config.checkpoint.url}\n" in process.seen
    lmtp = node.config.listen.lmtp
    assert lmtp is not None
    with smtplib.LMTP(lmtp.host, lmtp.port) as client:
        client.sendmail("me@example.org", ["alice"], b"Subject: x\r\n\r\n")
    process.process.send_signal(number)
    assert process.finish() == 0


def test_node_serves_metrics_for_prometheus(node: ClusterNode, running: list[Running]) -> None:
    process = start(running, "node", "--config", node.file)
    process.read_until("^ready$")
    listen = node.config.listen
    assert listen.lmtp is not None
    with smtplib.LMTP(listen.lmtp.host, listen.lmtp.port) as client:
        client.sendmail("me@example.org", ["alice"], b"Subject: x\r\n\r\n")
    with urlopen(f"http://{listen.http}/metrics", timeout=WAIT_S) as answer:
        text = answer.read().decode()
    for series in (
        'replicator_lmtp_deliveries_total{code="2xx"} 1.0',
        "replicator_imap_connections 0.0",
        "replicator_messages_added_total 1.0",
        "process_resident_memory_bytes ",
        "python_info{",
        'replicator_info{cluster="mail",',
        "replicator_mailboxes_mastered ",
    ):
        assert f"\n{series}" in text
    assert "_created" not in text
    process.process.terminate()
    assert process.finish() == 0


def test_node_ends_cleanly_on_a_signal_during_its_start(tmp_path: Path, running: list[Running]) -> None:
    """The configuration is a pipe, so the signal comes while the process waits to read it."""
    file = tmp_path / "dc1.toml"
    os.mkfifo(file)
    process = start(running, "node", "--config", file)
    with file.open("wb") as pipe:  # once the process reads
        process.process.send_signal(signal.SIGTERM)
        pipe.write(b'[node]\nid = "dc1"\n')
    assert process.finish() == 0
    assert "SIGTERM: the node is stopping" in process.seen
    assert "ready" not in process.seen.splitlines()


@pytest.mark.parametrize("when", ["during its start", "later"])
def test_hangup_makes_a_node_reload_and_does_not_end_it(tmp_path: Path, running: list[Running], when: str) -> None:
    file = tmp_path / "dc1.toml"
    if when == "later":
        file.write_text('[node]\nid = "dc1"\n', "utf-8")
        process = start(running, "node", "--config", file)
        process.read_until("^ready$")
        process.process.send_signal(signal.SIGHUP)
        process.read_until("the certificates were read again: there are none$")
    else:
        os.mkfifo(file)
        process = start(running, "node", "--config", file)
        with file.open("wb") as pipe:  # once the process reads
            process.process.send_signal(signal.SIGHUP)
            pipe.write(b'[node]\nid = "dc1"\n')
        process.read_until("^ready$")
    process.process.terminate()
    assert process.finish() == 0


def child_node() -> psutil.Process:
    """Return the node that is a child of this process, which may have other children from other tests."""
    [child] = [child for child in psutil.Process().children() if "--until-stdin-closes" in child.cmdline()]
    return child


async def test_second_signal_kills_unless_it_follows_at_once(
    node: ClusterNode, mock_clock: trio.testing.MockClock
) -> None:
    said: list[str] = []
    children: list[psutil.Process] = []
    ready, ended = trio.Event(), []

    def started(_: Sequence[NodeProcess]) -> None:
        children.append(child_node())
        ready.set()

    async def run() -> None:
        stopped = await run_processes(
            [node], say=lambda _, line: said.append(line), started=started, ending=lambda: ended.append(True)
        )
        assert stopped

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await ready.wait()
        [child] = children
        child.suspend()  # a node that does not end
        for wait_s in (0.0, 0.5, 0.4):
            mock_clock.jump(wait_s)
            os.kill(os.getpid(), signal.SIGTERM)
            await trio.testing.wait_all_tasks_blocked()
            assert (ended, "killing the node" in "".join(said)) == ([True], False)
        mock_clock.jump(0.2)
        os.kill(os.getpid(), signal.SIGTERM)
    assert "asked to stop a second time: killing the node" in "".join(said)
    assert said[-1].endswith("the node has stopped, killed by SIGKILL")


async def test_node_that_does_not_end_is_killed_after_a_timeout(
    node: ClusterNode, mock_clock: trio.testing.MockClock
) -> None:
    said: list[str] = []
    ending = trio.Event()

    def started(_: Sequence[NodeProcess]) -> None:
        child_node().suspend()
        os.kill(os.getpid(), signal.SIGTERM)

    async with trio.open_nursery() as nursery:
        run = partial(run_processes, [node], say=lambda _, line: said.append(line))
        nursery.start_soon(partial(run, started=started, ending=ending.set))
        await ending.wait()
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(STOP_S - 1)
        await trio.testing.wait_all_tasks_blocked()
        assert not any("kill" in line for line in said)
        mock_clock.jump(1)
    assert any("not stopped within 20 s: killing the node" in line for line in said)


def test_node_names_the_port_in_use(node: ClusterNode, running: list[Running]) -> None:
    imap = node.config.listen.imap
    assert imap is not None
    with socket.create_server((imap.host, imap.port)):
        process = start(running, "node", "--config", node.file)
        assert process.finish() == 1
    last = process.seen.splitlines()[-1]
    assert last.startswith(f"Error: {node.file}: ")
    assert "ready" not in process.seen.splitlines()


@pytest.mark.long
def test_unusable_data_directory_is_no_configuration_error(node: ClusterNode, running: list[Running]) -> None:
    data = node.config.node.data
    data.mkdir()
    with (data / "node.db.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start(running, "node", "--config", node.file)
        assert (process.finish(), "another process has it open" in process.seen) == (1, True)
    (data / "node.db.lock").unlink()
    data.rmdir()
    data.write_text("no directory")
    process = start(running, "node", "--config", node.file)
    assert (process.finish(), "File exists; check `node.data`" in process.seen) == (1, True)


def test_damaged_database_is_no_configuration_error(node: ClusterNode, running: list[Running]) -> None:
    node.config.node.data.mkdir()
    (node.config.node.data / "node.db").write_bytes(b"no database" * 1000)
    process = start(running, "node", "--config", node.file)
    assert (process.finish(), "the database is damaged: file is not a database; run `" in process.seen) == (1, True)


def test_node_with_a_broken_configuration_does_not_start(tmp_path: Path, running: list[Running]) -> None:
    file = tmp_path / "dc1.toml"
    file.write_text("[node]\n")
    process = start(running, "node", "--config", file)
    assert (process.finish(), f"Error: {file}:1: " in process.seen) == (2, True)
