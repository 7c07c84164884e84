"""What the store remembers of all mailboxes and trees together: the same as a count of all, whatever happens."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replicator.runtime.environment import Environment
from replicator.store.db import queries, tally
from replicator.store.db.damage import DatabaseDamagedError
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Commit, Transaction
from replicator.store.log.sequencing import folder_sequencer
from replicator.store.repair.row_repair import compare_and_mend
from replicator.store.store import Store
from tests.effort import examples
from tests.store.harness import INBOX, Job, check_tally, connection_of, expunging, guid, open_store, saving

KEYS = [MailboxKey(f"user{number}", bytes([number]) * 16, 9) for number in range(1, 7)]


def creating(number: int) -> Job[object]:
    def create(tx: Transaction) -> None:
        folder_sequencer.create_folder(
            tx, f"user{number}", f"Folder{len(tx.commit.logged)}", guid(number), spare_ids=iter([])
        )

    return create


def failing(work: Job[object]) -> Job[object]:
    """Return a job that undoes its whole transaction after this work."""

    def fail(tx: Transaction) -> None:
        work(tx)
        raise RuntimeError("undone")

    return fail


def counting(tx: Transaction) -> None:
    tx.extend_count()


JOBS: st.SearchStrategy[Job[object]] = st.one_of(
    st.builds(lambda number, key: saving(b"x", guid(number), key), st.integers(1, 20), st.sampled_from(KEYS)),
    st.builds(lambda uid, key: expunging(uid, key=key), st.integers(1, 9), st.sampled_from(KEYS)),
    st.builds(creating, st.integers(1, 6)),
    st.just(counting),
)
ALONE = st.lists(st.one_of(JOBS, JOBS.map(failing)), min_size=1, max_size=3)  # a failure parts the others
TOGETHER = st.lists(JOBS, min_size=1, max_size=8)


@given(st.lists(st.one_of(TOGETHER, ALONE), max_size=12))
@example([[saving(b"one", guid(1), KEYS[0])], [counting, saving(b"two", guid(2), KEYS[0])]])
@settings(deadline=None, max_examples=examples(25, 60))
def test_the_tally_is_that_of_all_rows(batches: list[list[Job[object]]]) -> None:
    """Each batch is submitted at once, so it shares transactions; a slice has one mailbox or tree."""

    async def run(directory: Path) -> None:
        async with open_store(directory) as store:

            async def submit(work: Job[object]) -> None:
                with suppress(RuntimeError):
                    await store.write(work)

            for batch in batches:
                async with trio.open_nursery() as nursery:
                    for work in batch:
                        nursery.start_soon(submit, work)
            await store.count()
            check_tally(store)
            await store.write(saving(b"last", guid(99), KEYS[2]))
            await store.count()
            check_tally(store)

    with TemporaryDirectory() as name, patch.object(tally, "SLICE_CHAINS", 1):
        trio.run(run, Path(name))


async def test_a_failed_batch_does_not_begin_the_count_anew(tmp_path: Path) -> None:
    with patch.object(tally, "SLICE_CHAINS", 1):
        async with open_store(tmp_path) as store:
            for key in KEYS:
                await store.write(saving(b"one", guid(key.mailbox_id[0]), key))
            await store.count_slice()
            with pytest.raises(RuntimeError):
                await store.write(failing(saving(b"two", guid(9), KEYS[0])))
            slices = 2
            while not await store.count_slice():
                slices += 1
            assert slices == len(KEYS) + 1  # the last one finds nothing more
            check_tally(store)


async def test_repaired_rows_are_counted_anew(tmp_path: Path) -> None:
    def damage(tx: Transaction) -> None:
        tx.connection.execute("UPDATE chain SET messages = 7")
        tx.memory.chains.clear()

    async with open_store(tmp_path) as store:
        await store.write(saving(b"one", guid(1)))
        await store.write(damage)
        await store.count()
        check_tally(store)
        await store.write(partial(compare_and_mend, chain_id=INBOX.mailbox_id, doubted=True))
        assert next(queries.chains_of(connection_of(store), None)).messages == 1
        await store.count()
        check_tally(store)


async def test_a_restart_finds_the_sum_that_the_last_commit_has_left(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await store.write(saving(b"one", guid(1)))
        await store.count()
        await store.write(saving(b"two", guid(2), KEYS[1]))
        before = store.tally
    async with open_store(tmp_path) as store:
        assert store.tally == before
        await store.write(saving(b"three", guid(3), KEYS[2]))
        check_tally(store)


async def test_a_sum_that_rows_have_left_is_known_while_they_are_counted_anew(tmp_path: Path) -> None:
    def damage(tx: Transaction) -> None:
        tx.connection.execute("UPDATE chain SET messages = 7")
        tx.memory.chains.clear()

    with patch.object(tally, "SLICE_CHAINS", 1):
        async with Store.open(tmp_path / "node.db", "dc1.a", Environment()) as store:
            for key in KEYS:
                await store.write(saving(b"one", guid(key.mailbox_id[0]), key))
            await store.count()
            before = store.tally
            await store.write(damage)
            assert not await store.count_slice()
            assert store.tally == before
            await store.count()
            assert store.tally != before
            assert store.miscounts == 1
            check_tally(store)
            await store.count()
            assert store.miscounts == 1


async def test_an_unreadable_row_fails_whoever_counts_and_no_other_job(tmp_path: Path) -> None:
    def damage(tx: Transaction) -> None:
        tx.connection.execute("UPDATE chain SET context = x'c1' WHERE id = ?", (KEYS[1].mailbox_id,))
        tx.memory.chains.clear()

    async with Store.open(tmp_path / "node.db", "dc1.a", Environment()) as store:
        for key in KEYS[:2]:
            await store.write(saving(b"one", guid(key.mailbox_id[0]), key))
        await store.write(damage)
        commits: list[Commit] = []
        store.listeners.append(commits.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.write, saving(b"two", guid(9), KEYS[0]))
            with pytest.raises(DatabaseDamagedError):
                await store.count()
        assert sum(len(commit.logged) for commit in commits) == 1  # in one commit with the count, or in one of its own


async def test_sum_beside_the_writer_is_the_same(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        for key in KEYS:
            await store.write(saving(b"one", guid(key.mailbox_id[0]), key))
        await store.count()
        assert await store.read(tally.count_all) == store.tally
