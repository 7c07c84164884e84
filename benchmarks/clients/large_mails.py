"""Mails of any size, generated while they are sent: a few hundred kilobytes of one are in memory at a time."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from dataclasses import dataclass

LINE_BYTES = 78
SOURCE_BYTES = 57
"""Octets that one line of base64 encodes."""

LINES_AT_ONCE = 4096
LINES_OF_SMALL_PARTS = 800  # 61 KiB: by default larger parts go to the attachment store one by one

HEADERS = (
    "From: Bench <bench@example.org>\r\nTo: Someone <someone@example.org>\r\nSubject: Large, number {seed}\r\n"
    "Date: Mon, 6 Jan 2025 08:00:00 +0000\r\nMessage-ID: <large.{seed}@bench.example.org>\r\nMIME-Version: 1.0\r\n"
)
LETTER = b"Here is what you asked for.\r\n"
MIXED = 'Content-Type: multipart/mixed; boundary="=_parts"\r\n\r\n'
FILE = "\r\n--=_parts\r\nContent-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n\r\n"
MULTIPART = MIXED + "--=_parts\r\nContent-Type: text/plain; charset=us-ascii\r\n\r\n{letter}" + FILE
ENDS = b"\r\n--=_parts\r\nContent-Type: text/plain; charset=us-ascii\r\n\r\nThat was all.\r\n\r\n--=_parts--\r\n"
PLAIN = "Content-Type: text/plain; charset=us-ascii\r\n\r\n"


@dataclass(frozen=True)
class LargeMail:
    """A head and a tail around `lines` lines of base64, which are drawn from `seed`. No line begins with a dot.

    The lines come in groups of `lines_at_once`, each preceded by `between`.
    """

    head: bytes
    tail: bytes
    lines: int
    seed: int
    between: bytes = b""
    lines_at_once: int = LINES_AT_ONCE

    @classmethod
    def attached(cls, size_bytes: int, seed: int) -> LargeMail:
        """Return a mail of three parts: a letter, a file of random octets, and a closing line."""
        head = (HEADERS.format(seed=seed) + MULTIPART.format(letter=LETTER.decode())).encode()
        return cls(head, ENDS, (size_bytes - len(head) - len(ENDS)) // LINE_BYTES, seed)

    @classmethod
    def plain(cls, size_bytes: int, seed: int) -> LargeMail:
        """Return a mail of one text: it looks like base64 but is not declared so."""
        head = (HEADERS.format(seed=seed) + PLAIN).encode()
        return cls(head, b"", (size_bytes - len(head)) // LINE_BYTES, seed)

    @classmethod
    def scattered(cls, size_bytes: int, seed: int) -> LargeMail:
        """Return a mail of hundreds of small files."""
        head, between, tail = (HEADERS.format(seed=seed) + MIXED).encode(), FILE.encode(), b"\r\n--=_parts--\r\n"
        return cls(head, tail, size_bytes // LINE_BYTES, seed, between, LINES_OF_SMALL_PARTS)

    @property
    def size_bytes(self) -> int:
        """Octets of the whole mail."""
        return len(self.head) + self.body_bytes + len(self.tail)

    @property
    def body_bytes(self) -> int:
        """Octets of the lines and the separators, with the line end of the last line."""
        return self.lines * LINE_BYTES + -(-self.lines // self.lines_at_once) * len(self.between)

    def __iter__(self) -> Iterator[bytes]:
        yield self.head
        yield from self.body()
        yield self.tail

    def body(self) -> Iterator[bytes]:
        """Yield the lines, the same each time."""
        source = random.Random(self.seed)
        for at in range(0, self.lines, self.lines_at_once):
            yield self.between
            count = min(self.lines_at_once, self.lines - at)
            encoded = base64.b64encode(source.randbytes(count * SOURCE_BYTES))
            yield b"\r\n".join([encoded[cut : cut + 76] for cut in range(0, len(encoded), 76)]) + b"\r\n"

    def body_slice(self, start: int, length: int) -> bytes:
        """Return octets of the lines."""
        found, at = b"", 0
        for chunk in self.body():
            found += chunk[max(start - at, 0) : max(start + length - at, 0)]
            at += len(chunk)
        return found
