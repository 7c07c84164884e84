"""Decoders of Content-Transfer-Encodings (RFC 2045 section 6), which take a text in pieces. Nothing here raises.

What is wrong is left out or left as it is, as mail clients do.
"""

from __future__ import annotations

import re
import string
from binascii import a2b_base64, a2b_qp
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from replicator.mime.header import without_comment
from replicator.mime.structure import Part

_LONG_LINE = 1000  # octets; RFC 2045 section 6.7 allows 76

_NOT_BASE64 = bytes({*range(256)} - {*b"=+/", *string.digits.encode(), *string.ascii_letters.encode()})
_BASE64_RUNS = re.compile(rb"[^=]+|=")


class Decoder(Protocol):
    """Decoder of one text."""

    def write(self, piece: bytes) -> bytes:
        """Take the next octets of the text, and return the decoded octets that are certain by now."""
        ...

    def finish(self) -> bytes:
        """End the text, and return the rest of the decoded octets."""
        ...


class _Identity:
    """Text that is not encoded."""

    def write(self, piece: bytes) -> bytes:
        return piece

    def finish(self) -> bytes:
        return b""


class _Base64:
    """Base64 (RFC 2045 section 6.8) up to its padding, whatever else stands between its characters."""

    def __init__(self) -> None:
        self._left = b""
        self._pads = 0
        self._is_over = False

    def write(self, piece: bytes) -> bytes:
        if self._is_over:
            return b""
        found = bytearray(self._left)
        for run in _BASE64_RUNS.findall(piece.translate(None, _NOT_BASE64)):
            if run != b"=":
                found += run
                self._pads = 0
            elif len(found) % 4 > 1:
                self._pads += 1
                if len(found) % 4 + self._pads == 4:
                    self._is_over, self._left = True, b""
                    return a2b_base64(found + b"=" * self._pads)
        whole = len(found) // 4 * 4
        self._left = bytes(found[whole:])
        return a2b_base64(found[:whole])

    def finish(self) -> bytes:
        return a2b_base64(self._left + b"==") if len(self._left) > 1 else b""


class _QuotedPrintable:
    """Quoted-printable (RFC 2045 section 6.7). It is cut behind a line or, if lines are long, at no `=`."""

    def __init__(self) -> None:
        self._left = b""

    def write(self, piece: bytes) -> bytes:
        text = self._left + piece
        if not (cut := text.rfind(b"\n", -_LONG_LINE) + 1):
            cut = text.rfind(b"=", -2)  # its octet may be split
        cut = cut if cut >= 0 else len(text)
        self._left = text[cut:]
        return a2b_qp(text[:cut])

    def finish(self) -> bytes:
        return a2b_qp(self._left)


DECODERS: Mapping[bytes, Callable[[], Decoder]] = MappingProxyType(
    {
        b"": _Identity,
        b"7bit": _Identity,
        b"8bit": _Identity,
        b"binary": _Identity,
        b"base64": _Base64,
        b"quoted-printable": _QuotedPrintable,
    }
)
"""The decoders by the names of the encodings in lower case."""


def transfer_encoding(part: Part) -> bytes:
    """Return the encoding of a part's content, in lower case; empty if none is named."""
    return without_comment(part.header.value(b"content-transfer-encoding") or b"").lower()
