"""Nodes whose heads have different histories, although nothing else differs, become equal."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from replicator.replication import timing
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.repair.row_repair import OtherBody, entries_with, put_right
from replicator.tasks import ResyncOptions
from resync.entry import anchor, tree_id
from tests.effort import spread
from tests.replication.cluster import USER, Cluster, Node, cluster, until
from tests.replication.tasks.planted_damage import alter_history
from tests.replication.tasks.running import check_at, resync_at
from tests.store.harness import without_histories


async def chain_id(node: Node, *, of_tree: bool) -> bytes:
    return tree_id(USER) if of_tree else (await node.inbox()).mailbox_id


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
    """Check that all nodes show the same under one history, that of the head's entry, and go on."""
    await nodes.converged()
    before = len(await nodes["dc1"].bodies())
    for number, node in enumerate(nodes.all()):
        await node.save(f"later {number}")
        await node.mail.create_folder(USER, f"Later {number}")
    await nodes.converged()
    for node in nodes.all():
        assert len(await node.bodies()) == before + len(nodes.nodes)
        assert (await check_at(node)).damage == {}
        head = await node.store.read(partial(queries.chain_or_empty, key=await key_of(node, chain)))
        assert head.head is not None
        entry = await node.store.read(partial(queries.entry_at, dot=head.head))
        assert entry is not None
        assert entry.history == head.history == entry.digest()


async def key_of(node: Node, chain: bytes) -> MailboxKey:
    key = await node.store.read(partial(queries.key_of, mailbox_id=chain))
    assert key is not None
    return key


SOME = [["dc1"], ["dc2"], ["dc3"], ["dc2", "dc3"], ["dc1", "dc2", "dc3"]]


@pytest.mark.parametrize("of_tree", [False, True], ids=["mailbox", "tree"])
@pytest.mark.parametrize("altered", spread(2, SOME), ids="-".join)
async def test_resync_joins_histories(
    tmp_path: Path, autojump_clock: MockClock, altered: Sequence[str], *, of_tree: bool
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        chain = await begin(nodes, altered, of_tree=of_tree)
        status = await resync_at(nodes["dc2"], ResyncOptions(USER))
        assert (status.unmended, set(status.differed)) == (0, {"context"})
        await assert_sound(nodes, chain)


@pytest.mark.parametrize("of_tree", [False, True], ids=["mailbox", "tree"])
@pytest.mark.parametrize("altered", spread(1, SOME), ids="-".join)
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
        before = dict(nodes["dc2"].store.context)
        checked = await check_at(nodes["dc2"], repair=True)
        assert (checked.damage, checked.unrepaired) == ({"chain": 1}, 0)
        await nodes.converged()
        assert nodes["dc1"].store.context == before, "nothing had to be numbered"


def mismatches(node: Node) -> float:
    return node.registry.get_sample_value("replicator_history_mismatches_total") or 0


@pytest.mark.parametrize("writer", spread(2, ["dc1", "dc2", "dc3"]))
@pytest.mark.parametrize("altered", spread(2, SOME), ids="-".join)
async def test_next_change_makes_nodes_equal_soon(
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    altered: Sequence[str],
    writer: str,
) -> None:
    """Whichever node is wrong, and also while a node is away."""
    async with cluster(tmp_path, autojump_clock, 4, copies=1) as nodes:
        await nodes.stop("dc4")
        await nodes.linked()
        chain = await begin(nodes, altered, of_tree=False)  # later than the new master's first look at other nodes
        before = autojump_clock.current_time()
        await nodes[writer].save("second")
        await nodes.converged()
        assert autojump_clock.current_time() < before + timing.OVERDUE_S / 2
        assert sum(map(mismatches, nodes.all())) >= 1
        assert caplog.text.count("names another history of mailbox") <= len(nodes.nodes)
        for node in nodes.all():
            assert await node.bodies() == {1: "first", 2: "second"}
        await nodes.start("dc4")
        await nodes.linked()
        await assert_sound(nodes, chain)


@pytest.mark.parametrize("altered", ["dc1", "dc2"])
async def test_busy_mailbox_becomes_equal_while_mail_comes(
    tmp_path: Path, autojump_clock: MockClock, altered: str
) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        await begin(nodes, [altered], of_tree=False)
        waiting = []
        for number in range(20):
            await nodes["dc1"].save(str(number))
            await trio.sleep(timing.FORK_SCHEDULER_QUIET_S / 2)
            waiting.append(sum([await node.waiting() for node in nodes.all()]))
        assert timing.FORK_SCHEDULER_QUIET_S * len(waiting) / 2 < timing.FORK_SCHEDULER_GROWING_MAX_S
        assert 0 in waiting, waiting
        await nodes.converged()


async def test_branches_of_a_node_with_another_history_are_joined(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        chain = await begin(nodes, ["dc3"], of_tree=False)
        nodes.isolate("dc3")
        await nodes.linked(["dc1", "dc2"], ["dc3"])
        for sid in ("dc1", "dc3"):
            await nodes[sid].save(f"at {sid}")
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()
        for node in nodes.all():
            assert sorted((await node.bodies()).values()) == ["at dc1", "at dc3", "first"]
        await assert_sound(nodes, chain)


async def test_nodes_go_on_from_entries_of_an_earlier_version(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both parts of a cluster serve while its nodes are upgraded, and merge what they have numbered."""
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        with without_histories(monkeypatch):
            await nodes["dc1"].save("first")
            await nodes.converged()
            nodes.isolate("dc3")
            await nodes.linked(["dc1", "dc2"], ["dc3"])
            await nodes["dc3"].save("of an earlier version")
        await nodes["dc1"].save("of this version")
        nodes.rejoin("dc3")
        await nodes.linked()
        await nodes.converged()
        await nodes["dc3"].save("last")
        await nodes.converged()
        assert sum(map(mismatches, nodes.all())) == 0
        key = MailboxKey.of(await nodes["dc1"].inbox())
        for node in nodes.all():
            assert sorted((await node.bodies()).values()) == [
                "first",
                "last",
                "of an earlier version",
                "of this version",
            ]
            assert (await check_at(node)).damage == {}
            head = await node.store.read(partial(queries.chain_or_empty, key=key))
            assert head.head is not None
            assert head.history != anchor(head.head)


def correcting(key: MailboxKey, uid: int) -> Callable[[Transaction], None]:
    """Return a job that gives a message the body of the first one."""

    def correct(tx: Transaction) -> None:
        rows = {row.uid: row for row in queries.mailbox_rows(tx.connection, key.mailbox_id)}
        other = OtherBody(rows[uid], rows[1].content_hash, rows[1].size_bytes)
        assert put_right(tx, key, [other], entries_with(tx.connection, key.mailbox_id, [other])) == [other]

    return correct


@pytest.mark.parametrize("uid", [2, 3], ids=["below the head", "at the head"])
async def test_new_node_becomes_equal_from_corrected_entries(
    tmp_path: Path, autojump_clock: MockClock, uid: int
) -> None:
    """A corrected entry has another history than later entries name, and a head has that of its corrected entry."""
    async with cluster(tmp_path, autojump_clock, copies=1) as nodes:
        for body in ("first", "the second", "the third"):
            await nodes["dc1"].save(body)
        await nodes.converged()
        key = MailboxKey.of(await nodes["dc1"].inbox())
        await nodes.stop("dc3")
        nodes.erase("dc3")
        for sid in ("dc1", "dc2"):
            await nodes[sid].store.write(correcting(key, uid))
        await nodes.converged()
        numbered = dict(nodes["dc1"].store.context)
        await nodes.start("dc3")
        await nodes.linked()
        await nodes.converged()
        assert nodes["dc1"].store.context == numbered, "nothing had to be numbered"
        assert (await nodes["dc3"].bodies())[uid] == "first"
        await assert_sound(nodes, key.mailbox_id)


async def test_sender_sends_entries_as_they_are_after_a_correction(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Entries that the sender had read before, for a peer to which it sends slowly, are sent as corrected, too."""
    async with cluster(tmp_path, autojump_clock, 2, copies=1) as nodes:
        await nodes["dc1"].save("first")
        await nodes.converged()
        key = MailboxKey.of(await nodes["dc1"].inbox())
        await nodes.stop("dc2")
        dice = random.Random("mail that does not compress well")
        for _ in range(10):
            await nodes["dc1"].save(dice.randbytes(30_000).hex())
        await nodes["dc1"].save("wrong")
        road = nodes.network.road("dc1", "dc2")
        road.bytes_per_s = 50_000
        await nodes.start("dc2")
        await until(lambda: len(road.entries()) > 2)
        await nodes["dc1"].store.write(correcting(key, 12))
        assert len(road.entries()) < 12, "the road is slow"
        await nodes.converged()
        assert (await nodes["dc2"].bodies())[12] == "first"
        assert b"wrong" not in b"".join(road.sent)
