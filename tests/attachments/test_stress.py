from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.attachments.stress import stress


@pytest.mark.parametrize("kind", ["disk", "shim"])
def test_store_survives_processes_killed_at_any_moment(tmp_path: Path, kind: str) -> None:
    done = stress(kind, tmp_path, 1.5, random.Random(1))
    assert done["killed"]
