"""A socket whose answers are bounded in octets and in time, for a library that reads without bounds."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from math import inf

from protocol.units import KIB

ANSWER_BYTES_MAX = 64 * KIB
"""Octets of all answers to one request: an entry with a few attributes has some hundred."""


class BoundedSocket:
    """A connected socket that blocks, used by one thread at a time. Any thread may call `shut`.

    All of it but `shut` raises OSError, of which TimeoutError is a kind.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._until_s = inf
        self._left_bytes = ANSWER_BYTES_MAX

    def allow(self, until_s: float) -> None:
        """Begin a request, whose answers are to be there at that time of `time.monotonic`."""
        self._until_s = until_s
        self._left_bytes = ANSWER_BYTES_MAX

    def recv(self, size: int) -> bytes:
        """Return the next octets; none at the end of the connection."""
        self._limit_time()
        received = self._socket.recv(size)
        self._left_bytes -= len(received)
        if self._left_bytes < 0:
            raise OSError(f"the answer is larger than {ANSWER_BYTES_MAX} bytes")
        return received

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        self._limit_time()
        self._socket.sendall(data)

    def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Begin TLS with a server of this name."""
        self._limit_time()
        self._socket = context.wrap_socket(self._socket, server_hostname=host)

    def shutdown(self, how: int) -> None:
        """Shut the connection down, as a socket does."""
        self._socket.shutdown(how)

    def shut(self) -> None:
        """End what another thread waits for. It hears of the end of the connection, or gets an error."""
        with suppress(OSError):  # it is not connected any more
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS would forget its state under the other's feet

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _limit_time(self) -> None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("there was no whole answer in time")
        self._socket.settimeout(None if left_s == inf else left_s)
