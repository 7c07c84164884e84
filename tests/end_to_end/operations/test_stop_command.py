"""A node that an operator ends by `replicator stop`: in order, with its doors, and seen to be gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import Cluster, Node
from tests.end_to_end.helpers.doors import doors_of, has_ended
from tests.end_to_end.helpers.ledger import log_in
from tests.notify_socket import NotifySocket

COMMAND_TIMEOUT_S = 120.0


def replicator(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "replicator", *arguments]
    return subprocess.run(line, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False, text=True)


def config(cluster: Cluster) -> str:
    return str(cluster.directory / "dc1.toml")


def url(node: Node) -> str:
    host, port = node.address("http")
    return f"http://{host}:{port}"


@pytest.mark.parametrize("doors", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_node_ends_in_order_and_is_gone_when_the_command_returns(tmp_path: Path, doors: int) -> None:
    extra = f"[workers]\ndoors = {doors}\n"
    with Cluster(tmp_path, ["alice"], size=2, copies=1, extra=extra) as cluster, ExitStack() as stack:
        node = cluster.nodes[0]
        alice = log_in(node, "alice")
        stack.callback(alice.shutdown)
        assert alice.append("INBOX", "", "", b"Subject: last\r\n\r\nlast")[0] == "OK"
        log, processes = node.log_tail(), doors_of(node)
        assert len(processes) == doors
        ended = replicator("stop", "--config", config(cluster))
        assert (ended.returncode, ended.stderr) == (0, "")
        first, last = ended.stdout.splitlines()
        assert first.startswith("dc1 is stopping; 1 session ends")
        assert last.startswith("dc1 has ended, after ")
        assert all(has_ended(process) for process in processes)
        assert node.wait_ended() == 0
        assert b"BYE [UNAVAILABLE]" in alice.readline()
        assert node.log_tail() == log, "nothing to warn of"

        node.start()
        again = log_in(node, "alice")
        stack.callback(again.shutdown)
        assert again.select("INBOX") == ("OK", [b"1"])


@pytest.mark.long
def test_from_elsewhere_the_node_answers_no_more(tmp_path: Path) -> None:
    with Cluster(tmp_path, ["alice"], size=1, copies=1) as cluster:
        node = cluster.nodes[0]
        ended = replicator("stop", "--json", "--url", url(node))
        assert (ended.returncode, ended.stderr) == (0, "")
        told = json.loads(ended.stdout)
        assert told.pop("took_s") > 0
        assert told == {
            "node": "dc1", "sessions": 0, "behind": [], "managed": False, "seen": False, "started_anew": False,
        }  # fmt: skip
        assert node.wait_ended() == 0
        for name in (["--url", url(node)], ["--config", config(cluster)]):
            again = replicator("stop", *name)
            assert (again.returncode, again.stdout) == (1, "")
            assert "is the node running?" in again.stderr


@pytest.mark.long
def test_clients_are_sent_elsewhere_first_for_a_time(tmp_path: Path) -> None:
    with Cluster(tmp_path, ["alice"], size=1, copies=1) as cluster, ExitStack() as stack:
        node = cluster.nodes[0]
        alice = log_in(node, "alice")
        stack.callback(alice.shutdown)
        ended = replicator("stop", "--drain", "0.5", "--config", config(cluster))
        assert (ended.returncode, ended.stderr) == (0, "")
        lines = ended.stdout.splitlines()
        assert lines[:4] == [
            "dc1 calls itself unhealthy, so that balancers send new clients to other nodes",
            "waiting for 1 session",
            "0.5 s are over",
            "dc1 is stopping; 1 session ends",
        ]
        assert node.wait_ended() == 0

        node.start()
        ended = replicator("stop", "--drain", "60", "--config", config(cluster))
        assert "dc1 can be stopped\ndc1 is stopping\ndc1 has ended, after " in ended.stdout
        assert node.wait_ended() == 0


PROGRAM = [sys.executable, "-m", "replicator", "node"]


@contextmanager
def supervised(file: Path, notify: NotifySocket, runs: int) -> Iterator[Sequence[subprocess.Popen[str]]]:
    """Run the node as a service manager does that starts it anew, so many times in all."""
    processes = list[subprocess.Popen[str]]()
    is_over, first = threading.Event(), threading.Event()

    def supervise() -> None:
        for _ in range(runs):
            with (file.parent / "log").open("ab") as log:
                process = subprocess.Popen(
                    [*PROGRAM, "--config", str(file)],
                    env={**os.environ, "NOTIFY_SOCKET": notify.address},
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            processes.append(process)
            assert process.stdout is not None
            if process.stdout.readline() == "ready\n":
                first.set()
            process.wait()
            process.stdout.close()
            if is_over.is_set():
                return

    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    try:
        assert first.wait(COMMAND_TIMEOUT_S)
        yield processes
    finally:
        is_over.set()
        processes[-1].send_signal(signal.SIGTERM)
        supervisor.join()


@pytest.mark.long
@pytest.mark.parametrize("anew", [True, False])
def test_a_service_manager_that_starts_the_node_anew_is_named(tmp_path: Path, *, anew: bool) -> None:
    file = tmp_path / "dc1.toml"
    file.write_text('[node]\nid = "dc1"\n', "utf-8")
    with (
        NotifySocket(str(tmp_path / "notify")) as notify,
        supervised(file, notify, runs=2 if anew else 1) as processes,
    ):
        assert notify.hear().startswith("READY=1")
        ended = replicator("stop", "--config", str(file))
        assert processes[0].returncode == 0
        assert notify.hear() == "STOPPING=1"
        assert "dc1 has ended, after " in ended.stdout
        assert "a service manager has started it, and may start it anew" in ended.stdout
        assert (ended.returncode, bool(ended.stderr)) == (int(anew), anew)
        if anew:
            assert "dc1: its service manager has started the node anew" in ended.stderr
            assert "`systemctl stop mail-replicator@dc1`" in ended.stderr
            assert len(processes) == 2
