"""Rounds of checkpoints at one node, and what they leave if something interrupts them."""

import logging
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgpack
import pytest
import trio
from trio.testing import MockClock

from replicator.config import LogConfig
from replicator.errors import UnavailableError
from replicator.replication import timing
from replicator.replication.checkpoints import checkpoint_writer
from replicator.replication.tasks.check import CheckTask
from replicator.runtime.environment import Environment, open_scratch
from replicator.runtime.objects import ObjectInfo, ObjectStore, ObjectStoreError
from replicator.store.checkpoints import catalog
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.tasks import CheckOptions
from tests.replication.checkpoints.one_store import LIMITS, Cluster, change, no_body, running
from tests.replication.cluster import virtual_environment
from tests.store.consistency import check_file
from tests.store.harness import INBOX, WORK, save


class CrashError(BaseException):
    """A crash of the node, after which it does nothing any more."""


class FragileStore(ObjectStore):
    """An object store that crashes the node at step `crash_at`, and fails as long as `fails` is set."""

    def __init__(self, url: str, environment: Environment) -> None:
        super().__init__(url, environment)
        self.fails = False
        self.steps = 0
        self.crash_at = 1 << 30

    def step(self) -> None:
        if self.fails:
            raise ObjectStoreError(f"{self._url}: it fails; wait")
        self.steps += 1
        if self.steps == self.crash_at:
            raise CrashError

    async def put(self, name: str, data: Iterable[bytes]) -> None:
        self.step()
        await super().put(name, data)
        self.step()

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        self.step()
        async for info in super().list(prefix):
            yield info

    async def delete(self, names: Sequence[str]) -> None:
        self.step()
        await super().delete(names)
        self.step()


class SlowStore(ObjectStore):
    """An object store that completes each upload when the test lets it."""

    def __init__(self, url: str, environment: Environment) -> None:
        super().__init__(url, environment)
        self.send_name, self.begun = trio.open_memory_channel[str](0)
        self.may_go_on = trio.Semaphore(0)

    async def put(self, name: str, data: Iterable[bytes]) -> None:
        await self.send_name.send(name)
        await self.may_go_on.acquire()
        await super().put(name, data)


class ForgetfulStore(ObjectStore):
    """An object store that calls `meanwhile`, once, while manifests are listed."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def list(self, prefix: str = "") -> AsyncGenerator[ObjectInfo, None]:
        if self.meanwhile is not None and prefix.endswith("manifests/dc1"):
            happens, self.meanwhile = self.meanwhile, None
            await happens()
        async for info in super().list(prefix):
            yield info


@pytest.mark.parametrize(
    "small_bytes", [0, 400, checkpoint_writer.SMALL_BYTES], ids=["all_large", "mixed", "all_small"]
)
async def test_entries_in_a_manifest_leave_the_log(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr(checkpoint_writer, "SMALL_BYTES", small_bytes)
    async with running(tmp_path, autojump_clock) as node:
        await change(node.store)
        status = await node.log_truncation.checkpoint_now()
        assert (status.mailboxes, status.saved, status.in_force, status.error) == (3, 3, True, None)
        assert await node.log_entries() == 0
        assert await node.objects() == await node.listed()
        await node.assert_sound()
        await save(node.store, 10)
        status = await node.log_truncation.checkpoint_now()
        assert (status.mailboxes, status.saved) == (3, 1)
        assert await node.objects() == await node.listed()
        await save(node.store, 11)
        await node.assert_sound()
        assert await node.log_entries() == 1
    check_file(tmp_path / "node.db")
    async with running(tmp_path, autojump_clock, run="2") as node:
        await node.assert_sound()
        await save(node.store, 12)
        assert (await node.log_truncation.checkpoint_now()).saved == 1
        await node.assert_sound()


@pytest.mark.long
async def test_unchanged_mailboxes_are_not_written_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock) as node:
        assert (await node.log_truncation.checkpoint_now()).made_ms is None
        await change(node.store)
        first = await node.log_truncation.checkpoint_now()
        await trio.sleep(80_000)
        assert await node.log_truncation.checkpoint_now() == first


async def test_round_starts_every_hour(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock) as node:
        await change(node.store)
        await trio.sleep(3590)
        assert node.log_truncation.checkpoint_status().made_ms is None
        await trio.sleep(30)
        first = node.log_truncation.checkpoint_status()
        assert first.in_force
        await save(node.store, 10)
        await trio.sleep(3000)
        assert node.log_truncation.checkpoint_status().made_ms == first.made_ms
        await trio.sleep(700)
        assert (node.log_truncation.checkpoint_status().made_ms or 0) > (first.made_ms or 0)
        assert await node.log_entries() == 0


async def test_log_grown_by_a_quarter_of_its_limit_starts_a_round(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.replication.checkpoints.one_store.LIMITS", LogConfig(max_size_bytes=40_000))
    async with running(tmp_path, autojump_clock) as node:
        for number in range(20):
            await save(node.store, number)
        await trio.sleep(30)
        assert 0 < node.log_truncation.checkpoint_status().log_bytes < 10_000
        assert await node.log_entries() == 20
        for number in range(20, 60):
            await save(node.store, number)
        await trio.sleep(30)
        assert await node.log_entries() == 0
    async with running(tmp_path, autojump_clock, run="2") as node:
        for number in range(60, 120):
            await save(node.store, number)
        await trio.sleep(30)
        assert await node.log_entries() == 0
        assert await node.objects() == await node.listed()


@pytest.mark.long
async def test_log_is_kept_for_an_absent_node_until_its_limit(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster()
    cluster.away = ["dc7", "dc9"]
    async with running(tmp_path, autojump_clock, cluster=cluster) as node:
        await change(node.store)
        status = await node.log_truncation.checkpoint_now()
        assert (status.in_force, status.waits_for) == (False, ("dc7", "dc9"))
        entries = await node.log_entries()
        await trio.sleep(LIMITS.keep_s - 100)
        assert await node.log_entries() == entries
        with caplog.at_level(logging.WARNING):
            await trio.sleep(200)
        assert "dc7, dc9" in caplog.text
        assert await node.log_entries() == 0
        assert node.log_truncation.checkpoint_status().in_force
        await node.assert_sound()


async def test_pending_manifest_is_kept_until_it_is_in_force(tmp_path: Path, autojump_clock: MockClock) -> None:
    cluster = Cluster()
    async with running(tmp_path, autojump_clock, cluster=cluster) as node:
        await change(node.store)
        await node.log_truncation.checkpoint_now()
        in_force = await node.objects()
        cluster.away = ["dc9"]
        for first in (10, 20, 30):
            await change(node.store, first)
            status = await node.log_truncation.checkpoint_now()
            assert (status.in_force, status.saved) == (False, 2)
            now = await node.objects()
            assert in_force <= now
            assert len(now - in_force) == 3, "two checkpoints and a manifest"
            await node.assert_sound()
        cluster.away = []
        await trio.sleep(20)
        assert await node.objects() == await node.listed()
        assert await node.log_entries() > 0, "entries that came since"
        await node.log_truncation.checkpoint_now()
        assert await node.log_entries() == 0


async def test_failing_object_store_only_stops_log_truncation(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    environment = virtual_environment(autojump_clock, "objects")
    objects = FragileStore((tmp_path / "objects").as_uri(), environment)
    objects.fails = True
    async with running(tmp_path, autojump_clock, objects) as node:
        await change(node.store)
        with pytest.raises(UnavailableError, match="it fails; wait"):
            await node.log_truncation.checkpoint_now()
        with caplog.at_level(logging.INFO):
            await trio.sleep(10_000)
        assert caplog.text.count("the log is kept whole") <= 1
        assert "it fails" in (node.log_truncation.checkpoint_status().error or "")
        assert await node.log_entries() > 0
        await node.assert_sound()
        objects.fails = False
        with caplog.at_level(logging.INFO):
            await trio.sleep(700)
        assert node.log_truncation.checkpoint_status().error is None
        assert "written again" in caplog.text
        assert await node.log_entries() == 0


async def test_wal_can_be_truncated_during_an_upload(tmp_path: Path, autojump_clock: MockClock) -> None:
    objects = SlowStore((tmp_path / "objects").as_uri(), virtual_environment(autojump_clock, "objects"))
    async with running(tmp_path, autojump_clock, objects) as node, trio.open_nursery() as nursery:
        await change(node.store)
        nursery.start_soon(node.log_truncation.checkpoint_now)
        for number in range(4):
            name = await objects.begun.receive()
            assert name.endswith(".manifest") == (number == 3)
            await save(node.store, 100 + number)
            with closing(sqlite3.connect(tmp_path / "node.db")) as other:
                assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
            assert not (tmp_path / "node.db-wal").stat().st_size
            objects.may_go_on.release()
    check_file(tmp_path / "node.db")


async def test_hanging_upload_is_given_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    objects = SlowStore((tmp_path / "objects").as_uri(), virtual_environment(autojump_clock, "objects"))
    async with running(tmp_path, autojump_clock, objects) as node:
        await change(node.store)
        with trio.fail_after(1900), pytest.raises(UnavailableError, match="did not answer within 1800 s"):
            await node.log_truncation.checkpoint_now()
        assert await node.objects() == set()


async def test_full_disk_for_temporary_files_keeps_the_log(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_full = True
    monkeypatch.setattr(checkpoint_writer, "SMALL_BYTES", 0)

    def open_there(directory: Path) -> BinaryIO:
        return Path("/dev/full").open("w+b") if is_full else open_scratch(directory)

    async with running(tmp_path, autojump_clock, open_scratch=open_there) as node:
        await change(node.store)
        entries = await node.log_entries()
        with pytest.raises(
            UnavailableError,
            match=rf"^{tmp_path}: cannot write or read a temporary file: No space left on device; is there",
        ):
            await node.log_truncation.checkpoint_now()
        assert "the log is kept whole" in caplog.text
        assert (await node.log_entries(), await node.objects()) == (entries, set())
        is_full = False
        assert (await node.log_truncation.checkpoint_now()).in_force
        assert await node.objects() == await node.listed()
        await node.assert_sound()


async def test_manifest_lists_checkpoint_forgotten_while_it_is_made(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The log is truncated by the manifest, so a state that it does not list would be lost."""
    objects = ForgetfulStore((tmp_path / "objects").as_uri(), virtual_environment(autojump_clock, "objects"))
    async with running(tmp_path, autojump_clock, objects) as node:
        await change(node.store)
        await trio.sleep(60)

        async def forget() -> None:
            (saved,) = await node.store.read(partial(catalog.heads_of, chain_id=INBOX.mailbox_id))
            await node.store.write(partial(catalog.forget_unreadable, head=saved))

        objects.meanwhile = forget
        status = await node.log_truncation.checkpoint_now()
        assert objects.meanwhile is None
        assert (status.mailboxes, status.saved, status.in_force) == (3, 4, True)
        assert len(await node.listed()) == 4
        assert await node.objects() == await node.listed()
        assert await node.log_entries() == 0
        await node.assert_sound()


async def check_goes_on(tmp_path: Path, clock: MockClock, objects: ObjectStore, run: str) -> None:
    """Check that nothing is lost, and that a round leaves no object that the manifest does not list."""
    async with running(tmp_path, clock, objects, run=run) as node:
        await node.assert_sound()
        await save(node.store, 500)
        status = await node.log_truncation.checkpoint_now()
        assert (status.in_force, status.error) == (True, None)
        assert await node.log_entries() == 0
        assert await node.objects() == await node.listed()
        await node.assert_sound()
        shown = {chain.id: chain.messages for chain in await node.store.read(partial(all_chains))}
        assert shown[INBOX.mailbox_id] == 9
    check_file(tmp_path / "node.db")


def all_chains(connection: sqlite3.Connection) -> list[Chain]:
    return list(queries.chains_of(connection, None))


async def crash_in_second_round(
    tmp_path: Path,
    clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    *,
    object_step: int = 1 << 30,
    write: int = 1 << 30,
) -> bool:
    """Run two rounds and crash in the second one. Return False if it has fewer steps and ends undisturbed."""
    environment = virtual_environment(clock, "objects")
    objects = FragileStore((tmp_path / "objects").as_uri(), environment)
    async with running(tmp_path, clock, objects) as node:
        await change(node.store)
        await node.log_truncation.checkpoint_now()
        await change(node.store, 10)
        objects.crash_at, writes, really_write = objects.steps + object_step, 0, node.store.write

        async def cut(work: object) -> object:
            nonlocal writes
            writes += 1
            if writes == write or objects.steps >= objects.crash_at:
                raise CrashError
            return await really_write(work)  # type: ignore[arg-type]

        monkeypatch.setattr(node.store, "write", cut)
        has_crashed = False
        try:
            await node.log_truncation._look(is_demanded=True)
        except* CrashError:
            has_crashed = True
        finally:
            monkeypatch.undo()
    return has_crashed


@pytest.mark.parametrize("kind", ["object_step", "write"])
async def test_crash_at_any_step_loses_nothing(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for step in range(1, 40):
        directory = tmp_path / f"{step}"
        directory.mkdir()
        if not await crash_in_second_round(directory, autojump_clock, monkeypatch, **{kind: step}):
            assert step > 5
            return
        objects = ObjectStore((directory / "objects").as_uri(), virtual_environment(autojump_clock, "again"))
        await check_goes_on(directory, autojump_clock, objects, "2")
    raise AssertionError("a round has fewer steps")


async def test_node_restored_from_a_backup_writes_a_new_manifest(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, autojump_clock) as node:
        await change(node.store)
        await node.log_truncation.checkpoint_now()
        with (
            closing(sqlite3.connect(tmp_path / "node.db")) as source,
            closing(sqlite3.connect(tmp_path / "old")) as old,
        ):
            source.backup(old)
        await change(node.store, 10)
        await node.log_truncation.checkpoint_now()
    for name in ("node.db", "node.db-wal", "node.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / "old").rename(tmp_path / "node.db")
    with caplog.at_level(logging.WARNING):
        async with running(tmp_path, autojump_clock, run="2") as node:
            await node.log_truncation.checkpoint_now()
            assert "not the one that node.db names" in caplog.text
            assert await node.objects() == await node.listed()
            await node.assert_sound()
            await save(node.store, 30)
            await node.assert_sound()


async def test_lost_checkpoint_is_written_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock) as node:
        await change(node.store)
        await node.log_truncation.checkpoint_now()
        first = next(name for name in await node.objects() if name.endswith(".mailbox"))
        await node.archive.delete([first])
        await node.assert_sound(unproven=1)
        await trio.sleep(30)
        assert await node.objects() == await node.listed()
        await node.assert_sound()


async def test_check_does_not_repair_unproven_mailboxes(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A mailbox must not be deleted because its entries and its checkpoints are gone."""
    cluster = Cluster()
    async with running(tmp_path, autojump_clock, cluster=cluster) as node:
        await change(node.store)
        await node.log_truncation.checkpoint_now()
        while await node.store.write(catalog.forget):
            pass
        job = CheckTask(CheckOptions(repair=True), node.store, node.environment, no_body, node.bases)
        await job.run()
        assert (job.status.damage, job.status.unproven) == ({}, 3)
        assert len(await node.store.read(all_chains)) == 3


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM by_uid WHERE uid = 3 AND mailbox = ?",
        "UPDATE by_uid SET modseq = modseq + 1 WHERE uid = 3 AND mailbox = ?",
        "UPDATE folder SET name = 'Play' WHERE mailbox_id <> ?",
        "UPDATE chain SET context = x'c1' WHERE id = ?",
        "UPDATE chain SET context = x'81a56463312e31a178' WHERE id = ?",
        "UPDATE chain SET fingerprint = 7 WHERE id = ?",
    ],
)
async def test_damaged_mailbox_gets_no_checkpoint_and_keeps_the_log(
    tmp_path: Path, autojump_clock: MockClock, damage: str
) -> None:
    async with running(tmp_path, autojump_clock) as node:
        await change(node.store)
        entries = await node.log_entries()
        await node.store.write(lambda tx: tx.connection.execute(damage, (INBOX.mailbox_id,)).rowcount)
        with pytest.raises(UnavailableError, match="check --repair"):
            await node.log_truncation.checkpoint_now()
        assert await node.log_entries() == entries
        assert len(await node.objects()) == 2  # checkpoints of the undamaged mailbox and tree
        job = CheckTask(CheckOptions(repair=True), node.store, node.environment, no_body, node.bases)
        await job.run()
        assert job.status.damage
        assert (await node.log_truncation.checkpoint_now()).in_force
        assert await node.objects() == await node.listed()
        await node.assert_sound()


async def test_damage_after_a_checkpoint_does_not_end_log_truncation(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock) as node:
        await change(node.store)
        await node.log_truncation.checkpoint_now()
        await save(node.store, 50, WORK)
        damage = "UPDATE chain SET context = x'c1' WHERE id = ?"
        await node.store.write(lambda tx: tx.connection.execute(damage, (INBOX.mailbox_id,)).rowcount)
        with pytest.raises(UnavailableError, match="check --repair"):
            await node.log_truncation.checkpoint_now()
        assert await node.log_entries() == 1


async def test_garbled_time_in_the_log_does_not_end_log_truncation(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock) as node:
        await change(node.store)
        first = "UPDATE log SET time = 'noon' WHERE position = 1"
        await node.store.write(lambda tx: tx.connection.execute(first).rowcount)
        await trio.sleep(20)
        assert "check --repair" in (node.log_truncation.checkpoint_status().error or "")
        head = "UPDATE log SET time = CASE position WHEN 1 THEN 1 ELSE 'noon' END"  # the first entry is the tree's
        await node.store.write(lambda tx: tx.connection.execute(head).rowcount)
        with pytest.raises(UnavailableError, match="check --repair"):
            await node.log_truncation.checkpoint_now()
        assert [name.endswith(".tree") for name in await node.objects()] == [True]


async def test_damaged_manifest_row_does_not_end_log_truncation(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with running(tmp_path, autojump_clock) as node:
        await change(node.store)
        await node.log_truncation.checkpoint_now()
        await save(node.store, 50)
        damage = "UPDATE manifest SET covered = x'c1'"
        await node.store.write(lambda tx: tx.connection.execute(damage).rowcount)
        with pytest.raises(UnavailableError, match="a manifest's row cannot be read"):
            await node.log_truncation.checkpoint_now()
        assert await node.log_entries() == 1


async def test_size_limit_spares_entries_that_clients_may_wait_for(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.replication.checkpoints.one_store.LIMITS", LogConfig(max_size_bytes=300))
    cluster = Cluster()
    cluster.away = ["dc9"]
    async with running(tmp_path, autojump_clock, cluster=cluster) as node:
        await change(node.store)
        assert not (await node.log_truncation.checkpoint_now()).in_force
        entries = await node.log_entries()
        await trio.sleep(timing.LONGEST_WAIT_S - 5)
        assert await node.log_entries() == entries
        await trio.sleep(20)
        assert await node.log_entries() < entries


async def test_only_the_unreadable_checkpoint_is_forgotten(tmp_path: Path, autojump_clock: MockClock) -> None:
    cluster = Cluster()
    async with running(tmp_path, autojump_clock, cluster=cluster) as node:
        await change(node.store)
        await node.log_truncation.checkpoint_now()
        cluster.away = ["dc9"]
        await save(node.store, 50)
        await node.log_truncation.checkpoint_now()
        saved = await node.store.read(partial(catalog.heads_of, chain_id=INBOX.mailbox_id))
        await node.store.write(partial(catalog.forget_unreadable, head=saved[1]))
        assert await node.store.read(partial(catalog.heads_of, chain_id=INBOX.mailbox_id)) == saved[:1]
        assert not await node.store.read(partial(catalog.is_unproven, chain_id=INBOX.mailbox_id))
        await node.store.write(partial(catalog.forget_unreadable, head=saved[0]))
        assert await node.store.read(partial(catalog.is_unproven, chain_id=INBOX.mailbox_id))


async def test_manifest_covers_states_installed_ahead_of_the_log(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A mailbox that was installed from a checkpoint or by SYNC may include more than this node's log."""
    async with running(tmp_path, autojump_clock) as node:
        await change(node.store)
        ahead = msgpack.packb({"dc1.1": 99, "dc7.1": 5})
        await node.store.write(
            lambda tx: tx.connection.execute("UPDATE chain SET context = ? WHERE id = ?", (ahead, WORK.mailbox_id))
        )
        node.cluster.away = ["dc9"]
        await node.log_truncation.checkpoint_now()
        (pending,) = await node.store.read(catalog.rounds)
        assert (pending.covered["dc7.1"], pending.covered["dc1.1"]) == (5, 99)
