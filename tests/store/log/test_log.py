import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from protocol.values import Context, Dot
from replicator.runtime.environment import Environment, run_in_thread
from replicator.store import store as store_module
from replicator.store.bodies.body_rows import StoredBody, replace_body
from replicator.store.db import queries
from replicator.store.db.queries import Lag
from replicator.store.db.transaction import Logged
from replicator.store.log.apply import receive
from replicator.store.store import Store
from tests.store.harness import INBOX, copying, expunging, flagging, guid, open_store, save, saving
from tests.store.memory_node import MemoryNode

T = TypeVar("T")


async def read_all(store: Store, position: int) -> list[Logged]:
    found: list[Logged] = []
    while slice_ := await store.log_after(position):
        found += slice_
        position = slice_[-1].position
    return found


async def take(store: Store, logged: Logged) -> None:
    await store.write(lambda tx: receive(tx, logged.entry, list(logged.bodies.values())))


@pytest.mark.parametrize("tail_bytes", [0, 5_000, 1 << 20])
async def test_memory_and_disk_give_the_same_log_from_every_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail_bytes: int
) -> None:
    monkeypatch.setattr(store_module, "TAIL_BYTES", tail_bytes)
    monkeypatch.setattr(store_module, "SLICE_ENTRIES", 7)
    async with open_store(tmp_path) as store:
        for number in range(20):
            await save(store, number)
        with pytest.raises(ZeroDivisionError):
            await store.write(lambda tx: (saving(b"lost", guid(99))(tx), 1 // 0))
        await store.write(copying(INBOX, [], INBOX))
        await store.write(flagging(1, 2, 3, added=["\\Seen"]))
        await store.write(expunging(4, 5))
    async with open_store(tmp_path, "dc1.b") as store:
        for number in range(20, 30):
            await save(store, number)
        disk = await store.read(lambda reader: queries.log_after(reader, 0, 1 << 40, 1000, 1 << 30))
        assert len(disk) == store.tail.end == 32
        for position in range(33):
            assert await read_all(store, position) == disk[position:]
        in_memory = store.tail.after(31)
        assert in_memory == disk[31:]
        assert store.tail.after(0) is None, "these entries are from before this run"


async def test_slice_ends_at_its_limits_but_is_never_empty() -> None:
    node = MemoryNode("dc1.a")
    for number in range(5):
        node.write(saving(b"x" * 1000, guid(number)))
    size = node.log()[0].memory_bytes
    lengths = [
        len(queries.log_after(node.connection, 0, 1 << 40, *limits))
        for limits in ((3, 1 << 20), (9, 2 * size + size // 2), (9, 1))
    ]
    assert lengths == [3, 2, 1]
    assert queries.log_after(node.connection, 5, 1 << 40, 9, 1 << 20) == []


async def test_growth_of_the_log_wakes_waiting_tasks(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store, trio.open_nursery() as nursery:
        nursery.start_soon(store.tail.grown)
        await wait_all_tasks_blocked()
        await save(store, 1)


async def test_damaged_body_is_not_sent_and_can_be_replaced(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await save(store, 1)
        body = StoredBody.of(b"text 1")
        damaged = StoredBody(body.content_hash, 0, StoredBody.of(b"other").packed)
        await store.write(lambda tx: replace_body(tx.connection, damaged))
        [logged] = await store.read(lambda reader: queries.log_after(reader, 0, 1 << 40, 9, 1 << 20))
        assert logged.bodies == {}
        await store.write(lambda tx: replace_body(tx.connection, body))
        [logged] = await store.read(lambda reader: queries.log_after(reader, 0, 1 << 40, 9, 1 << 20))
        assert logged.bodies == {body.content_hash: body}


# ---- contexts ----------------------------------------------------------------------------------------------------


def three_origins() -> MemoryNode:
    """Return a node whose log mixes entries of three origins."""
    node = MemoryNode("dc1.a")
    sources = [MemoryNode(f"dc{number}.a") for number in (2, 3)]
    rng = random.Random(7)
    for number in range(30):
        node.now_ms += 1000
        writer = rng.choice([node, *sources])
        writer.now_ms = node.now_ms
        key = INBOX._replace(mailbox_id=writer.origin.encode().ljust(16))
        writer.write(saving(b"x" * rng.randrange(300), guid(number), key))
        if writer is not node:
            node.take(writer.log()[-1])
    return node


NODE = three_origins()
CONTEXTS = st.dictionaries(st.sampled_from(["dc1.a", "dc2.a", "dc3.a", "gone.a"]), st.integers(0, 20))


def lacking(context: Context) -> list[Logged]:
    return [logged for logged in NODE.log() if logged.entry.dot.seq > context.get(logged.entry.dot.origin, 0)]


@given(CONTEXTS)
def test_log_starts_at_the_first_entry_that_a_context_lacks(context: Context) -> None:
    lacked = lacking(context)
    first = lacked[0].position if lacked else queries.log_end(NODE.connection) + 1
    assert queries.log_start(NODE.connection, context) == first - 1


@given(CONTEXTS)
def test_lag_counts_the_entries_that_a_context_lacks(context: Context) -> None:
    lacked = lacking(context)
    assert queries.lag(NODE.connection, context) == Lag(
        len(lacked),
        sum(logged.size_bytes for logged in lacked),
        min((logged.entry.stamp.ms for logged in lacked), default=None),
    )


def test_empty_log_has_no_entries_and_no_lag() -> None:
    node = MemoryNode("dc1.a")
    assert queries.log_end(node.connection) == queries.log_start(node.connection, {}) == 0
    assert queries.lag(node.connection, {"x.a": 7}) == Lag()
    assert queries.log_counts(node.connection) == (0, 0)


# ---- waiting for entries -----------------------------------------------------------------------------------------


async def test_waiting_for_an_entry_ends_when_it_is_applied(tmp_path: Path) -> None:
    source = MemoryNode("dc2.a")
    other = MemoryNode("dc3.a")
    source.write(saving(b"one", guid(1)))
    other.take(source.log()[0])
    other.write(saving(b"two", guid(2)))
    first, second = other.log()
    async with open_store(tmp_path) as store:
        done: list[str] = []

        async def wait(name: str, scope: trio.CancelScope) -> None:
            with scope:
                await store.wait_applied(second.entry.dot, INBOX.mailbox_id)
                done.append(name)

        async with trio.open_nursery() as nursery:
            impatient = trio.CancelScope()
            nursery.start_soon(wait, "impatient", impatient)
            nursery.start_soon(wait, "early", trio.CancelScope())
            await wait_all_tasks_blocked()
            impatient.cancel()
            await take(store, second)
            nursery.start_soon(wait, "late", trio.CancelScope())
            await wait_all_tasks_blocked()
            assert done == []
            await take(store, first)
        assert sorted(done) == ["early", "late"]
        await store.wait_applied(second.entry.dot, INBOX.mailbox_id)
        assert store._awaited == {}


async def test_waiting_entry_still_waits_after_a_restart(tmp_path: Path) -> None:
    source = MemoryNode("dc2.a")
    other = MemoryNode("dc3.a")
    source.write(saving(b"one", guid(1)))
    other.take(source.log()[0])
    other.write(saving(b"two", guid(2)))
    first, second = other.log()
    async with open_store(tmp_path) as store:
        await take(store, second)
    async with open_store(tmp_path, "dc1.b") as store:
        assert store.context == {"dc3.a": 1}
        with trio.move_on_after(0) as scope:
            await store.wait_applied(Dot("dc3.a", 1), INBOX.mailbox_id)
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.wait_applied, Dot("dc3.a", 1), INBOX.mailbox_id)
            await take(store, first)
        view = await store.view(INBOX)
        assert list(view.messages) == [1, 2]


async def test_unpublished_commit_is_not_in_the_log(tmp_path: Path) -> None:
    """During COMMIT, SQLite may checkpoint its write-ahead log. Other readers see the commit before the writer does."""
    committed, go_on = trio.Event(), trio.Event()

    async def run_slowly(work: Callable[[], T]) -> T:
        result = await run_in_thread(work)
        if isinstance(work, partial) and work.func.__name__ == "_write":
            committed.set()
            await go_on.wait()
        return result

    async with open_store(tmp_path) as store:
        await save(store, 1)
    async with open_store(tmp_path, "dc1.b", Environment(run_in_thread=run_slowly)) as store:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(save, store, 2)
            await committed.wait()
            in_database, in_log = await store.read(queries.log_end), await store.log_after(0)
            go_on.set()
        assert (in_database, len(in_log)) == (2, 1)
        assert len(await store.log_after(0)) == 2
