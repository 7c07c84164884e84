from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from benchmarks.clients.wire import Address
from replicator.runtime.environment import Environment
from replicator.runtime.objects import ObjectStore
from tests.objects.s3_server import BUCKET, CREDENTIALS, needs_rclone, s3_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with s3_server(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the credentials of the test's server, and remove others that the developer may have."""
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["file", pytest.param("s3", marks=needs_rclone)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "file":
        return ObjectStore((tmp_path / "made at need" / "objects").as_uri(), Environment())
    server: Address = request.getfixturevalue("server")
    return ObjectStore(f"s3://{BUCKET}/{uuid4()}", Environment(), f"http://{server.host}:{server.port}")
