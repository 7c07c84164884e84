"""The machine's own limits: fsync and loopback, measured in the same run as the figures beside them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.clients.wire import CHUNK_BYTES

ECHO = """
import socket, sys
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
c = s.accept()[0]
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
head = c.recv(20)
send = int(head)
if send:
    block = bytes(65536)
    while send > 0:
        c.sendall(block[:send])
        send -= len(block)
else:
    while data := c.recv(65536):
        c.sendall(data)
"""


def fsync_s(directory: Path, size_bytes: int, times: int) -> list[float]:
    """Return the seconds until each append of `size_bytes` is on the disk."""
    path = directory / "floor.bin"
    block = os.urandom(size_bytes)
    taken: list[float] = []
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(block)
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - began)
    path.unlink()
    return taken


def loopback_s(times: int) -> list[float]:
    """Return the seconds of each round trip of 64 bytes to another process."""
    message = bytes(64)
    taken: list[float] = []
    with _partner(0) as connection:
        for _ in range(times):
            began = time.perf_counter()
            connection.sendall(message)
            received = 0
            while received < len(message):
                received += len(connection.recv(len(message)))
            taken.append(time.perf_counter() - began)
    return taken


def transfer_s(size_bytes: int) -> float:
    """Return the seconds of a transfer of `size_bytes` from another process."""
    began = time.perf_counter()
    received = 0
    with _partner(size_bytes) as connection:
        began = time.perf_counter()
        while received < size_bytes:
            received += len(connection.recv(CHUNK_BYTES))
    return time.perf_counter() - began


@contextmanager
def _partner(send_bytes: int) -> Iterator[socket.socket]:
    """Yield a connection to another process, which echoes, or sends `send_bytes` bytes."""
    command = [sys.executable, "-c", ECHO]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(f"{send_bytes:020d}".encode())
            yield connection
