"""Data types common to all sources of mail."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_BARE_LF = re.compile(rb"(?<!\r)\n")


class SourceError(Exception):
    """A source that cannot be read. The text names the file and the problem."""


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """One message. `name` tells its location; `read` returns its stored text and raises OSError."""

    name: str
    folder: str
    flags: frozenset[str]
    received_ms: int | None
    read: Callable[[], bytes]

    def text(self) -> bytes:
        """Return the message with CRLF line ends. Raises OSError."""
        return _BARE_LF.sub(b"\r\n", self.read())


@dataclass(frozen=True, slots=True)
class MailSource:
    """Folders, including those without mail, and messages in the order of their import."""

    folders: tuple[str, ...]
    messages: tuple[SourceMessage, ...]
