"""The attachment store on a real VFAT, on machines that can mount one."""

from __future__ import annotations

import random
from pathlib import Path

from tests.attachments.file_systems.loop_mount import mounted
from tests.attachments.stress import stress


def test_store_survives_killed_processes_on_vfat(tmp_path: Path) -> None:
    with mounted(tmp_path, "vfat") as directory:
        assert stress("disk", directory, 1.5, random.Random(2))["killed"]
