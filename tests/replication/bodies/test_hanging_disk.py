"""A directory of attachments that hangs, as on an absent file server. A pipe without a writer stands for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from replicator.mail.mailstore import read_all
from replicator.replication import timing
from tests.replication.bodies.large_messages import contents, message, save
from tests.replication.cluster import cluster


async def test_hanging_read_blocks_neither_a_client_nor_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "ATTACHMENTS_READ_TIMEOUT_S", 0.2)
    async with cluster(tmp_path, None, 2) as nodes:
        await save(nodes["dc1"], message(1))
        await nodes.converged()
        (content,), pipe = contents(nodes["dc1"]), tmp_path / "pipe"
        content.unlink()
        os.mkfifo(pipe)
        content.hardlink_to(pipe)
        try:
            with trio.fail_after(20):
                body = await nodes["dc1"].mail.read_body((await nodes["dc1"].messages())[0])
                assert await read_all(body) == message(1), "another node has the attachment"
                assert content.is_fifo(), "a file that hangs is not repaired"
                monkeypatch.setattr(timing, "ATTACHMENTS_READ_TIMEOUT_S", 1000)
                with trio.move_on_after(0.1) as scope:
                    await read_all(body)
                assert scope.cancelled_caught
                await nodes.stop("dc1")
        finally:  # release the threads that still read
            os.close(os.open(pipe, os.O_RDWR))
