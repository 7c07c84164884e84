"""A proxy to a server whose first connections fail, each in its own way, and whose later ones work."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from benchmarks.clients.wire import Address

UNAVAILABLE = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Fault:
    """The bytes that pass each way before the connection breaks, or an answer in place of the server's."""

    forth_bytes: int = 1 << 62
    back_bytes: int = 1 << 62
    answer: bytes | None = None


class Line:
    """A proxy on loopback. `connections` counts those that clients have made."""

    def __init__(self, target: Address, faults: list[Fault]) -> None:
        self.target, self.faults, self.connections = target, faults, 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self.server.getsockname()[1]}"

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.server.accept()
                fault = self.faults[self.connections] if self.connections < len(self.faults) else Fault()
                self.connections += 1
                threading.Thread(target=self.carry, args=(near, fault), daemon=True).start()

    def carry(self, near: socket.socket, fault: Fault) -> None:
        with near:
            if fault.answer is not None:
                near.recv(1 << 16)
                near.sendall(fault.answer)
                near.shutdown(socket.SHUT_WR)
                pass_on(near, None, 1 << 62)
                return
            with socket.create_connection(self.target) as far:
                back = threading.Thread(target=pass_on, args=(far, near, fault.back_bytes), daemon=True)
                back.start()
                pass_on(near, far, fault.forth_bytes)
                back.join()


def pass_on(source: socket.socket, sink: socket.socket | None, limit_bytes: int) -> None:
    """Forward bytes up to their end, or up to the limit, at which both connections end."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            if sink is not None:
                sink.sendall(data[:limit_bytes])
            limit_bytes -= len(data)
            if limit_bytes <= 0:
                source.shutdown(socket.SHUT_RDWR)
                break
        if sink is not None:
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def faulty_line(target: Address, *faults: Fault) -> Iterator[Line]:
    line = Line(target, list(faults))
    thread = threading.Thread(target=line.serve)
    thread.start()
    try:
        yield line
    finally:
        line.server.shutdown(socket.SHUT_RDWR)
        line.server.close()
        thread.join()
