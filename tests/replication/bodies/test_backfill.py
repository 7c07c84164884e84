"""Backfill: which bodies a node asks for, how long it does so, and when it gives up."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock

from protocol.values import Dot, UidSet
from replicator.errors import DatabaseFailedError
from replicator.replication import timing
from replicator.replication.bodies.from_peers import backfill as backfill_module
from replicator.replication.bodies.from_peers.backfill import Backfill, WriteBody
from replicator.replication.bodies.from_peers.small_fetch import Keep
from replicator.store.bodies.body_rows import (
    StoredBody,
    is_here,
    is_lacking,
    lacking_count,
    lacking_in_vain,
    read_body,
    write_body,
)
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.apply import apply, receive
from replicator.store.store import Store
from resync.entry import Change, Entry, MailAdd, MailDel, Merge, anchor
from resync.row import Row
from tests.replication.cluster import virtual_environment
from tests.store.harness import INBOX, WORK, guid, open_store

T = TypeVar("T")

BODY = StoredBody.of(b"the body")
LOOK_S = timing.BACKFILL_PATIENCE_S + timing.BACKFILL_RETRY_S


class Neighbours:
    """The nodes that are asked for bodies.

    `bodies`: those that they have; `delay_s`: how long an answer takes; `asked`: the hashes that they were asked for.
    `small`: those that they send together with others, and `small_delay_s` how long that takes.
    """

    def __init__(self) -> None:
        self.store: Store | None = None
        self.bodies: dict[bytes, StoredBody] = {}
        self.small: dict[bytes, StoredBody] = {}
        self.delay_s = self.small_delay_s = 0.0
        self.asked: list[bytes] = []
        self.asked_together: list[bytes] = []

    async def fetch(self, content_hash: bytes, write: WriteBody) -> bool:
        self.asked.append(content_hash)
        await trio.sleep(self.delay_s)
        stored = self.bodies.get(content_hash)
        if stored is not None:
            await written(self.store, write, stored)
        return stored is not None

    async def fetch_small(self, hashes: Sequence[bytes], keep: Keep) -> None:
        self.asked_together += hashes
        await trio.sleep(self.small_delay_s)
        if found := [self.small[content_hash] for content_hash in hashes if content_hash in self.small]:
            await keep(found)

    def have_it(self) -> None:
        self.have(BODY)

    def have(self, stored: StoredBody) -> None:
        self.bodies[stored.content_hash] = stored


async def written(store: Store | None, write: WriteBody, stored: StoredBody) -> None:
    assert store is not None
    await store.write(partial(write, stored))


def copied(origin: str, key: MailboxKey, stored: StoredBody = BODY) -> Entry:
    """Return the entry of a copy into an empty mailbox, which comes without its body."""
    add = MailAdd(1, guid(1), 1_000, (), stored.size_bytes, stored.content_hash, copied=True)
    return entry(Dot(origin, 1), key, add)


def installing(origin: str, key: MailboxKey, stored: StoredBody) -> Callable[[Transaction], None]:
    """Return a write that installs the same mailbox as another node shows it, without its entries."""
    dot = Dot(origin, 1)
    row = Row(1, dot, 0, guid(1), dot, 1, {}, 1_000, stored.size_bytes, stored.content_hash)
    step = entry(dot, key, Merge(2, 0, (dot,), (row,), ()))
    return lambda tx: apply(tx, step, adopted=anchor(dot))


def key(number: int) -> MailboxKey:
    """Return the key of one of many mailboxes."""
    return WORK._replace(mailbox_id=number.to_bytes(16))


def entry(dot: Dot, key: MailboxKey, change: Change) -> Entry:
    """Return the mailbox's first entry, or the one that follows it."""
    before = () if dot.seq == 1 else (dot._replace(seq=dot.seq - 1),)
    return Entry(dot, before, 1 << 20, dot.seq, key.user, key.mailbox_id, key.uidvalidity, (change,))


def arriving(*entries: Entry) -> Callable[[Transaction], None]:
    def take(tx: Transaction) -> None:
        for one in entries:
            receive(tx, one, [])

    return take


async def has_body(store: Store) -> bool:
    return await store.read(lambda reader: read_body(reader, BODY.content_hash)) is not None


@asynccontextmanager
async def backfilling(store: Store, neighbours: Neighbours) -> AsyncIterator[Backfill]:
    neighbours.store = store
    backfill = Backfill(store, neighbours.fetch, neighbours.fetch_small)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backfill.run)
        yield backfill
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def opened(path: Path, clock: MockClock) -> AsyncIterator[Store]:
    """Open a node whose log begins later, so that it may have bodies that no entry in its log has brought."""
    async with open_store(path, "dc9.a", virtual_environment(clock, "dc9")) as store:
        await store.write(lambda tx: tx.begin_log_after({"dc8.a": 1}))
        yield store


async def test_body_available_later_is_fetched_without_a_new_commit(tmp_path: Path, autojump_clock: MockClock) -> None:
    neighbours = Neighbours()
    async with opened(tmp_path, autojump_clock) as store, backfilling(store, neighbours) as backfill:
        await store.write(arriving(copied("dc1.a", INBOX)))
        await trio.sleep(2 * LOOK_S)
        assert backfill.lacking == 1
        neighbours.have_it()
        await trio.sleep(2 * LOOK_S)
        assert backfill.lacking == 0
        assert await has_body(store)


@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_copy_arriving_while_its_body_is_given_up_gets_the_body(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The two halves of a MOVE come from two masters, the removal first, so the body may be needed again any time."""
    neighbours = Neighbours()
    async with opened(tmp_path, autojump_clock) as store:
        gone = entry(Dot("dc1.a", 2), INBOX, MailDel(UidSet.of([1])))
        await store.write(arriving(copied("dc1.a", INBOX), gone))
        write, writes = store.write, 0

        async def write_after_the_copy(work: Callable[[Transaction], T]) -> T:
            nonlocal writes
            writes += 1
            if writes == at:
                await write(arriving(copied("dc2.a", WORK)))
            return await write(work)

        monkeypatch.setattr(store, "write", write_after_the_copy)
        async with backfilling(store, neighbours) as backfill:
            await trio.sleep(2 * LOOK_S)
            if writes < at:
                await write(arriving(copied("dc2.a", WORK)))
                await trio.sleep(2 * LOOK_S)
            assert backfill.lacking
            neighbours.have_it()
            await trio.sleep(2 * LOOK_S)
            assert await has_body(store)
            assert backfill.lacking == 0
        assert not await store.read(lacking_count)


async def test_body_that_no_message_has_is_forgotten_in_one_look(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with opened(tmp_path, autojump_clock) as store, backfilling(store, Neighbours()) as backfill:
        await store.write(arriving(copied("dc1.a", INBOX)))
        await trio.sleep(2 * LOOK_S)
        assert backfill.lacking == 1
        await store.write(arriving(entry(Dot("dc1.a", 2), INBOX, MailDel(UidSet.of([1])))))
        await trio.sleep(LOOK_S + 1)
        assert backfill.lacking == 0
        assert not await store.read(lacking_count)


async def test_constant_copying_does_not_reread_all_messages_each_time(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0

    def counted(connection: sqlite3.Connection) -> list[tuple[int, bytes]]:
        nonlocal reads
        reads += 1
        return lacking_in_vain(connection)

    monkeypatch.setattr(backfill_module, "lacking_in_vain", counted)
    async with opened(tmp_path, autojump_clock) as store, backfilling(store, Neighbours()) as backfill:
        for number in range(1, 101):
            await store.write(arriving(copied(f"other{number}.a", key(number))))
            await trio.sleep(timing.BACKFILL_PATIENCE_S)
        assert backfill.lacking == 1
    assert reads < 100 * timing.BACKFILL_PATIENCE_S / timing.BACKFILL_RETRY_S + 1


async def test_unavailable_bodies_are_not_asked_for_with_each_copy(tmp_path: Path, autojump_clock: MockClock) -> None:
    """They are asked for from time to time. New bodies, of copies and of installed rows, are asked for at once."""
    lost = [StoredBody.of(b"lost %d" % number) for number in range(20)]
    new = [StoredBody.of(b"new %d" % number) for number in range(60)]
    neighbours = Neighbours()
    for stored in new:
        neighbours.have(stored)
    async with opened(tmp_path, autojump_clock) as store, backfilling(store, neighbours) as backfill:
        await store.write(arriving(*(copied(f"lost{n}.a", key(n), one) for n, one in enumerate(lost))))
        await trio.sleep(2 * LOOK_S)
        assert backfill.lacking == len(lost)
        began = trio.current_time()
        neighbours.asked.clear()
        for number, stored in enumerate(new):
            origin, mailbox = f"new{number}.a", key(100 + number)
            come = installing(origin, mailbox, stored) if number % 2 else arriving(copied(origin, mailbox, stored))
            await store.write(come)
            await trio.sleep(timing.BACKFILL_PATIENCE_S + 1)
            assert await store.read(partial(read_body, content_hash=stored.content_hash)) == stored.message
        took_s = trio.current_time() - began
        for stored in new:
            assert neighbours.asked.count(stored.content_hash) == 1
        for stored in lost:
            asked = neighbours.asked.count(stored.content_hash)
            assert took_s // LOOK_S - 1 <= asked <= took_s // timing.BACKFILL_RETRY_S + 1


async def test_lost_body_is_asked_for_again_when_its_message_is_copied(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    neighbours = Neighbours()
    async with opened(tmp_path, autojump_clock) as store, backfilling(store, neighbours):
        await store.write(arriving(copied("dc1.a", INBOX)))
        await trio.sleep(timing.BACKFILL_PATIENCE_S + 1)
        assert len(neighbours.asked) == 1
        neighbours.have_it()
        await store.write(arriving(copied("dc2.a", WORK)))
        await trio.sleep(timing.BACKFILL_PATIENCE_S + 1)
        assert await has_body(store)


async def test_copy_of_a_body_that_is_here_causes_no_look_up(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for = list[bytes]()

    def noticed(connection: sqlite3.Connection, content_hash: bytes) -> bool:
        looked_for.append(content_hash)
        return is_here(connection, content_hash)

    monkeypatch.setattr(backfill_module, "is_here", noticed)
    here = StoredBody.of(b"here")
    async with opened(tmp_path, autojump_clock) as store, backfilling(store, Neighbours()):
        await store.write(lambda tx: write_body(tx.connection, here))
        await store.write(arriving(copied("dc1.a", INBOX)))
        await trio.sleep(timing.BACKFILL_PATIENCE_S + 1)
        assert looked_for == [BODY.content_hash]
        await store.write(arriving(copied("dc2.a", WORK, here)))
        await trio.sleep(timing.BACKFILL_PATIENCE_S + 1)
        assert looked_for == [BODY.content_hash]


async def test_node_that_lacks_nothing_looks_once(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def counted(connection: sqlite3.Connection) -> int:
        nonlocal looks
        looks += 1
        return lacking_count(connection)

    monkeypatch.setattr(backfill_module, "lacking_count", counted)
    async with opened(tmp_path, autojump_clock) as store, backfilling(store, Neighbours()):
        await trio.sleep(10 * LOOK_S)
        assert looks == 1


async def test_bodies_beyond_the_note_limit_are_fetched_in_the_next_look(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_module, "NOTED", 1)
    new = [StoredBody.of(b"new %d" % number) for number in range(3)]
    neighbours = Neighbours()
    for stored in new:
        neighbours.have(stored)
    async with opened(tmp_path, autojump_clock) as store, backfilling(store, neighbours) as backfill:
        await store.write(arriving(copied("dc1.a", INBOX)))
        await trio.sleep(timing.BACKFILL_PATIENCE_S + 1)
        assert backfill.lacking == 1
        await store.write(arriving(*(copied(f"new{n}.a", key(n), stored) for n, stored in enumerate(new))))
        await trio.sleep(timing.BACKFILL_PATIENCE_S + 1)
        assert len(neighbours.asked) == 2
        await trio.sleep(LOOK_S)
        assert await store.read(lacking_count) == backfill.lacking == 1


async def test_arrived_body_is_counted_while_others_are_awaited(tmp_path: Path, autojump_clock: MockClock) -> None:
    slow = StoredBody.of(b"a large body")
    bodies = {stored.content_hash: stored for stored in (BODY, slow)}

    async def fetch(content_hash: bytes, write: WriteBody) -> bool:
        await trio.sleep(100 if content_hash == slow.content_hash else 1)
        await written(store, write, bodies[content_hash])
        return True

    async with opened(tmp_path, autojump_clock) as store, trio.open_nursery() as nursery:
        await store.write(arriving(copied("dc1.a", INBOX), copied("dc2.a", WORK, slow)))
        assert await store.read(lacking_count) == 2
        nursery.start_soon(Backfill(store, fetch, Neighbours().fetch_small).run)
        await trio.sleep(50)
        assert await store.read(lacking_count) == 1
        await trio.sleep(100)
        assert await store.read(lacking_count) == 0
        nursery.cancel_scope.cancel()


async def test_small_body_is_not_asked_for_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    neighbours = Neighbours()
    other = StoredBody.of(b"another body")
    neighbours.small[BODY.content_hash] = BODY
    neighbours.have(other)
    async with opened(tmp_path, autojump_clock) as store, backfilling(store, neighbours):
        await store.write(arriving(copied("dc1.a", INBOX), copied("dc2.a", WORK, other)))
        await trio.sleep(LOOK_S)
        assert neighbours.asked == [other.content_hash]
        assert await has_body(store)
        assert not await store.read(lacking_count)


async def test_small_body_of_a_message_that_is_expunged_meanwhile_is_not_kept(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    neighbours = Neighbours()
    neighbours.small[BODY.content_hash] = BODY
    neighbours.small_delay_s = 5
    async with opened(tmp_path, autojump_clock) as store:
        await store.write(arriving(copied("dc1.a", INBOX)))
        async with backfilling(store, neighbours):
            await trio.sleep(timing.BACKFILL_PATIENCE_S + 1)
            await store.write(lambda tx: tx.connection.execute("DELETE FROM lacking").rowcount)
            await trio.sleep(LOOK_S)
        assert not await has_body(store)


async def test_body_that_is_here_is_not_asked_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    neighbours = Neighbours()
    async with opened(tmp_path, autojump_clock) as store:
        await store.write(arriving(copied("dc1.a", INBOX)))
        await store.write(lambda tx: write_body(tx.connection, BODY))
        async with backfilling(store, neighbours):
            await trio.sleep(LOOK_S)
        assert neighbours.asked == neighbours.asked_together == []
        assert not await store.read(lacking_count)


async def test_body_that_is_removed_during_a_look_stays_noted(tmp_path: Path, autojump_clock: MockClock) -> None:
    neighbours = Neighbours()
    slow = StoredBody.of(b"a large body")
    neighbours.small[BODY.content_hash] = BODY
    neighbours.have(slow)
    neighbours.delay_s = 50
    async with opened(tmp_path, autojump_clock) as store:
        await store.write(arriving(copied("dc1.a", INBOX), copied("dc2.a", WORK, slow)))
        async with backfilling(store, neighbours):
            await trio.sleep(timing.BACKFILL_PATIENCE_S + 10)
            assert await has_body(store)
            neighbours.small.clear()

            def remove(tx: Transaction) -> None:
                tx.connection.execute("DELETE FROM content WHERE hash = ?", (BODY.content_hash,))
                tx.connection.execute("INSERT INTO lacking VALUES (1000, ?)", (BODY.content_hash,))

            await store.write(remove)
            await trio.sleep(60)
            assert await store.read(lambda reader: is_lacking(reader, BODY.content_hash))


async def test_bodies_whose_rows_cannot_be_read_hold_up_no_other(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_here_or_damaged(connection: sqlite3.Connection, content_hash: bytes) -> bool:
        if content_hash == BODY.content_hash:
            raise sqlite3.DatabaseError("database disk image is malformed")
        return is_here(connection, content_hash)

    monkeypatch.setattr("replicator.store.bodies.body_rows.is_here", is_here_or_damaged)
    monkeypatch.setattr(backfill_module, "is_here", is_here_or_damaged)
    neighbours = Neighbours()
    other = StoredBody.of(b"another body")
    neighbours.have(other)
    async with opened(tmp_path, autojump_clock) as store:
        await store.write(arriving(copied("dc1.a", INBOX), copied("dc2.a", WORK, other)))
        async with backfilling(store, neighbours):
            await trio.sleep(LOOK_S)
        assert await store.read(partial(is_here, content_hash=other.content_hash))


async def test_failed_first_look_is_repeated(tmp_path: Path, autojump_clock: MockClock) -> None:
    neighbours = Neighbours()
    neighbours.have_it()
    async with opened(tmp_path, autojump_clock) as store:
        await store.write(arriving(copied("dc1.a", INBOX)))
        await rename_table(store, "lacking", "away")
        async with backfilling(store, neighbours):
            await trio.sleep(LOOK_S)
            with pytest.raises(DatabaseFailedError):
                await store.read(lacking_count)
            await rename_table(store, "away", "lacking")
            await trio.sleep(LOOK_S + 1)
        assert await has_body(store)
        assert not await store.read(lacking_count)


async def test_backfill_waits_for_a_neighbour_as_long_as_a_request_may_last(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Sixteen large bodies may share a slow link, and the first of two neighbours may refuse at the end of its time."""
    neighbours = Neighbours()
    neighbours.have_it()
    neighbours.delay_s = 100.0
    async with opened(tmp_path, autojump_clock) as store, backfilling(store, neighbours):
        await store.write(arriving(copied("dc1.a", INBOX)))
        await trio.sleep(200)
        assert await has_body(store)


async def rename_table(store: Store, old: str, new: str) -> None:
    await store.write(lambda tx: tx.connection.execute(f"ALTER TABLE {old} RENAME TO {new}").rowcount)
