"""Both commands, ended by signals in the middle."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from replicator.backup.making import back_up as make_backup
from replicator.backup.places import Directory
from tests.backup.node_files import NodeFiles
from tests.backup.signalled import run_signalled

TWICE = [
    pytest.param([number, *again], id=number.name)
    for number, again in (
        (signal.SIGTERM, [signal.SIGHUP, signal.SIGTERM]),
        (signal.SIGHUP, [signal.SIGHUP]),
        (signal.SIGINT, []),
    )
]


@pytest.mark.parametrize("numbers", TWICE)
def test_backup_that_is_ended_leaves_nothing(node: NodeFiles, tmp_path: Path, numbers: list[int]) -> None:
    to = tmp_path / "backup"
    command = ["backup", "--to", str(to), "--config", str(node.config_file)]
    done = run_signalled(command, to / "files" / ".aliases.unfinished", numbers)
    assert (done.returncode, f"Error: the backup to {to} was interrupted\n" == done.stderr) == (1, True), done.stderr
    assert list(to.iterdir()) == []


@pytest.mark.parametrize("numbers", TWICE)
def test_restore_that_is_ended_leaves_the_old_data(node: NodeFiles, tmp_path: Path, numbers: list[int]) -> None:
    make_backup(node.config, Directory(tmp_path / "backup"), lambda _done, _all: None)
    before, files = node.shown(), {path.name for path in node.data.iterdir()}
    command = ["restore", "--replace", "--from", str(tmp_path / "backup"), "--config", str(node.config_file)]
    done = run_signalled(command, tmp_path / "backup" / "files" / "aliases", numbers)
    assert (done.returncode, "was interrupted\n" in done.stderr) == (1, True), done.stderr
    assert ({path.name for path in node.data.iterdir()}, node.shown()) == (files | {"node.db.lock"}, before)


def test_backup_under_nohup_outlives_its_terminal(node: NodeFiles, tmp_path: Path) -> None:
    to = tmp_path / "backup"
    command = ["backup", "--to", str(to), "--config", str(node.config_file)]
    done = run_signalled(command, to / "files" / ".aliases.unfinished", [signal.SIGHUP], ignored=[signal.SIGHUP])
    assert (done.returncode, (to / "manifest.jsonl").exists()) == (0, True), done.stderr


def test_backup_in_the_background_leaves_interrupts_to_the_foreground(node: NodeFiles, tmp_path: Path) -> None:
    to = tmp_path / "backup"
    command = ["backup", "--to", str(to), "--config", str(node.config_file)]
    done = run_signalled(command, to / "files" / ".aliases.unfinished", [signal.SIGINT], ignored=[signal.SIGINT])
    assert (done.returncode, (to / "manifest.jsonl").exists()) == (0, True), done.stderr


def test_backup_in_the_background_heeds_sigterm(node: NodeFiles, tmp_path: Path) -> None:
    to = tmp_path / "backup"  # shells start commands in the background with SIGINT ignored
    command = ["backup", "--to", str(to), "--config", str(node.config_file)]
    done = run_signalled(command, to / "files" / ".aliases.unfinished", [signal.SIGTERM], ignored=[signal.SIGINT])
    assert (done.returncode, list(to.iterdir())) == (1, []), done.stderr
