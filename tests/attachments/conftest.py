from __future__ import annotations

from pathlib import Path

import pytest

from replicator.store.attachments.files import Files
from tests.attachments.file_systems.kinds import KINDS


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    files = KINDS[request.param](tmp_path / "new" / "store")
    files.make_directory("")
    return files
