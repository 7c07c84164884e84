import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.replication.sharing import shared

MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True, scope="session")
def nodes_share_work() -> Iterator[None]:
    """The nodes of all clusters parse equal frames and rows once: heartbeats are most of what they say."""
    with shared():
        yield


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: these clusters sync thousands of times, and disks are tested elsewhere."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY) as directory:
        yield Path(directory)
