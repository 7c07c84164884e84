"""The command line at a node's own socket, which only the node's user can open."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import Cluster
from replicator.config import Config, default_config
from tests.end_to_end.helpers.in_process import running

SOCKET = "http.sock"


def status(config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "replicator", "status", "--json", "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def sid_of(answer: subprocess.CompletedProcess[str]) -> str:
    assert (answer.returncode, answer.stderr) == (0, "")
    [node] = json.loads(answer.stdout)["nodes"]
    return str(node["status"]["sid"])


@pytest.mark.long
def test_commands_reach_a_node_that_listens_nowhere(tmp_path: Path) -> None:
    with Cluster(tmp_path, ["alice"], "sh -c 'umask 000; exec \"$@\"' sh", size=1, copies=1) as cluster:
        [node] = cluster.nodes
        node.stop()
        assert not (node.data / SOCKET).exists()
        config = tmp_path / "dc1.toml"
        lines = [line for line in config.read_text("utf-8").splitlines() if not line.startswith("http = ")]
        config.write_text("\n".join(lines), "utf-8")
        node.start()
        assert sid_of(status(config)) == "dc1"
        assert stat.filemode((node.data / SOCKET).stat().st_mode) == "srw-------"
        node.kill()
        down = status(config)
        assert (down.returncode, f"no answer at unix:{node.data / SOCKET} (Connection refused)" in down.stderr) == (
            1,
            True,
        )
        node.start()  # in place of the socket that the killed node has left
        assert sid_of(status(config)) == "dc1"


async def test_node_runs_without_its_socket_where_the_path_is_too_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config: Config = default_config("dc1", tmp_path / ("long" * 30))
    async with running([config]):
        assert not (config.node.data / SOCKET).exists()
    assert "no socket here, so `--config` leads to `listen.http`: AF_UNIX path too long" in caplog.text
