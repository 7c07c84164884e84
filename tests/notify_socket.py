"""The socket of a service manager, as systemd has one, which hears what a process says of itself."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

MESSAGE_MAX = 4096


class NotifySocket:
    """A datagram socket at a path or, with `@` in front, at an abstract name."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def hear(self, within_s: float = 60.0) -> str:
        """Return the next message. Raises TimeoutError."""
        self._socket.settimeout(within_s)
        return self._socket.recv(MESSAGE_MAX).decode()

    def heard(self) -> list[str]:
        """Return all messages that are there."""
        self._socket.settimeout(0)
        messages = []
        try:
            while True:
                messages.append(self._socket.recv(MESSAGE_MAX).decode())
        except BlockingIOError:
            return messages

    def fill(self) -> None:
        """Send messages to it until it has no room for more."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.settimeout(0)
            try:
                while True:
                    sending.sendto(b"of somebody else", self._socket.getsockname())
            except BlockingIOError:
                return
