"""A delivery whose reply was lost is tried again under its GUID: OK still means that its text is on enough disks."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.replication import timing
from replicator.replication.convergence import fork_merge
from replicator.replication.writes.requests import SaveRequest
from replicator.store.bodies.body_rows import StoredBody, read_body
from replicator.store.db.queries import MailboxKey
from tests.replication.cluster import USER, Cluster, Node, cluster, until
from tests.replication.convergence.holding_up import end_transfers_late
from tests.replication.log.truncating import forget_log

STORED = StoredBody.of(b"delivered twice")


async def delivery(node: Node) -> SaveRequest:
    folder = await node.inbox()
    key = MailboxKey(USER, folder.mailbox_id, folder.uidvalidity)
    return SaveRequest(key, b"a delivery......", 1_000, (), STORED)


async def disks(nodes: Cluster) -> int:
    """How many have the text."""
    return sum(
        [
            await node.store.read(lambda reader: read_body(reader, STORED.content_hash)) is not None
            for node in nodes.all()
        ]
    )


async def test_a_master_that_has_taken_the_message_over_keeps_the_text_that_comes_again(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = end_transfers_late(monkeypatch)
    monkeypatch.setattr(timing, "BACKFILL_PATIENCE_S", 1000.0)
    async with cluster(tmp_path, autojump_clock, 2, start=["dc1"]) as nodes:
        await nodes["dc1"].save("first")
        await forget_log(nodes["dc1"])
        again = await delivery(nodes["dc1"])
        await nodes["dc1"].coordinator.carry_out(again)
        await nodes.stop("dc1")
        await nodes.start("dc1", "dc2")
        await nodes.linked()
        await nodes.converged()
        assert await disks(nodes) == 1
        await nodes["dc2"].coordinator.carry_out(again)
        assert await disks(nodes) == 2
        goes_on.set()


async def test_who_has_a_merge_that_shows_the_message_has_not_its_text(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three nodes that are asked for, two have come to the message by a merge, and one of them is told OK."""
    goes_on = end_transfers_late(monkeypatch)
    monkeypatch.setattr(timing, "BACKFILL_PATIENCE_S", 1000.0)
    monkeypatch.setattr(fork_merge, "SHORT_MODSEQ", 0)
    async with cluster(tmp_path, autojump_clock, 3, copies=3) as nodes:
        await nodes["dc1"].save("both")
        await nodes.converged()
        nodes.isolate("dc1")
        await nodes.linked(["dc1"], ["dc2", "dc3"])
        await nodes["dc1"].save("here", user="bob")
        await forget_log(nodes["dc1"])
        again = await delivery(nodes["dc1"])
        await nodes["dc1"].coordinator.carry_out(again)
        await nodes["dc2"].save("there")
        nodes.rejoin("dc1")
        await nodes.linked()
        await until(lambda: all(node.coordinator.state_transfer.is_running for node in nodes.all()[1:]))
        await nodes.converged()
        assert await disks(nodes) == 1
        heard = trio.Event()

        async def try_again() -> None:
            await nodes["dc2"].coordinator.carry_out(again)
            heard.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(try_again)
            await trio.sleep(10)
            assert await disks(nodes) == 3 or not heard.is_set()
            goes_on.set()
            await heard.wait()
            assert await disks(nodes) == 3
