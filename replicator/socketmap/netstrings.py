"""Netstrings, `5:hello,`: taken apart as they arrive, and made. No I/O. Source: D. J. Bernstein, netstrings.txt."""

from __future__ import annotations

import re

BYTES_MAX = 1024
"""Octets of a question: an address of 320 characters, and a name before it."""

COMMA = ord(",")

_LENGTH = re.compile(rb"(0|[1-9][0-9]{0,3}):")
_LENGTH_BEGUN = re.compile(rb"(0|[1-9][0-9]{0,3})?")


class NetstringError(Exception):
    """Octets that are no netstring, or one that is too long."""


class NetstringReader:
    """Octets that have arrived, of which the netstrings are taken one after the other."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, data: bytes | bytearray) -> None:
        """Take the next octets."""
        self._buffer += data

    def next(self) -> bytes | None:
        """Return the next string; None: it is not whole yet. Raises NetstringError."""
        length = _LENGTH.match(self._buffer)
        if length is None:
            if not _LENGTH_BEGUN.fullmatch(self._buffer):
                raise NetstringError("expected a netstring")
            return None
        size, start = int(length[1]), length.end()
        if size > BYTES_MAX:
            raise NetstringError(f"a question has at most {BYTES_MAX} octets")
        end = start + size
        if len(self._buffer) > end and self._buffer[end] != COMMA:
            raise NetstringError("a netstring ends with a comma")
        if len(self._buffer) <= end:
            return None
        found = bytes(self._buffer[start:end])
        del self._buffer[: end + 1]
        return found


def netstring(text: str) -> bytes:
    """Return the netstring of a text."""
    data = text.encode()
    return b"%d:%b," % (len(data), data)
