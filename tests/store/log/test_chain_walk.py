"""The walk down a mailbox's history, in a real database: what it finds, what is not there, and its limits."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from protocol.values import Dot
from replicator.runtime.environment import Environment
from replicator.store.log import forks
from replicator.store.log.entry_removal import collect
from replicator.store.log.stories import chain_walk
from replicator.store.log.stories.chain_walk import ChainWalk
from replicator.store.store import Store
from resync.entry import Entry, MailAdd
from resync.story.parts import about
from tests.store.harness import INBOX, WORK, expunging, flagging, guid, open_store, save, saving
from tests.store.memory_node import MemoryNode

ORIGIN = "dc1.a"


async def walked(store: Store, most: int = 100) -> ChainWalk:
    walk = ChainWalk(INBOX.mailbox_id, most=most)
    while await store.read(walk.go_on):
        pass
    return walk


def seqs(walk: ChainWalk) -> list[int]:
    return [one.entry.dot.seq for one in walk.found]


async def execute(store: Store, statement: str, *parameters: object) -> None:
    await store.write(lambda tx: tx.connection.execute(statement, parameters).rowcount)


async def test_entries_of_one_mailbox_come_newest_first(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        assert (await walked(store)).head is None
        await save(store, 1)
        await save(store, 2, WORK)
        await store.write(flagging(1, added=["\\Seen"]))
        await store.write(expunging(1))
        walk = await walked(store)
        assert (walk.head, seqs(walk), walk.absent, walk.is_cut) == (Dot(ORIGIN, 4), [4, 3, 1], {}, False)
        assert {one.state for one in walk.found} == {"shown"}
        assert walk.base is None, "the first entry is here"


async def test_walk_ends_after_so_many_entries(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        for number in range(5):
            await save(store, number)
        walk = await walked(store, most=3)
        assert (seqs(walk), walk.is_cut, walk.base) == ([5, 4, 3], True, Dot(ORIGIN, 2))
        whole = await walked(store, most=5)
        assert (len(whole.found), whole.is_cut) == (5, False)


async def test_walk_ends_before_it_has_read_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_walk, "READ_BYTES_MAX", 500)
    async with open_store(tmp_path) as store:
        for number in range(9):
            await save(store, number)
        walk = await walked(store)
        assert walk.is_cut
        assert 0 < len(walk.found) < 5


async def test_walk_goes_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_walk, "SLICE_ENTRIES", 2)
    async with open_store(tmp_path) as store:
        for number in range(5):
            await save(store, number)
        walk = ChainWalk(INBOX.mailbox_id, most=100)
        counts = []
        while await store.read(walk.go_on):
            counts.append(len(walk.found))
        assert (counts, len(walk.found)) == ([2, 4], 5)


async def test_entries_that_have_left_the_log(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        for number in range(6):
            await save(store, number)
        await store.write(partial(collect, upto={ORIGIN: 4}))
        walk = await walked(store)
        assert (seqs(walk), walk.absent, walk.is_cut) == ([6, 5], {Dot(ORIGIN, 4): "left"}, False)
        assert walk.base == Dot(ORIGIN, 4)


@pytest.mark.parametrize(
    ("statement", "why"),
    [("DELETE FROM log WHERE seq = ?", "missing"), ("UPDATE log SET body = x'00' WHERE seq = ?", "unreadable")],
)
async def test_entries_that_the_log_has_lost(tmp_path: Path, statement: str, why: str) -> None:
    async with Store.open(tmp_path / "node.db", ORIGIN, Environment()) as store:
        for number in range(5):
            await save(store, number)
        await execute(store, statement, 3)
        walk = await walked(store)
        assert (seqs(walk), walk.absent) == ([5, 4], {Dot(ORIGIN, 3): why})


async def test_head_without_its_entry(tmp_path: Path) -> None:
    """The state was taken over from another node. What the log has of the time before is told all the same."""
    async with open_store(tmp_path) as store:
        for number in range(3):
            await save(store, number)
        await execute(store, "UPDATE chain SET head_seq = 9 WHERE id = ?", INBOX.mailbox_id)
        walk = await walked(store)
        assert (walk.head, seqs(walk), walk.absent) == (Dot(ORIGIN, 9), [3, 2, 1], {Dot(ORIGIN, 9): "missing"})
        await execute(store, "UPDATE chain SET head_seq = 3 WHERE id = ?", INBOX.mailbox_id)


def test_branches_that_wait_are_told_and_joined() -> None:
    one, other = MemoryNode("dc1.a"), MemoryNode("dc2.a")
    one.write(saving(b"text", guid(1)))
    other.take(one.log()[0])
    one.write(saving(b"text", guid(2)))
    other.write(flagging(1, added=["\\Seen"]))
    other.write(expunging(1))
    for item in other.log()[1:]:
        one.take(item)
    assert dict(walk_of(one)) == {
        ("dc1.a", 1): "shown",
        ("dc1.a", 2): "shown",
        ("dc2.a", 1): "waiting",
        ("dc2.a", 2): "waiting",
    }
    branch = forks.replay_branch(one.connection, forks.branch_heads(one.connection, INBOX.mailbox_id)[0])
    assert branch is not None
    one.write(lambda tx: forks.merge_branch(tx, INBOX, branch))
    order = walk_of(one)
    assert order[0] == (("dc1.a", 3), "shown")
    assert {state for _, state in order} == {"shown"}
    assert len(order) == 5
    cut = ChainWalk(INBOX.mailbox_id, most=3)
    assert not cut.go_on(one.connection)
    assert (len(cut.found), cut.base) == (3, None), "the branches begin below"
    for node in (one, other):
        node.connection.close()


def walk_of(node: MemoryNode) -> list[tuple[tuple[str, int], str]]:
    walk = ChainWalk(INBOX.mailbox_id, most=100)
    assert not walk.go_on(node.connection)
    times = [one.entry.time for one in walk.found]
    assert times == sorted(times, reverse=True)
    return [((one.entry.dot.origin, one.entry.dot.seq), one.state) for one in walk.found]


async def test_only_the_part_that_is_kept_stays_in_memory(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        for number in range(3):
            await save(store, number)
        walk = ChainWalk(INBOX.mailbox_id, most=100, keep=partial(about, guids=frozenset([guid(1)])))
        assert not await store.read(walk.go_on)
        assert [added(one.entry) for one in walk.found] == [[], [guid(1)], []]


def added(entry: Entry) -> list[bytes]:
    return [change.guid for change in entry.changes if isinstance(change, MailAdd)]
