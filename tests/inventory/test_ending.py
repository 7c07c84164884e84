"""Ends of inventories: all files are there and the node reports success, or the files are removed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from replicator.replication.tasks import inventory
from replicator.replication.tasks.inventory import COMMAND, InventoryTask
from replicator.runtime.process.own_program import environment
from replicator.store.inventory.conversation import (
    KEEP,
    Done,
    Event,
    Heads,
    event_of,
    line_of,
    masters_line,
)
from replicator.store.inventory.errors import TargetError
from replicator.store.inventory.targets import Directory, whole_or_nothing
from replicator.tasks import InventoryOptions
from resync.inventory import MANIFEST, TABLES, part_name
from tests.inventory.reading_back import ORDER
from tests.one_node import one_node
from tests.store.harness import open_store, save

ALL = {MANIFEST, *(part_name(table, 0) for table in TABLES)}


def files_of(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    async def fill() -> None:
        async with open_store(tmp_path) as store:
            await save(store, 1)

    trio.run(fill)
    return tmp_path / "node.db"


@contextmanager
def finished_writer(database: Path, to: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process until it has written a whole inventory and waits for the node's confirmation."""
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, env=environment()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line_of(replace(ORDER, database=str(database), to=str(to))))
            event: Event | None = None
            while not isinstance(event, Done):
                process.stdin.flush()
                event = event_of(process.stdout.readline())
                if isinstance(event, Heads):
                    process.stdin.write(masters_line([None] * len(event.keys)))
            assert files_of(to) == ALL
            yield process
        finally:
            process.kill()


def test_process_removes_files_that_its_node_has_not_confirmed(database: Path, tmp_path: Path) -> None:
    """A killed node confirms nothing. Foreign files stay, and so does their directory."""
    (tmp_path / "to").mkdir()
    with finished_writer(database, tmp_path / "to") as process:
        for name in ("letter.txt", "heads/part-00001.parquet"):
            (tmp_path / "to" / name).touch()
        for number in (signal.SIGTERM, signal.SIGINT):  # a service manager or a terminal sends them to all processes
            process.send_signal(number)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 1
    assert {str(path.relative_to(tmp_path / "to")) for path in (tmp_path / "to").rglob("*")} == {
        "letter.txt", "heads", "heads/part-00001.parquet",
    }  # fmt: skip


def test_process_keeps_files_that_its_node_has_confirmed(database: Path, tmp_path: Path) -> None:
    with finished_writer(database, tmp_path / "to") as process:
        assert process.stdin is not None
        process.stdin.write(KEEP)
        process.stdin.close()
        assert process.wait(20) == 0
    assert files_of(tmp_path / "to") == ALL


async def run_cancelled(tmp_path: Path, scope: trio.CancelScope) -> tuple[bool, bool]:
    """Run the task. Return whether it was cancelled, and whether it reports that it is done."""
    (tmp_path / "node").mkdir()
    async with one_node(tmp_path / "node") as mail:
        options = InventoryOptions(to=str(tmp_path / "new" / "to"), endpoint=None, overwrite=False)
        job = InventoryTask(options, mail.store, mail._coordinator)
        with scope:
            await job.run()
        return scope.cancelled_caught, job.status.taken_ms is not None


def test_cancelled_task_leaves_no_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inventory was complete, but the node had not heard of that."""
    scope, found, lines_of = trio.CancelScope(), set[str](), inventory._lines

    async def cancelling(stream: trio.abc.ReceiveStream) -> AsyncGenerator[bytes, None]:
        async with aclosing(lines_of(stream)) as lines:
            async for line in lines:
                if isinstance(event_of(line), Done):
                    found.update(files_of(tmp_path / "new" / "to"))
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
                yield line

    monkeypatch.setattr(inventory, "_lines", cancelling)
    assert trio.run(run_cancelled, tmp_path, scope) == (True, False)
    assert found == ALL
    assert not (tmp_path / "new").exists()


def test_finished_task_cannot_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope, note = trio.CancelScope(), InventoryTask._note

    def cancelling(job: InventoryTask, event: Event) -> None:
        if isinstance(event, Done):
            scope.cancel()
        note(job, event)

    monkeypatch.setattr(InventoryTask, "_note", cancelling)
    assert trio.run(run_cancelled, tmp_path, scope) == (False, True)
    assert files_of(tmp_path / "new" / "to") == ALL


def test_discard_spares_foreign_files_in_place_of_its_own(tmp_path: Path) -> None:
    target = Directory(tmp_path / "to")
    target.prepare(overwrite=False)
    for number in range(3):
        with target.writing(part_name("heads", number)) as file:
            file.write(b"ours")
    (tmp_path / "to" / part_name("heads", 0)).unlink()
    (tmp_path / "to" / part_name("heads", 0)).write_bytes(b"theirs")  # may get the inode of the removed file
    (tmp_path / "to" / part_name("heads", 1)).unlink()
    with suppress(ZeroDivisionError), target.writing(part_name("heads", 3)) as file:
        aside = tmp_path / "to" / "heads" / ".part-00003.parquet.unfinished"
        aside.unlink()
        aside.write_bytes(b"theirs")
        raise ZeroDivisionError
    target.discard()
    assert files_of(tmp_path / "to") == {part_name("heads", 0), "heads/.part-00003.parquet.unfinished"}


def test_overwritten_inventory_is_not_completed(tmp_path: Path) -> None:
    first, second = Directory(tmp_path / "to"), Directory(tmp_path / "to")
    first.prepare(overwrite=False)
    with first.writing(part_name("heads", 0)) as file:
        file.write(b"first")
    second.prepare(overwrite=True)
    with second.writing(part_name("heads", 0)) as file:
        file.write(b"second")
    with first.writing(part_name("messages", 0)) as file:
        file.write(b"first")
    changed = pytest.raises(
        TargetError, match=r"part-00000.parquet was removed or changed while the inventory was being written"
    )
    with changed, whole_or_nothing(first), first.writing(MANIFEST):
        raise AssertionError("it was begun")
    with second.writing(MANIFEST):
        pass
    assert files_of(tmp_path / "to") == {MANIFEST, part_name("heads", 0)}


def test_no_file_is_begun_after_discard(tmp_path: Path) -> None:
    """The writer may go on for a moment while another thread removes its files."""
    (tmp_path / "to").mkdir()
    target = Directory(tmp_path / "to")
    target.prepare(overwrite=False)
    with suppress(TargetError), target.writing(part_name("heads", 0)):
        target.discard()
    with suppress(TargetError), target.writing(part_name("heads", 1)):
        raise AssertionError("it was begun")
    assert not list((tmp_path / "to").iterdir())
