"""Recognition of file systems on which one sync makes all earlier changes durable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replicator.store.attachments import ordering
from replicator.store.attachments.disk import DiskFiles
from replicator.store.attachments.ordering import is_ordered
from tests.attachments.file_systems.loop_mount import mounted


class Kernel:
    """Replacements for the kernel's files about the file system that `directory` is on."""

    def __init__(self, directory: Path) -> None:
        device = directory.stat().st_dev
        self._number = f"{os.major(device)}:{os.minor(device)}"
        self.mounts, self._devices, self.journals = directory / "mountinfo", directory / "block", directory / "ext4"
        self._devices.mkdir()
        (self._devices / self._number).symlink_to("../../devices/virtual/block/dm-3")

    def set_file_system(self, kind: str, journal: str | None = None) -> None:
        self.mounts.write_text(
            "21 1 0:999 / /proc rw shared:1 - proc proc rw\n"
            f"22 1 {self._number} / / rw shared:1 master:2 - {kind} /dev/x rw\n"
        )
        if journal is not None:
            (self.journals / "dm-3").mkdir(parents=True)
            (self.journals / "dm-3" / "journal_task").write_text(f"{journal}\n")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel(tmp_path)
    monkeypatch.setattr(ordering, "_MOUNTS", kernel.mounts)
    monkeypatch.setattr(ordering, "_DEVICES", tmp_path / "block")
    monkeypatch.setattr(ordering, "_JOURNALS", kernel.journals)
    return kernel


@pytest.mark.parametrize(
    ("kind", "journal", "expected"),
    [
        ("ext4", "321", True),
        ("ext4", "0", True),  # its task is not in this namespace
        ("ext4", "<none>", False),
        ("ext4", None, False),
        ("ext3", "321", True),
        ("xfs", None, True),
        ("btrfs", None, False),
        ("ext2", "<none>", False),
        ("nfs4", None, False),
    ],
)
def test_ordering_follows_from_kind_and_journal(
    tmp_path: Path, kernel: Kernel, kind: str, journal: str | None, *, expected: bool
) -> None:
    kernel.set_file_system(kind, journal)
    assert is_ordered(tmp_path) is expected
    assert DiskFiles(tmp_path).is_ordered is expected


def test_unknown_file_systems_count_as_unordered(tmp_path: Path, kernel: Kernel) -> None:
    assert not is_ordered(tmp_path)
    kernel.set_file_system("xfs")
    assert not is_ordered(tmp_path / "missing")


@pytest.mark.parametrize(("option", "expected"), [("has_journal", True), ("^has_journal", False)])
def test_real_ext4_is_ordered_if_it_has_a_journal(tmp_path: Path, option: str, *, expected: bool) -> None:
    with mounted(tmp_path, "ext4", "-q", "-O", option) as directory:
        assert is_ordered(directory) is expected
