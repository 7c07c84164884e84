"""The syncs that an attachment store makes on a real disk, and what else only a real disk shows."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from replicator.store.attachments import names
from replicator.store.attachments.disk import DiskFiles
from tests.attachments.helpers import CONTENT, HASH, PLACE, open_attachments, store_content


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return a list that collects the name of each synced file, as it is at that moment."""
    found: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_relative_to(tmp_path / "store"):
            found.append("/".join(path.relative_to(tmp_path / "store").parts))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return found


def test_new_attachment_needs_two_syncs_on_an_ordered_file_system(tmp_path: Path, synced: list[str]) -> None:
    store = open_attachments(DiskFiles(tmp_path / "store", is_ordered=True))
    assert store.link(HASH) is None
    synced.clear()
    holding = store_content(store)
    built = names.s_name(holding.holder)
    assert synced == [f"{built}/content.{holding.holder}", names.parent(PLACE)]
    synced.clear()
    assert store.link(HASH) is not None
    assert synced == [f"{PLACE}/holders"]


def test_everything_is_synced_on_an_unordered_file_system(tmp_path: Path, synced: list[str]) -> None:
    store = open_attachments(DiskFiles(tmp_path / "store", is_ordered=False))
    assert store.link(HASH) is None
    synced.clear()
    holding = store_content(store)
    built, level = names.s_name(holding.holder), names.parent(PLACE)
    files = [f"{built}/holders/{holding.holder}", f"{built}/content.{holding.holder}"]
    before = [*files, f"{built}/holders", built, names.parent(level), ""]
    assert synced == [*before, level, names.parent(built)]
    synced.clear()
    linked = store.link(HASH)
    assert linked is not None
    assert synced == [f"{PLACE}/holders/{linked.holder}", f"{PLACE}/holders", level]


def test_sync_covers_earlier_changes_of_the_same_thread(tmp_path: Path, synced: list[str]) -> None:
    files = DiskFiles(tmp_path / "store", is_ordered=True)
    files.make_directory("")
    files.make_directory("a")
    synced.clear()
    files.sync_directory("")
    files.sync_directory("a")
    assert synced == [""]
    files.create_file("a/b")
    files.sync_directory("a")
    assert synced == ["", "a"]
    other = threading.Thread(target=files.sync_directory, args=("a",))
    other.start()
    other.join()
    assert synced == ["", "a", "a"]


def test_sync_of_content_touches_the_file_first(tmp_path: Path) -> None:
    """Otherwise the journal might be written only up to an earlier change of another file."""
    files = DiskFiles(tmp_path / "store", is_ordered=True)
    files.make_directory("")
    writer = files.open_new("a")
    writer.write(CONTENT)
    os.utime(tmp_path / "store" / "a", (0, 0))
    writer.sync()
    writer.close()
    assert (tmp_path / "store" / "a").stat().st_mtime > 0


def test_free_bytes_are_those_of_the_file_system(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path / "attachments")
    assert files.free_bytes() is None
    files.make_directory("")
    free_bytes, state = files.free_bytes(), os.statvfs(tmp_path)
    assert free_bytes is not None
    assert abs(free_bytes - state.f_bavail * state.f_frsize) < 1 << 30  # others write meanwhile
