"""A node whose log has an entry that a faulty node altered, with the digest that fits, becomes equal to the others."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.config import MastershipConfig
from replicator.replication import timing
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.log.apply import receive
from replicator.tasks import ResyncOptions
from resync.entry import Entry, MailAdd
from tests.replication.cluster import USER, Cluster, Node, cluster, until
from tests.replication.log.truncating import forget_log, logs_agree
from tests.replication.tasks.running import check_at, resync_at

RIGHT, WRONG = "please pay 100 EUR", "please pay 2000 EUR"


async def head_entry(node: Node) -> Entry:
    """Return the entry of INBOX's head, from the node's log."""
    key = MailboxKey.of(await node.inbox())
    chain = await node.store.read(partial(queries.chain_or_empty, key=key))
    assert chain.head is not None
    entry = await node.store.read(partial(queries.entry_at, dot=chain.head))
    assert entry is not None
    return entry


async def plant(nodes: Cluster, *, flags: tuple[str, ...] = (), body: str = RIGHT) -> Entry:
    """Save two messages at dc1, and alter the second one's entry on its way to dc3; return it as dc1 numbered it."""
    await nodes["dc1"].save("first")
    await nodes.converged()
    nodes.isolate("dc3")
    await nodes.linked(["dc1", "dc2"], ["dc3"])
    await nodes["dc1"].save(RIGHT)
    entry = await head_entry(nodes["dc1"])
    (add,) = entry.changes
    assert isinstance(add, MailAdd)
    stored = StoredBody.of(body.encode())
    altered = add._replace(flags=flags, size_bytes=len(body), content_hash=stored.content_hash)
    forged = replace(entry, changes=(altered,))
    assert forged.history == forged.digest() != entry.history
    await nodes["dc3"].store.write(partial(receive, entry=forged, bodies=[stored]))
    nodes.rejoin("dc3")
    await nodes.linked()
    return entry


async def forget_logs(nodes: Cluster) -> None:
    """Let the altered entry leave the logs: until then, these do not lead to what the nodes show."""
    await logs_agree(nodes)
    for node in nodes.all():
        await forget_log(node)


@pytest.mark.parametrize("writer", ["dc1", "dc2"])
@pytest.mark.parametrize(("flags", "body"), [(("\\Seen",), RIGHT), ((), WRONG)], ids=["flags", "body"])
async def test_next_entry_shows_that_an_entry_was_altered(
    tmp_path: Path, autojump_clock: MockClock, flags: tuple[str, ...], body: str, writer: str
) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        entry = await plant(nodes, flags=flags, body=body)
        await nodes[writer].save("last")
        await nodes.converged()
        for node in nodes.all():
            assert await node.bodies() == {1: "first", 2: RIGHT, 3: "last"}
            assert [message.flags for message in await node.messages()] == [frozenset()] * 3
        assert (await head_entry(nodes["dc1"])).predecessors == (entry.dot,)
        await forget_logs(nodes)


async def test_new_node_becomes_equal_although_it_gets_the_altered_entry(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await plant(nodes, body=WRONG)
        await nodes["dc1"].save("last")
        await nodes.converged()
        await nodes.stop("dc2")
        nodes.erase("dc2")
        nodes.network.cut(("dc1", "dc2"))
        await nodes.start("dc2")
        await until(lambda: nodes["dc2"].store.context == nodes["dc3"].store.context)
        nodes.network.mend(("dc1", "dc2"))
        await nodes.linked()
        await nodes.converged()
        assert await nodes["dc2"].bodies() == {1: "first", 2: RIGHT, 3: "last"}
        await forget_logs(nodes)


@pytest.mark.long
async def test_altered_head_is_reported_once_for_each_peer_until_resync_corrects_it(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A correction makes the entry what it was, with the history that all other nodes know: nothing is numbered."""
    calm = MastershipConfig(heartbeat_s=10.0, timeout_s=40.0)  # long virtual time: each heartbeat costs real time
    async with cluster(tmp_path, autojump_clock, mastership=calm) as nodes:
        entry = await plant(nodes, body=WRONG)
        await trio.sleep(4 * timing.ANTI_ENTROPY_PAUSE_MAX_S)  # several comparisons, each way
        reports = [record.getMessage() for record in caplog.records if "is damaged at this node" in record.getMessage()]
        assert 2 <= len(reports) <= 4, "dc3 and each of its peers differ, and each of them may say so once"
        assert len([report for report in reports if "at dc3" in report]) == 2
        before = dict(nodes["dc1"].store.context)
        assert (await resync_at(nodes["dc3"], ResyncOptions(USER, "INBOX"))).unmended == 0
        for node in nodes.all():
            assert await node.bodies() == {1: "first", 2: RIGHT}
            assert await head_entry(node) == entry
            assert node.store.context == before
            assert (await check_at(node)).damage == {}
        await nodes.converged()
