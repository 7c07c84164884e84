"""Warnings about nodes that set `checkpoint.shared` for different object stores."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import MockClock

from replicator.config import Config
from tests.replication.cluster import Cluster, cluster


def use_own_stores(monkeypatch: pytest.MonkeyPatch, **shared: bool) -> None:
    """Give each node a directory of its own as its object store, and set `checkpoint.shared`."""
    usual = Cluster.config

    def config(nodes: Cluster, sid: str) -> Config:
        made = usual(nodes, sid)
        url = made.node.data.with_name(f"of-{sid}").as_uri()
        return replace(made, checkpoint=replace(made.checkpoint, url=url, shared=shared[sid]))

    monkeypatch.setattr(Cluster, "config", config)


async def warnings(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, *, shares_objects: bool = False
) -> list[str]:
    with caplog.at_level(logging.WARNING):
        async with cluster(tmp_path, clock, 2, shares_objects=shares_objects):
            pass
    return sorted(message for message in caplog.messages if "`checkpoint.shared`" in message)


async def test_both_nodes_warn_if_they_share_different_stores(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_own_stores(monkeypatch, dc1=True, dc2=True)
    at_dc2, at_dc1 = await warnings(tmp_path, autojump_clock, caplog)
    for line, peer, own in ((at_dc2, "dc1", "of-dc2"), (at_dc1, "dc2", "of-dc1")):
        assert line.startswith(f"{peer} and this node both set `checkpoint.shared`, but for different object stores")
        assert f"/{own};" in line


async def test_no_warning_if_one_node_shares_no_store(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_own_stores(monkeypatch, dc1=True, dc2=False)
    assert await warnings(tmp_path, autojump_clock, caplog) == []


async def test_no_warning_if_all_nodes_share_one_store(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    assert await warnings(tmp_path, autojump_clock, caplog, shares_objects=True) == []
