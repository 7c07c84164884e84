"""What every kind of source gives."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_BARE_LF = re.compile(rb"(?<!\r)\n")


class SourceError(Exception):
    """A source that cannot be read. The text names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """One message. `name` says where it is; `read` gives its text as stored and raises OSError."""

    name: str
    folder: str
    flags: frozenset[str]
    received_ms: int | None
    read: Callable[[], bytes]

    def text(self) -> bytes:
        """The text with CRLF line ends. Raises OSError."""
        return _BARE_LF.sub(b"\r\n", self.read())


@dataclass(frozen=True, slots=True)
class MailSource:
    """Folders, also those without mail, and messages in the order that is to be theirs."""

    folders: tuple[str, ...]
    messages: tuple[SourceMessage, ...]
