"""The sweep of orphans that crashes have left in the attachment store."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.replication import timing
from replicator.replication.bodies.upkeep.orphan_sweep import OrphanSweep
from replicator.store.attachments.files import StepOutcome
from tests.replication.bodies.large_messages import LOGO, bodies, check_holders, contents, message, save
from tests.replication.cluster import Node, cluster


async def sweep(node: Node) -> None:
    """Run the first sweep after a start to its end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(OrphanSweep(node.store).run)
        await trio.sleep(timing.ORPHAN_SWEEP_FIRST_S + 60)
        nursery.cancel_scope.cancel()


async def test_orphans_of_a_crash_are_swept_after_the_start(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        await save(nodes["dc1"], message(1))
        construction = nodes["dc1"].store.attachments.build()
        construction.write(b"half of it")
        assert nodes["dc1"].store.attachments.link(hashlib.sha256(LOGO).digest()) is not None
        await nodes.stop("dc1")
        await nodes.start("dc1")
        node = nodes["dc1"]
        assert len(contents(node)) == 2
        await sweep(node)
        assert len(contents(node)) == 1
        await check_holders(node)
        assert await bodies(node) == {1: message(1)}


@pytest.mark.parametrize(
    "statement", ["UPDATE attachment SET hash = x'0102'", "UPDATE attachment SET holder = 'a', kept = 1"]
)
async def test_damaged_attachment_row_does_not_end_the_node(
    tmp_path: Path, autojump_clock: MockClock, statement: str
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        await save(nodes["dc1"], message(1))
        nodes["dc1"].damage(statement)
        await sweep(nodes["dc1"])


async def test_files_that_a_failing_disk_kept_are_swept_later(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        attachments = node.store.attachments

        def ill(_: str) -> StepOutcome:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            async with node.mail.receive() as sink:  # two attachments, of which the first is whole
                await sink.write(message(1).removesuffix(b"--\r\n") + b"\r\n\r\n" + b"x" * 200_000)
                assert contents(node)
                patch.setattr(attachments.files, "remove_file", ill)
        assert attachments.in_flight() == frozenset()
        await sweep(node)
        assert contents(node) == []
