"""Clients that send and read large mails piece by piece, as `benchmarks.clients.wire` does small ones at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable

from benchmarks.clients.wire import CHUNK_BYTES, Connection, ImapClient, MeasurementError, check_replies, envelope


def deliver_streamed(connection: Connection, recipient: str, chunks: Iterable[bytes]) -> float:
    """Deliver one mail by LMTP. Return the seconds from its end to OK. See `wire.deliver`."""
    connection.send(envelope([recipient]))
    check_replies(connection.receive_lines(3))
    for chunk in chunks:
        connection.send(chunk)
    began = time.perf_counter()
    connection.send(b".\r\n")
    check_replies(connection.receive_lines(1))
    return time.perf_counter() - began


class StreamingImap(ImapClient):
    """An IMAP client for literals of any size, both ways."""

    def append(self, mailbox: str, size_bytes: int, chunks: Iterable[bytes]) -> float:
        """Store one mail by APPEND. Return the seconds from its end to OK."""
        tag = self._send(f"APPEND {mailbox} {{{size_bytes}}}")
        if not any(line.startswith(b"+") for line in self.connection.receive()):
            raise MeasurementError("IMAP: APPEND is not to go on")
        for chunk in chunks:
            self.connection.send(chunk)
        began = time.perf_counter()
        self.connection.send(b"\r\n")
        lines: list[bytes] = []
        while not lines or not lines[-1].startswith(tag):
            lines += self.connection.receive()
        self._check(lines[-1], tag, "APPEND")
        return time.perf_counter() - began

    def literal(self, text: str, take: Callable[[bytes], object]) -> int:
        """Send a command whose answer has one literal, and pass that to `take` as it comes.

        Return its number of octets.
        """
        tag = self._send(text)
        begins = re.compile(rb"\{(\d+)\}\r\n|^" + tag + rb".*\r\n", re.MULTILINE)
        data = b""
        while (found := begins.search(data)) is None:
            data += self._receive(text)
        if found[1] is None:
            raise MeasurementError(f"IMAP: {text}: no literal comes: {data[-200:]!r}")
        size, data = int(found[1]), data[found.end() :]
        left = size
        while left > len(data):
            take(data)
            left -= len(data)
            data = self._receive(text)
        take(data[:left])
        data = data[left:]
        while tag not in data or not data.endswith(b"\r\n"):
            data += self._receive(text)
        self._check(data[data.index(tag) :], tag, text)
        return size

    def _receive(self, text: str) -> bytes:
        data = self.connection.socket.recv(CHUNK_BYTES)
        if not data:
            raise MeasurementError(f"IMAP: {text}: the connection has been closed before the answer ended")
        return data
