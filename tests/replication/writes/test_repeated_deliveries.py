"""A delivery whose reply was lost is tried again under its GUID. OK still means that its body is on enough disks."""

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


async def copies_of_body(nodes: Cluster) -> int:
    """Return the number of nodes that have the body."""
    return sum(
        [
            await node.store.read(lambda reader: read_body(reader, STORED.content_hash)) is not None
            for node in nodes.all()
        ]
    )


async def test_master_that_adopted_a_message_keeps_its_redelivered_body(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfer_may_end = end_transfers_late(monkeypatch)
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
        assert await copies_of_body(nodes) == 1
        await nodes["dc2"].coordinator.carry_out(again)
        assert await copies_of_body(nodes) == 2
        transfer_may_end.set()


async def test_node_that_merged_a_message_without_its_body_is_no_copy(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of the three nodes that are needed got the message by a merge, and the client tries again at one of them."""
    transfer_may_end = end_transfers_late(monkeypatch)
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
        assert await copies_of_body(nodes) == 1
        heard = trio.Event()

        async def try_again() -> None:
            await nodes["dc2"].coordinator.carry_out(again)
            heard.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(try_again)
            await trio.sleep(10)
            assert await copies_of_body(nodes) == 3 or not heard.is_set()
            transfer_may_end.set()
            await heard.wait()
            assert await copies_of_body(nodes) == 3
