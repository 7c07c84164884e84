"""A real VFAT, where the machine lets one be mounted."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attachments.stress import stress

IMAGE_BYTES = 64 << 20
KIND = "vfat"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    image, directory = tmp_path / "image", tmp_path / "mounted"
    directory.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    for command in ([f"mkfs.{KIND}", str(image)], ["mount", "-o", "loop", str(image), str(directory)]):
        if shutil.which(command[0]) is None:
            pytest.skip(f"there is no {command[0]}")
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{command[0]} cannot do it here: {done.stderr.strip().splitlines()[0]}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_processes_that_are_killed_on_vfat(mounted: Path) -> None:
    assert stress("disk", mounted, 1.5, random.Random(2))["killed"]
