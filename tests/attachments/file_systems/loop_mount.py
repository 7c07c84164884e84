"""Real file systems in an image file, on machines that can mount one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

IMAGE_BYTES = 64 << 20


@contextmanager
def mounted(above: Path, kind: str, *options: str) -> Iterator[Path]:
    """Mount a new file system of this kind. Skip the test if the machine cannot."""
    image, directory = above / "image", above / "mounted"
    directory.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    for command in ([f"mkfs.{kind}", *options, str(image)], ["mount", "-o", "loop", str(image), str(directory)]):
        if shutil.which(command[0]) is None:
            pytest.skip(f"there is no {command[0]}")
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{command[0]} cannot do it here: {done.stderr.strip().splitlines()[0]}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)
