from __future__ import annotations

from pathlib import Path

import pytest

from replicator.users import UserDirectory, add_user
from tests.one_node import run_inline


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A passwd-file with alice and bob, whose password is `secret`."""
    path = tmp_path / "users.passwd"
    for user in ("alice", "bob"):
        add_user(path, user, "secret", scheme="PLAIN")
    return path


@pytest.fixture
def users(path: Path) -> UserDirectory:
    return UserDirectory(path, run_in_thread=run_inline)
