"""Counts of attachments in metrics and status."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.commands import FetchPart, Parts
from tests.replication.bodies.large_messages import LOGO, answer_chunks, bodies, garble, message, save
from tests.replication.cluster import HEARTBEAT_S, Node, cluster
from tests.replication.metrics import value
from tests.replication.tasks.running import scrub

OTHER = LOGO[:100_000]


async def figures(node: Node, *names: str) -> list[float | None]:
    """Return these metrics after a refresh."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.metrics.run, HEARTBEAT_S)
        await trio.sleep(HEARTBEAT_S / 2)
        nursery.cancel_scope.cancel()
    return [value(node.registry, name) for name in names]


async def test_scrub_counts_each_attachment_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        for number, attachment in enumerate((LOGO, LOGO, OTHER)):
            await save(node, message(number, attachment))
        assert [math.isnan(one or 0) for one in await figures(node, "attachments", "attachments_bytes")] == [True, True]
        assert (await node.report.node_status()).attachments is None
        await scrub(node)
        assert await figures(node, "attachments", "attachments_bytes") == [2, len(LOGO + OTHER)]
        status = await node.report.node_status()
        assert (status.attachments, status.attachments_bytes) == (2, len(LOGO + OTHER))


async def test_lost_body_reported_by_two_nodes_is_counted_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        lost = [Parts(bytes([number]) * 32, 1, b"") for number in range(2)]
        for sid in ("dc2", "dc3"):
            nodes["dc1"].coordinator.bodies.note_lost(lost, sid)
        assert value(nodes["dc1"].registry, "texts_lost_total") == 2


async def test_damaged_attachment_is_counted_until_it_is_healed(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "attachments_damaged_total", "attachments_to_heal", "attachments_healed_total"
    async with cluster(tmp_path, autojump_clock) as nodes:
        await save(nodes["dc1"], message(1))
        await nodes.converged()
        node = nodes["dc3"]
        garble(node)

        def slow(_: FetchPart) -> None:
            """Answer as usual, after the delay."""

        answer_chunks(monkeypatch, slow, delay_s=5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bodies, node)
            await trio.sleep(3)
            assert await figures(node, *names) == [1, 1, 0]
            assert (await node.report.node_status()).attachments_to_heal == 1
        await trio.sleep(60)
        assert await figures(node, *names) == [1, 0, 1]
