import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from trio.testing import MockClock

from tests.replication.sharing import shared
from tests.replication.virtual_time import virtual_clock

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


@pytest.fixture
def autojump_clock() -> Iterator[MockClock]:
    """Return a clock that costs less than that of pytest-trio."""
    with virtual_clock() as clock:
        yield clock
