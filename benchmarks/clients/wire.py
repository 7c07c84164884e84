"""Cheap clients for LMTP and IMAP, because they share the processors with the cluster.

They trust the server: there is no parsing beyond the needs of a figure, and anything but success is a MeasurementError.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import NamedTuple, Self

SOCKET_TIMEOUT_S = 120.0
CHUNK_BYTES = 256 * 1024


class Address(NamedTuple):
    host: str
    port: int


class MeasurementError(Exception):
    """The run cannot go on; the message says where and why."""


class Connection:
    """A socket and the bytes that have arrived but were not asked for yet."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.socket = socket.create_connection(address, timeout=SOCKET_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> list[bytes]:
        """Wait for bytes. Return the lines that are complete now, without their line ends."""
        data = self.socket.recv(CHUNK_BYTES)
        if not data:
            raise MeasurementError(f"{self.address.host}:{self.address.port} has closed the connection")
        *lines, self._buffer = (self._buffer + data).split(b"\r\n")
        return lines

    def receive_lines(self, count: int) -> list[bytes]:
        """Wait for exactly `count` lines."""
        lines: list[bytes] = []
        while len(lines) < count:
            lines += self.receive()
        return lines


def envelope(recipients: Sequence[str]) -> bytes:
    """Return one pipelined group (RFC 2920): the sender, the recipients, DATA."""
    names = "".join(f"RCPT TO:<{name}>\r\n" for name in recipients)
    return f"MAIL FROM:<bench@example.org>\r\n{names}DATA\r\n".encode()


def connect_lmtp(address: Address) -> Connection:
    connection = Connection(address)
    connection.receive_lines(1)
    connection.send(b"LHLO bench.example.org\r\n")
    lines: list[bytes] = []
    while not lines or lines[-1][3:4] == b"-":
        lines += connection.receive()
    check_replies(lines)
    return connection


def check_replies(lines: Sequence[bytes]) -> None:
    for line in lines:
        if line[:1] not in {b"2", b"3"}:
            raise MeasurementError(f"LMTP: {line.decode(errors='replace')}")


def deliver(connection: Connection, recipients: Sequence[str], message: bytes) -> None:
    """Deliver one mail, in two round trips. `message` ends in CRLF and has no line that begins with a full stop."""
    connection.send(envelope(recipients))
    check_replies(connection.receive_lines(len(recipients) + 2))
    connection.send(message + b".\r\n")
    check_replies(connection.receive_lines(len(recipients)))


class ImapClient:
    """One session, one command at a time."""

    def __init__(self, address: Address, user: str, password: str) -> None:
        self.connection = Connection(address)
        self._number = 0
        self.connection.receive_lines(1)
        self.command(f"LOGIN {user} {password}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.socket.close()

    def command(self, text: str) -> list[bytes]:
        """Send a command and wait for OK. Return the lines before it."""
        tag = self._send(text)
        lines: list[bytes] = []
        while not lines or not lines[-1].startswith(tag):
            lines += self.connection.receive()
        self._check(lines[-1], tag, text)
        return lines[:-1]

    def drain(self, text: str) -> int:
        """Send a command and read to OK without looking at the answer. Return its number of bytes."""
        tag = self._send(text)
        received, tail = 0, b"\r\n"
        while True:
            chunk = self.connection.socket.recv(CHUNK_BYTES)
            received += len(chunk)
            tail = (tail + chunk)[-1000:]
            last = tail.rpartition(b"\r\n" + tag)[2]
            if not chunk or (tail.endswith(b"\r\n") and b"\r\n" + tag in tail):
                self._check(tag + last, tag, text)
                return received

    def idle(self) -> None:
        """Start IDLE (RFC 2177); changes from now on are to be read from `connection`."""
        self._send("IDLE")
        while not any(line.startswith(b"+") for line in self.connection.receive()):
            pass

    def wait_for(self, mailbox: str, messages: int, within_s: float) -> None:
        """Poll until the mailbox holds `messages` messages."""
        deadline = time.monotonic() + within_s
        wanted = f"MESSAGES {messages})".encode()
        while not any(wanted in line for line in self.command(f"STATUS {mailbox} (MESSAGES)")):
            if time.monotonic() > deadline:
                raise MeasurementError(f"{mailbox} has not {messages} messages after {within_s:.0f} s")
            time.sleep(0.05)

    def _send(self, text: str) -> bytes:
        self._number += 1
        tag = f"bench{self._number} ".encode()
        self.connection.send(tag + text.encode() + b"\r\n")
        return tag

    @staticmethod
    def _check(line: bytes, tag: bytes, text: str) -> None:
        if not line.startswith(tag + b"OK"):
            raise MeasurementError(f"IMAP: {text}: {line[:200].decode(errors='replace')}")
