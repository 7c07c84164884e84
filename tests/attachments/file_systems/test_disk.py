"""How often a real disk is waited for."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from replicator.store.attachments import names
from replicator.store.attachments.disk import DiskFiles
from tests.attachments.helpers import HASH, PLACE, TEXT, opened, stored


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What was synced, by its name in the store as of that moment."""
    found: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_relative_to(tmp_path / "store"):
            found.append("/".join(path.relative_to(tmp_path / "store").parts))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return found


def test_where_names_reach_the_disk_in_order_a_new_attachment_is_waited_for_twice(
    tmp_path: Path, synced: list[str]
) -> None:
    store = opened(DiskFiles(tmp_path / "store", is_ordered=True))
    assert store.link(HASH) is None
    synced.clear()
    holding = stored(store)
    built = names.s_name(holding.holder)
    assert synced == [f"{built}/content.{holding.holder}", names.parent(PLACE)]
    synced.clear()
    assert store.link(HASH) is not None
    assert synced == [f"{PLACE}/holders"]


def test_where_they_may_not_everything_is_synced(tmp_path: Path, synced: list[str]) -> None:
    store = opened(DiskFiles(tmp_path / "store", is_ordered=False))
    assert store.link(HASH) is None
    synced.clear()
    holding = stored(store)
    built, level = names.s_name(holding.holder), names.parent(PLACE)
    files = [f"{built}/holders/{holding.holder}", f"{built}/content.{holding.holder}"]
    before = [*files, f"{built}/holders", built, names.parent(level), ""]
    assert synced == [*before, level, names.parent(built)]
    synced.clear()
    linked = store.link(HASH)
    assert linked is not None
    assert synced == [f"{PLACE}/holders/{linked.holder}", f"{PLACE}/holders", level]


def test_a_sync_covers_what_the_same_thread_did_before_it(tmp_path: Path, synced: list[str]) -> None:
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


def test_content_is_the_last_that_changed_when_it_is_synced(tmp_path: Path) -> None:
    """Or else the journal could be written up to there only."""
    files = DiskFiles(tmp_path / "store", is_ordered=True)
    files.make_directory("")
    writer = files.open_new("a")
    writer.write(TEXT)
    os.utime(tmp_path / "store" / "a", (0, 0))
    writer.sync()
    writer.close()
    assert (tmp_path / "store" / "a").stat().st_mtime > 0


def test_what_is_free_is_what_the_file_system_says(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path / "attachments")
    assert files.free_bytes() is None
    files.make_directory("")
    free_bytes, state = files.free_bytes(), os.statvfs(tmp_path)
    assert free_bytes is not None
    assert abs(free_bytes - state.f_bavail * state.f_frsize) < 1 << 30  # others write meanwhile
