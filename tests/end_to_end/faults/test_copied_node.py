"""A second process of a node, on a copy of its directory: beside the node, and after the node has ended."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import Cluster, Node
from benchmarks.clusters.proxy import HOST
from replicator.config import MastershipConfig
from tests.end_to_end.helpers.in_process import free_ports
from tests.end_to_end.helpers.mail_clients import deliver, imap, until

END_WITHIN_S = 30
REPLACED_AFTER_S = 2 * MastershipConfig().timeout_s  # a run that is away for longer may be replaced


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "nodes", ["alice"]) as started:
        deliver(started.nodes[0], [b"Subject: before\r\n\r\nx\r\n"], ["alice"])
        started.wait_until_equal()
        yield started


@contextmanager
def copied(cluster: Cluster, sid: str, to: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that runs a copy of the node's directory, with ports of its own; kill it in the end."""
    shutil.copytree(cluster.directory, to, ignore=shutil.ignore_patterns("http.sock"))  # no socket can be copied
    config = to / f"{sid}.toml"
    ports = free_ports(4)
    listen = re.compile(r"^(peer|imap|lmtp|http) = .*$", re.MULTILINE)
    config.write_text(listen.sub(lambda door: f'{door[1]} = "{HOST}:{ports.pop()}"', config.read_text()))
    command = [sys.executable, "-m", "replicator", "node", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def link_states(cluster: Cluster) -> dict[str, object]:
    """Return the state of each node's links, without measured values."""
    states: dict[str, object] = {}
    for node in cluster.nodes:
        links = node.get("/api/v1/status")["links"]
        assert isinstance(links, list)
        states[node.sid] = [(link["peer"], link["up"], link["since_ms"]) for link in links]
    return states


def wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        pytest.fail(f"the copy ended: {process.communicate(timeout=END_WITHIN_S)[1]}")


@pytest.mark.long
@pytest.mark.parametrize("sid", ["dc1", "dc3"])
def test_copy_ends_with_an_error_beside_the_running_node(cluster: Cluster, tmp_path: Path, sid: str) -> None:
    before = link_states(cluster)
    with copied(cluster, sid, tmp_path / "copy") as process:
        said = process.communicate(timeout=END_WITHIN_S)[1]
    assert process.returncode == 1, said
    last = said.splitlines()[-1]
    assert f"copy/{sid}.toml: the node cannot run: dc" in last
    assert f" refuses the link: {sid} already runs as {sid}." in last
    assert last.endswith("stop one of the two; another node needs its own `node.id` and an empty `node.data`")
    assert link_states(cluster) == before
    deliver(cluster.node(sid), [b"Subject: after\r\n\r\nx\r\n"], ["alice"])
    cluster.wait_until_equal()


@pytest.mark.long
def test_copy_takes_over_when_the_node_has_ended(cluster: Cluster, tmp_path: Path) -> None:
    cluster.node("dc1").kill()
    with copied(cluster, "dc1", tmp_path / "copy") as process:
        wait_ready(process)
        cluster.wait_until(
            lambda statuses: all(status["component"] == ["dc1", "dc2", "dc3"] for status in statuses), 30
        )
        deliver(cluster.node("dc2"), [b"Subject: meanwhile\r\n\r\nx\r\n"], ["alice"])
        process.terminate()
        assert process.wait(END_WITHIN_S) == 0
    cluster.node("dc1").start()
    cluster.wait_together()
    cluster.wait_until_equal()
    with imap(cluster.node("dc1")) as client:
        until(client, lambda: client.uid("SEARCH", "SUBJECT", "meanwhile")[1] != [b""])


@pytest.mark.long
def test_paused_node_ends_when_a_copy_has_taken_over(cluster: Cluster, tmp_path: Path) -> None:
    node, others = cluster.node("dc1"), [cluster.node("dc2"), cluster.node("dc3")]
    began = time.time()
    node.pause()
    with copied(cluster, "dc1", tmp_path / "copy") as process:
        wait_ready(process)
        deadline = time.monotonic() + END_WITHIN_S
        while not all(
            REPLACED_AFTER_S < since_s < time.time() - began and is_up for since_s, is_up in links_to_dc1(others)
        ):
            assert time.monotonic() < deadline
        node.resume()
        assert node.wait_ended() == 1
        assert "the node cannot run" in node.log_tail()
        assert all(is_up for _, is_up in links_to_dc1(others))
        process.terminate()
        assert process.wait(END_WITHIN_S) == 0


def links_to_dc1(nodes: list[Node]) -> list[tuple[float, bool]]:
    """Return the seconds for which each node's link to dc1 has been up or down, and whether it is up."""
    found = []
    for node in nodes:
        links = node.get("/api/v1/status")["links"]
        assert isinstance(links, list)
        found += [(time.time() - link["since_ms"] / 1000, link["up"]) for link in links if link["peer"] == "dc1"]
    return found
