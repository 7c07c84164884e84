import random
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocol.values import Dot
from replicator.errors import DatabaseFailedError, DiskFullError, FolderNotFoundError, UnavailableError
from replicator.runtime.environment import Environment
from replicator.store.bodies.body_rows import read_body
from replicator.store.db import queries, writer
from replicator.store.db.transaction import Commit, Transaction
from replicator.store.store import Store
from tests.store.harness import INBOX, connection_of, expunging, fresh_messages, guid, open_store, save, saving
from tests.store.memory_node import MemoryNode


def count_commits(store: Store) -> list[Commit]:
    commits: list[Commit] = []
    store.listeners.append(commits.append)
    return commits


def job_raising(error: Exception) -> Callable[[Transaction], None]:
    def work(_: Transaction) -> None:
        raise error

    return work


def save_and_fail(tx: Transaction) -> None:
    saving(b"never", guid(999))(tx)
    raise ZeroDivisionError


def expunge_save_and_fail(tx: Transaction) -> None:
    expunging(1)(tx)
    save_and_fail(tx)


async def test_concurrent_jobs_share_a_commit(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        commits = count_commits(store)
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(save, store, number)
        assert len(commits) <= 3
        assert sum(len(commit.logged) for commit in commits) == 100


async def test_batch_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_BATCH", 10)
    async with open_store(tmp_path) as store:
        commits = count_commits(store)
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(save, store, number)
        assert max(len(commit.logged) for commit in commits) == 10


async def test_commits_are_published_in_order_before_callers_resume(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        commits = count_commits(store)

        async def save_and_look(number: int) -> None:
            placed = await store.write(saving(b"text", guid(number)))
            assert placed.dot in [item.entry.dot for commit in commits for item in commit.logged]
            assert placed.dot is not None
            assert store.context["dc1.a"] >= placed.dot.seq

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(save_and_look, number)
        positions = [item.position for commit in commits for item in commit.logged]
        assert positions == list(range(1, 51))


@pytest.mark.parametrize(
    "job", [save_and_fail, job_raising(FolderNotFoundError("gone")), job_raising(sqlite3.IntegrityError("twice"))]
)
async def test_failed_job_does_not_fail_its_batch(tmp_path: Path, job: Callable[[Transaction], None]) -> None:
    async with open_store(tmp_path) as store:
        failed: list[Exception] = []

        async def submit() -> None:
            try:
                await store.write(job)
            except (ZeroDivisionError, FolderNotFoundError, DatabaseFailedError) as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(save, store, number)
                nursery.start_soon(submit)
        assert len(failed) == 10
        assert sorted(message.guid for message in await fresh_messages(store)) == [guid(number) for number in range(10)]
        assert store.context == {"dc1.a": 10}


def test_mail_error_does_not_repeat_the_batch() -> None:
    node = MemoryNode("dc1.a")
    tries: list[int] = []

    def counted(tx: Transaction) -> None:
        tries.append(id(tx))

    assert len(node.write_together([counted, job_raising(FolderNotFoundError("gone")), saving(b"text", guid(1))])) == 3
    assert len(tries) == 1
    assert len(node.commits) == 1


def test_failed_job_leaves_no_trace_in_memory() -> None:
    node = MemoryNode("dc1.a")
    node.write(saving(b"one", guid(1)))
    with pytest.raises(ZeroDivisionError):
        node.write(expunge_save_and_fail)
    assert node.write(saving(b"two", guid(2))).uids == (2,)
    assert [item.entry.dot for item in node.log()] == [Dot("dc1.a", 1), Dot("dc1.a", 2)]


async def test_full_disk_refuses_writes_until_there_is_room(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        view = await store.view(INBOX)
        await save(store, 1)
        [pages] = connection_of(store).execute("PRAGMA page_count").fetchone()
        connection_of(store).execute(f"PRAGMA max_page_count = {pages}")
        large = saving(random.Random(1).randbytes(1 << 20), guid(2))
        for _ in range(3):
            with pytest.raises(DiskFullError):
                await store.write(large)
        assert list(view.messages) == [1]
        stored = await store.read(lambda reader: read_body(reader, view.messages[1].content_hash))
        assert stored == b"text 1"
        connection_of(store).execute("PRAGMA max_page_count = 1000000")
        assert (await store.write(large)).uids == (2,)
        assert store.context == {"dc1.a": 2}


async def test_cancelled_caller_does_not_affect_others(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:

        async def give_up(number: int) -> None:
            with trio.CancelScope() as scope:
                scope.cancel()
                await save(store, number)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(save, store, number)
                nursery.start_soon(give_up, 100 + number)
        await store.flush()
        found = {message.guid for message in await fresh_messages(store)}
        assert found >= {guid(number) for number in range(20)}


async def test_submitted_jobs_are_written_before_closing(tmp_path: Path) -> None:
    release = threading.Event()
    with trio.CancelScope() as scope:
        async with open_store(tmp_path) as store, trio.open_nursery() as nursery:
            nursery.start_soon(store.write, lambda _: release.wait())
            await wait_all_tasks_blocked()
            for number in range(10):
                nursery.start_soon(save, store, number)
            await wait_all_tasks_blocked()
            scope.cancel()
            release.set()
    async with open_store(tmp_path, "dc1.b") as store:
        assert len(await fresh_messages(store)) == 10


async def test_reads_do_not_wait_for_a_write(tmp_path: Path) -> None:
    """A reader sees the state before a transaction while the writer is in the middle of it."""
    async with open_store(tmp_path) as store:
        await save(store, 1)
        writing, read = trio.Event(), trio.Event()

        def work(tx: Transaction) -> None:
            saving(b"two", guid(2))(tx)
            trio.from_thread.run_sync(writing.set)
            trio.from_thread.run(read.wait)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.write, work)
            await writing.wait()
            chain, messages, _ = await store.read(lambda reader: queries.messages(reader, INBOX.mailbox_id))
            assert chain is not None
            assert (chain.uidnext, [message.uid for message in messages]) == (2, [1])
            read.set()
        assert [message.uid for message in await fresh_messages(store)] == [1, 2]


class _FailingConnection(sqlite3.Connection):
    fails = False

    def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
        if self.fails and sql == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        return super().execute(sql, parameters)  # type: ignore[arg-type]


async def test_failing_disk_refuses_changes_and_flush_returns(tmp_path: Path) -> None:
    opened: list[_FailingConnection] = []

    def open_failing(path: Path) -> sqlite3.Connection:
        opened.append(_FailingConnection(path, isolation_level=None, check_same_thread=False))
        return opened[-1]

    async with open_store(tmp_path, environment=Environment(open_database=open_failing)) as store:
        opened[0].fails = True
        with pytest.raises(UnavailableError, match=r"the disk failed \(disk I/O error\)"):
            await save(store, 1)
        await store.flush()
        opened[0].fails = False
        assert await save(store, 2) == 1
