"""The disk space that all messages being received may take together."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from replicator.errors import DiskFullError
from replicator.mail.mailstore import NewMessage
from tests.replication.bodies.large_messages import contents, message, save
from tests.replication.cluster import USER, cluster

FREE_BYTES = 500_000
HALF = message(1)[:300_000]


async def test_messages_being_received_take_at_most_half_of_the_free_space(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        node = nodes["dc1"]
        files = node.store.attachments.files
        monkeypatch.setattr(files, "free_bytes", lambda: FREE_BYTES)
        async with node.mail.receive() as first, node.mail.receive() as second:
            await first.write(HALF)
            with pytest.raises(DiskFullError, match="no room for all messages being received"):
                await second.write(HALF)
            assert len(contents(node)) == 1, "nothing is left of the second message, while its client still sends"
            await first.write(message(1)[300_000:])
            inbox = await node.mail.folder(USER, "INBOX")
            await node.mail.save(inbox, NewMessage(await first.finish()))
            assert await save(node, b"small") == 2
        assert await save(node, message(2)) == 3, "finished uploads take no room"
        monkeypatch.setattr(files, "free_bytes", lambda: None)
        assert await save(node, message(3, bytes(FREE_BYTES))) == 4
