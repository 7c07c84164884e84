"""The digests of all mailboxes and trees in memory: those of all rows, read once."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from replicator.mail.view import ViewChange
from replicator.store.db import queries
from replicator.store.db.memory.shown_digests import ShownDigests
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.store import Store
from resync.ranges import Fingerprints
from tests.store.harness import Job, connection_of, expunging, guid, open_store, saving

KEYS = [MailboxKey(f"user{number}", bytes([number]) * 16, 9) for number in range(1, 7)]


def rows_of(store: Store) -> dict[bytes, int]:
    return {chain.id: int.from_bytes(chain.digest()) for chain in queries.chains_of(connection_of(store), None)}


async def digests_of(store: Store) -> dict[bytes, int]:
    return dict((await store.shown_digests.get()).items(""))


def watch(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Awaitable[object]] | None = None) -> list[int]:
    """Return a list that grows with each reading of all rows; do something `meanwhile`, after the snapshot."""
    sizes: list[int] = []
    read = ShownDigests._read

    async def reading(self: ShownDigests) -> Fingerprints:
        found = await read(self)
        sizes.append(len(found))
        if meanwhile is not None:
            await meanwhile()
        return found

    monkeypatch.setattr(ShownDigests, "_read", reading)
    return sizes


def drawn(dice: random.Random, number: int) -> Job[object]:
    key = dice.choice(KEYS)
    return saving(b"x", guid(number), key) if dice.random() < 0.7 else expunging(dice.randrange(1, 5), key=key)


async def test_they_are_read_once_and_follow_all_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, dice = watch(monkeypatch), random.Random(1)
    async with open_store(tmp_path) as store:
        await store.count()
        for number in range(60):
            await store.write(drawn(dice, number))
            if dice.random() < 0.3:
                assert await digests_of(store) == rows_of(store)
        assert await digests_of(store) == rows_of(store)
        assert len(rows_of(store)) == len(KEYS)
    assert len(reads) == 1


async def test_commits_during_the_reading_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(tmp_path) as store:
        await store.count()
        await store.write(saving(b"x", guid(1), KEYS[0]))
        numbers = iter(range(2, 100))

        async def change() -> None:
            for key in KEYS[:2]:
                await store.write(saving(b"x", guid(next(numbers)), key))

        reads = watch(monkeypatch, change)
        assert await digests_of(store) == rows_of(store)
        assert await digests_of(store) == rows_of(store)
        assert reads == [1]


async def test_commits_while_changes_are_taken_in_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(tmp_path) as store:
        await store.count()
        await store.write(saving(b"x", guid(1), KEYS[0]))
        await digests_of(store)
        await store.write(saving(b"x", guid(2), KEYS[0]))
        run, digests = store.shown_digests._run_in_thread, store.shown_digests

        async def run_slowly(work: Callable[[], Fingerprints]) -> Fingerprints:
            made = await run(work)
            await store.write(saving(b"x", guid(3), KEYS[0]))
            return made

        with monkeypatch.context() as patch:
            patch.setattr(digests, "_run_in_thread", run_slowly)
            assert await digests_of(store) != rows_of(store), "as of a commit since the call, not of all"
        assert await digests_of(store) == rows_of(store)


async def test_without_a_tally_they_are_read_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then commits do not say what has changed."""
    reads = watch(monkeypatch)
    async with open_store(tmp_path) as store:
        for number in range(3):
            await store.write(saving(b"x", guid(number), KEYS[number]))
            assert await digests_of(store) == rows_of(store)
        assert reads == [1, 2, 3]
        await store.count()
        assert await digests_of(store) == rows_of(store)
        await store.write(saving(b"x", guid(9), KEYS[5]))
        assert await digests_of(store) == rows_of(store)
        assert reads == [1, 2, 3, 3]


async def test_mending_of_rows_has_them_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = watch(monkeypatch)
    async with open_store(tmp_path) as store:
        await store.count()
        await store.write(saving(b"x", guid(1), KEYS[0]))
        await digests_of(store)

        def mend(tx: Transaction) -> None:
            tx.count_anew()

        await store.write(mend)
        await store.count()
        assert await digests_of(store) == rows_of(store)
        assert len(reads) == 2


async def test_digests_that_do_not_add_up_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(tmp_path) as store:
        await store.count()
        await store.write(saving(b"x", guid(1), KEYS[0]))
        await digests_of(store)
        monkeypatch.setattr(store.shown_digests, "_known", Fingerprints([(guid(7), 7)]))
        reads = watch(monkeypatch)
        assert await digests_of(store) == rows_of(store)
        assert reads == [1]


async def test_peers_that_ask_at_once_share_one_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = watch(monkeypatch)
    async with open_store(tmp_path) as store:
        await store.count()
        await store.write(saving(b"x", guid(1), KEYS[0]))
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(digests_of, store)
        assert reads == [1]


async def test_reading_of_a_commit_before_it_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers see a commit as soon as it is on disk, before the event loop hears of it."""
    async with open_store(tmp_path) as store:
        await store.count()
        apply, goes_on = store.views.apply, trio.Event()

        async def apply_late(change: ViewChange) -> None:
            await goes_on.wait()
            await apply(change)

        async def go_on() -> None:
            goes_on.set()

        monkeypatch.setattr(store.views, "apply", apply_late)
        reads = watch(monkeypatch, go_on)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.write, saving(b"x", guid(1), KEYS[0]))
            while not await store.read(lambda reader: next(queries.chains_of(reader, None), None)):
                await trio.lowlevel.checkpoint()
            assert len(await digests_of(store)) == 1
        assert await digests_of(store) == rows_of(store)
        assert reads == [1]
