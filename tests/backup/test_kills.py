"""Backups and restores that are killed at every step: at each change of a file, and before each use of a database."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from replicator.backup.database import opened_copy
from replicator.backup.errors import BackupError
from replicator.backup.making import back_up
from replicator.backup.places import Directory
from replicator.backup.restoring import check_backup, restore
from tests.backup.node_files import LARGE, NodeFiles, mail

CHANGES = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "sqlite3.connect"}


def quiet(_done: int, _all: int) -> None:
    pass


def killed_at(step: int, under: Path, work: Callable[[], object]) -> bool:
    """Do the work in a child process that kills itself at this step. Return False if it has no such step."""
    child = os.fork()
    if child == 0:
        left = step

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            is_written = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if (event in CHANGES or is_written) and str(under) in str(arguments[0]):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(count)
            work()
        except BaseException:  # noqa: BLE001 - the child ends here, whatever happens
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {0, -signal.SIGKILL}, "the work failed"
    return status != 0


def test_backup_that_is_killed_is_no_backup(node: NodeFiles, tmp_path: Path) -> None:
    step, before, finished = 0, node.shown(), 0
    while True:
        step += 1
        target = tmp_path / f"backup-{step}"
        is_killed = killed_at(step, target, lambda: back_up(node.config, Directory(target), quiet))  # noqa: B023
        if (target / "manifest.jsonl").exists():
            check_backup(node.config, Directory(target), quiet)
            finished += 1
        else:
            assert (is_killed, finished) == (True, 0)
            with pytest.raises(BackupError, match=r"there is no manifest\.jsonl"):
                check_backup(node.config, Directory(target), quiet)
        if not is_killed:
            break
    assert (step > 10, finished > 1, node.shown(), node.broken_attachments()) == (True, True, before, [])


def aside_shows(directory: Path) -> int:
    """Return the number of messages in a database that was set aside."""
    with closing(opened_copy(directory / "node.db")) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM by_uid").fetchone()[0])


def test_log_of_a_damaged_database_survives_restores_that_are_killed(node: NodeFiles, tmp_path: Path) -> None:
    backup, original, saved = tmp_path / "backup", tmp_path / "original", node.shown()
    back_up(node.config, Directory(backup), quiet)
    (node.data / "node.db").write_bytes(b"garbage")
    (node.data / "node.db-wal").write_bytes(b"more of it")
    shutil.copytree(node.data, original, ignore=shutil.ignore_patterns("*.sock"))
    step, is_killed, without_log = 0, True, 0

    def run() -> str:
        return str(restore(node.config, Directory(backup), quiet, replace=True).set_aside)

    while is_killed:
        step += 1
        shutil.rmtree(node.data)
        shutil.copytree(original, node.data)
        is_killed = killed_at(step, node.data / "node.db", run)
        if not is_killed or (node.data / "node.db").read_bytes() != b"garbage":
            break
        without_log += not (node.data / "node.db-wal").exists()
        aside = Path(run())
        found = ((aside / "node.db").read_bytes(), (aside / "node.db-wal").read_bytes(), node.shown())
        assert found == (b"garbage", b"more of it", saved), step
        assert len(list(node.data.glob("replaced.*"))) == 1
    assert (step > 10, without_log > 0) == (True, True)


@pytest.mark.long
def test_restore_that_is_killed_leaves_the_old_data_or_the_new_and_goes_on(node: NodeFiles, tmp_path: Path) -> None:
    backup, saved = tmp_path / "backup", node.shown()
    back_up(node.config, Directory(backup), quiet)
    node.deliver(mail("later"), mail("later and large", LARGE))
    later, original = node.shown(), tmp_path / "original"
    shutil.copytree(node.data, original, ignore=shutil.ignore_patterns("*.sock"))
    for is_empty in (False, True):
        step, seen = 0, set[bool]()
        while True:
            step += 1
            shutil.rmtree(node.data)
            if not is_empty:
                shutil.copytree(original, node.data)

            def run() -> None:
                restore(node.config, Directory(backup), quiet, replace=True)

            is_killed = killed_at(step, node.data, run)
            is_restored = (node.data / "node.db").exists() and node.shown() != later
            seen.add(is_restored)
            if is_restored:
                assert node.shown() == saved, step
            else:
                assert is_empty or node.shown() == later, step
            if is_restored or not is_empty:
                assert node.broken_attachments() == [], step
            run()
            assert (node.shown(), node.broken_attachments()) == (saved, []), step
            left = {
                path.name for path in node.data.iterdir() if path.name.startswith(("node.db", "attach", "replaced"))
            }
            asides = {name for name in left if name.startswith("replaced.")}
            assert left - asides == {"node.db", "node.db.lock", "attachments"}
            of_later = [name for name in asides if aside_shows(node.data / name) == len(later)]
            assert len(of_later) == (not is_empty), step
            if not is_killed:
                break
        assert (step > 20, seen) == (True, {False, True})
