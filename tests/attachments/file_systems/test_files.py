"""Behaviour that all file systems of `kinds` share, real or in memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from replicator.store.attachments.disk import DiskFiles
from replicator.store.attachments.files import Files, MissingError, StepOutcome
from tests.attachments.file_systems.kinds import KINDS
from tests.attachments.file_systems.memory import MemoryFiles

DONE, MISSING, EXISTS = StepOutcome.DONE, StepOutcome.MISSING, StepOutcome.EXISTS


def write(files: Files, name: str, data: bytes) -> None:
    writer = files.open_new(name)
    writer.write(data)
    writer.sync()
    writer.close()


def test_directories(files: Files) -> None:
    assert files.make_directory("a/b") is MISSING
    assert files.make_directory("a") is DONE
    assert files.make_directory("a") is EXISTS
    assert files.make_directory("a/b") is DONE
    assert list(files.names("")) == ["a"]
    assert files.remove_directory("a") is EXISTS
    assert files.remove_directory("a/b") is DONE
    assert files.remove_directory("a/b") is MISSING
    assert list(files.names("a")) == []
    with pytest.raises(MissingError):
        list(files.names("a/b"))


def test_empty_files(files: Files) -> None:
    assert files.create_file("a/b") is MISSING
    assert files.create_file("b") is DONE
    assert files.create_file("b") is EXISTS
    assert files.make_directory("b") is EXISTS
    assert files.size("b") == 0
    assert files.remove_file("b") is DONE
    assert files.remove_file("b") is MISSING
    assert files.remove_file("a/b") is MISSING


def test_files_with_content(files: Files) -> None:
    write(files, "a", b"0123456789")
    assert files.size("a") == 10
    assert files.read("a", 0, 100) == b"0123456789"
    assert files.read("a", 3, 4) == b"3456"
    assert files.read("a", 10, 4) == b""
    with pytest.raises(FileExistsError):
        files.open_new("a")
    for name in ("b", "b/c"):
        with pytest.raises(MissingError):
            files.read(name, 0, 1)
        with pytest.raises(MissingError):
            files.size(name)
    with pytest.raises(MissingError):
        files.open_new("b/c")


def test_rename_of_a_file_replaces_a_file(files: Files) -> None:
    write(files, "a", b"old")
    write(files, "b", b"new")
    assert files.rename("b", "a") is DONE
    assert files.read("a", 0, 9) == b"new"
    assert list(files.names("")) == ["a"]
    assert files.rename("b", "a") is MISSING
    assert files.rename("a", "b/c") is MISSING


def test_rename_of_a_directory_takes_its_content_along(files: Files) -> None:
    for name in ("a", "a/b", "other"):
        files.make_directory(name)
    files.create_file("a/b/c")
    assert files.rename("a", "other/a") is DONE
    assert files.create_file("other/a/b/c") is EXISTS
    assert files.create_file("a/b/c") is MISSING


@pytest.mark.parametrize("attempt", range(8))  # the shim refuses in several ways
def test_rename_never_replaces_a_directory_that_is_not_empty(files: Files, attempt: int) -> None:
    for name in ("a", "b", "b/in", "c"):
        files.make_directory(name)
    for _ in range(attempt):
        files.rename("a", "b")
    assert files.rename("a", "b") is EXISTS
    assert files.rename("a", "c/d/e") is MISSING
    assert sorted(files.names("")) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", KINDS)
def test_rename_replaces_an_empty_directory_on_some_file_systems(tmp_path: Path, kind: str) -> None:
    expected = DONE if kind in {"disk", "memory", "model"} else EXISTS
    files = KINDS[kind](tmp_path)
    files.make_directory("a")
    files.create_file("a/in")
    files.make_directory("b")
    assert files.rename("a", "b") is expected
    assert list(files.names("b")) == (["in"] if expected is DONE else [])


def test_syncing_a_directory(files: Files) -> None:
    files.make_directory("a")
    assert files.sync_directory("b") is MISSING
    assert files.sync_directory("") is DONE
    assert files.sync_directory("a") is DONE


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EBADF])
def test_file_system_without_sync_of_directories_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    assert DiskFiles(tmp_path).sync_directory("") is DONE


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_other_sync_errors_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=os.strerror(code)):
        DiskFiles(tmp_path).sync_directory("")


def test_refused_rename_without_a_conflict_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = DiskFiles(tmp_path)
    files.make_directory("a")

    def refuse(_old: Path, _new: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError):
        files.rename("a", "b")


def test_file_removed_by_another_machine_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(_path: Path) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Path, "unlink", stale)
    assert DiskFiles(tmp_path).remove_file("a") is MISSING


def test_full_disk_in_memory_refuses_writes_and_allows_removals() -> None:
    files = MemoryFiles()
    writer = files.open_new("a")
    files.is_full = True
    for attempt in (lambda: files.make_directory("b"), lambda: files.create_file("b"), lambda: writer.write(b"x")):
        with pytest.raises(OSError, match="No space"):
            attempt()
    assert files.remove_file("a") is DONE
