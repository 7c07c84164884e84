"""What docs/monitoring.md tells Prometheus, held against the metrics of a real node."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
import trio
import yaml

from replicator.cli.authority import Authority
from replicator.config import Address, ListenConfig, PeerConfig, default_config
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.end_to_end.helpers.pages import blocks

PROMTOOL = shutil.which("promtool")
CONFIGURATION, RULES = blocks("monitoring.md", "Prometheus", "yaml")


async def test_alerts_ask_for_metrics_that_a_node_has(tmp_path: Path) -> None:
    peer, http, away = (Address("127.0.0.1", port) for port in free_ports(3))
    authority = Authority.create(tmp_path, "tests")
    authority.issue("dc1")
    config = default_config("dc1", tmp_path, listen=ListenConfig(peer, http=http), peers=(PeerConfig("dc2", away),))
    with trio.fail_after(60):
        async with running([replace(config, tls=authority.files("dc1"))]):
            text = await trio.to_thread.run_sync(lambda: urlopen(f"http://{http}/metrics").read().decode())
    had = set(re.findall(r"^(replicator_\w+)(?:\{| )", text, re.MULTILINE))
    [group] = yaml.safe_load(RULES)["groups"]
    asked = {name for rule in group["rules"] for name in re.findall(r"replicator_\w+", rule["expr"])}
    assert len(asked) > 5
    assert asked <= had


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
def test_prometheus_finds_no_fault_with_the_page(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    (tmp_path / "prometheus.yml").write_text(CONFIGURATION, "utf-8")
    (tmp_path / "mail-replicator.rules.yml").write_text(RULES, "utf-8")
    (tmp_path / "mail-replicator.token").touch()
    Authority.create(tmp_path / "ca", "tests")
    shutil.copy(tmp_path / "ca" / "ca.pem", tmp_path)
    command = [PROMTOOL, "check", "config", "--lint-fatal", "prometheus.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(yaml.safe_load(RULES)['groups'][0]['rules'])} rules found" in done.stdout
