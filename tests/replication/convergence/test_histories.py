"""Nodes whose heads have different histories, although nothing else differs, become equal."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from trio.testing import MockClock

from replicator.replication import timing
from replicator.store.db import queries
from replicator.store.db.transaction import Transaction
from replicator.tasks import ResyncOptions
from resync.entry import tree_id
from tests.replication.cluster import USER, Cluster, Node, cluster
from tests.replication.tasks.running import check_at, resync_at


async def chain_id(node: Node, *, of_tree: bool) -> bytes:
    return tree_id(USER) if of_tree else (await node.inbox()).mailbox_id


async def alter_history(node: Node, chain: bytes) -> None:
    """Alter the history of the node's head, on disk and in memory."""

    def alter(tx: Transaction) -> None:
        known = tx.chain(chain)
        assert known is not None
        known = tx.chain_to_change(chain, known.user, known.uidvalidity)
        known.history = node.sid.encode().ljust(16)

    await node.store.write(alter)


async def begin(nodes: Cluster, altered: Sequence[str], *, of_tree: bool) -> bytes:
    """Save mail that all nodes show, and alter histories of the mailbox or tree; return its id."""
    await nodes["dc1"].mail.create_folder(USER, "Work")
    await nodes["dc1"].save("first")
    await nodes.converged()
    chain = await chain_id(nodes["dc1"], of_tree=of_tree)
    for sid in altered:
        await alter_history(nodes[sid], chain)
    return chain


async def assert_sound(nodes: Cluster, chain: bytes) -> None:
    """Check that all nodes show the same under one history, which their logs prove, and go on."""
    await nodes.converged()
    for number, node in enumerate(nodes.all()):
        await node.save(f"later {number}")
        await node.mail.create_folder(USER, f"Later {number}")
    await nodes.converged()
    for node in nodes.all():
        assert len(await node.bodies()) == 1 + len(nodes.nodes)
        assert (await check_at(node)).damage == {}
        head = await node.store.read(partial(queries.chain_or_empty, key=await key_of(node, chain)))
        assert head.head is not None
        entry = await node.store.read(partial(queries.entry_at, dot=head.head))
        assert entry is not None
        assert entry.history == head.history == entry.digest()


async def key_of(node: Node, chain: bytes) -> queries.MailboxKey:
    key = await node.store.read(partial(queries.key_of, mailbox_id=chain))
    assert key is not None
    return key


SOME = [["dc1"], ["dc2"], ["dc3"], ["dc2", "dc3"], ["dc1", "dc2", "dc3"]]


@pytest.mark.parametrize("of_tree", [False, True], ids=["mailbox", "tree"])
@pytest.mark.parametrize("altered", SOME, ids="-".join)
async def test_resync_joins_histories(
    tmp_path: Path, autojump_clock: MockClock, altered: Sequence[str], *, of_tree: bool
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        chain = await begin(nodes, altered, of_tree=of_tree)
        status = await resync_at(nodes["dc2"], ResyncOptions(USER))
        assert (status.unmended, set(status.differed)) == (0, {"context"})
        await assert_sound(nodes, chain)


@pytest.mark.parametrize("of_tree", [False, True], ids=["mailbox", "tree"])
@pytest.mark.parametrize("altered", SOME, ids="-".join)
async def test_nodes_join_histories_after_an_election(
    tmp_path: Path, autojump_clock: MockClock, altered: Sequence[str], *, of_tree: bool
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        nodes.rejoin("dc3")
        await nodes.linked()
        chain = await begin(nodes, altered, of_tree=of_tree)
        before = autojump_clock.current_time()
        await nodes.converged()
        assert autojump_clock.current_time() < before + 2 * timing.ANTI_ENTROPY_QUIET_S
        await assert_sound(nodes, chain)


async def test_check_repairs_an_altered_history_from_the_log(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await begin(nodes, ["dc2"], of_tree=False)
        before = nodes["dc2"].store.context
        checked = await check_at(nodes["dc2"], repair=True)
        assert (checked.damage, checked.unrepaired) == ({"chain": 1}, 0)
        await nodes.converged()
        assert nodes["dc1"].store.context == before, "nothing had to be numbered"
