"""A directory of attachments that hangs, as on a file server that is away: a pipe without a writer stands for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from replicator.mailstore import read_all
from replicator.replication import timing
from tests.replication.bodies.large_messages import contents, message, save
from tests.replication.cluster import cluster


async def test_a_read_that_hangs_keeps_neither_a_client_nor_the_end_of_the_node(
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
                text = await nodes["dc1"].mail.read_body((await nodes["dc1"].messages())[0])
                assert await read_all(text) == message(1), "another node has it"
                assert content.is_fifo(), "what does not answer is not written to"
                monkeypatch.setattr(timing, "ATTACHMENTS_READ_TIMEOUT_S", 1000)
                with trio.move_on_after(0.1) as scope:
                    await read_all(text)
                assert scope.cancelled_caught
                await nodes.stop("dc1")
        finally:  # the threads that were left behind
            os.close(os.open(pipe, os.O_RDWR))
