import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.replication.sharing import shared

MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True, scope="session")
def nodes_share_work() -> Iterator[None]:
    """Let the nodes of all clusters parse equal frames and rows once: most frames are heartbeats."""
    with shared():
        yield


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Use a directory in memory if possible: clusters sync thousands of times, and disks are tested elsewhere."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY) as directory:
        yield Path(directory)
