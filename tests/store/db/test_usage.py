"""Contents of users' mailboxes, as the store remembers them: the same as a count of all rows, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replicator.store.db.chain import Usage
from replicator.store.db.memory import usage_cache
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.repair.row_repair import compare_and_mend
from tests.store.harness import INBOX, WORK, check_usages, copying, expunging, guid, open_store, saving, source

BOBS = MailboxKey("bob", b"bobs----" * 2, 9)
KEYS = [INBOX, WORK, BOBS]
Work = Callable[[Transaction], object]


def failing(work: Work) -> Work:
    """Return a job that undoes its whole transaction after this work."""

    def fail(tx: Transaction) -> None:
        work(tx)
        raise RuntimeError("undone")

    return fail


JOBS = st.one_of(
    st.builds(
        lambda number, size, key: saving(b"x" * size, guid(number), key),
        st.integers(1, 20),
        st.integers(0, 300),
        st.sampled_from(KEYS),
    ),
    st.builds(lambda number, key: copying(INBOX, [source(number)], key), st.integers(1, 20), st.sampled_from(KEYS)),
    st.builds(lambda uid, key: expunging(uid, key=key), st.integers(1, 9), st.sampled_from(KEYS)),
)
NAMES = st.sampled_from(["alice", "bob", "nobody"])
ALONE = st.lists(st.one_of(NAMES, JOBS, JOBS.map(failing)), min_size=1, max_size=4)  # a failure parts the others
TOGETHER = st.lists(st.one_of(NAMES, JOBS, JOBS), min_size=1, max_size=8)


@given(st.lists(st.one_of(TOGETHER, ALONE), max_size=12))
@example([["alice", saving(b"one", guid(1)), saving(b"two", guid(2))]])
@settings(deadline=None, max_examples=60)
def test_remembered_usage_is_that_of_all_rows(batches: list[list[str | Work]]) -> None:
    """Each batch is submitted at once, so it shares transactions; a name asks for that user's usage in between.

    One user is remembered at a time, so users are often counted again.
    """

    async def run(directory: Path) -> None:
        async with open_store(directory) as store:

            async def submit(step: str | Work) -> None:
                try:
                    await (store.usage(step) if isinstance(step, str) else store.write(step))
                except RuntimeError:
                    assert callable(step)

            for batch in batches:
                async with trio.open_nursery() as nursery:
                    for step in batch:
                        nursery.start_soon(submit, step)
                check_usages(store)
            for user in ("alice", "bob"):
                await store.usage(user)
                assert check_usages(store) == 1

    with TemporaryDirectory() as name, patch.object(usage_cache, "USERS_IN_MEMORY", 1):
        trio.run(partial(run, Path(name)))


async def test_users_who_were_not_asked_about_for_long_are_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_cache, "USERS_IN_MEMORY", 2)
    async with open_store(tmp_path) as store:
        await store.write(saving(b"four", guid(1)))
        for user in ("alice", "bob", "carol", "dave"):
            await store.usage(user)
        assert check_usages(store) == 2
        await store.write(saving(b"seven..", guid(2)))
        assert await store.usage("alice") == Usage(2, 11)


async def test_count_includes_what_its_transaction_changes_later(tmp_path: Path) -> None:
    def count_and_save(tx: Transaction) -> None:
        tx.count_usage("alice")
        saving(b"four", guid(1))(tx)

    async with open_store(tmp_path) as store:
        await store.write(count_and_save)
        assert check_usages(store) == 1


async def test_counters_that_a_repair_sets_right_are_counted_anew(tmp_path: Path) -> None:
    def damage(tx: Transaction) -> None:
        tx.connection.execute("UPDATE chain SET size_bytes = 99")
        tx.memory.chains.clear()

    async with open_store(tmp_path) as store:
        await store.write(saving(b"four", guid(1)))
        await store.write(damage)
        assert await store.usage("alice") == Usage(1, 99)
        await store.write(lambda tx: compare_and_mend(tx, INBOX.mailbox_id, doubted=True))
        assert await store.usage("alice") == Usage(1, 4)
