"""Base64 that few parameters reproduce octet for octet: lines of one length (RFC 2045 section 6.8), or a single line.

The first line tells the length of the lines and the line end. Many lines are decoded at once: line ends are checked at
their expected positions, the rest is decoded strictly, encoded again and compared. Decoding stops at the first line
that encoding would not reproduce, such as one with a space or with bits set in its padding.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass
from typing import NamedTuple

LINE_MAX = 996
"""Octets of a line: RFC 5321 section 4.5.3.1.6 allows 998, and base64 comes in groups of four."""

_ROW = 1024  # octets of base64: the unit in which a part of a single line is encoded


@dataclass(frozen=True, slots=True)
class Coding:
    """The form of a base64 text. `width` 0: a single line of any length. `is_closed`: the last line has a line end.

    `line_end` is CRLF or LF, or empty if there is none. Raises ValueError for an impossible form.
    """

    width: int
    line_end: bytes
    is_closed: bool

    def __post_init__(self) -> None:
        if self.width % 4 or not 0 <= self.width <= LINE_MAX:
            raise ValueError(f"{self.width}: lines of base64 must have a multiple of 4 octets, at most {LINE_MAX}")
        if self.line_end not in {b"\r\n", b"\n", b""}:
            raise ValueError(f"{self.line_end!r} is not the end of a line")
        if (self.line_end == b"") is (self.width > 0 or self.is_closed):
            raise ValueError(f"{self.line_end!r} cannot end {'lines' if self.width else 'this single line'}")

    def lines(self, size_bytes: int) -> int:
        """Return the number of line feeds in the text of `size_bytes` octets (at least 1)."""
        rows = -(-_quanta(size_bytes) // self.width) if self.width else 1
        return rows - (not self.is_closed)

    def length(self, size_bytes: int) -> int:
        """Return the length of the text of `size_bytes` octets (at least 1)."""
        return _quanta(size_bytes) + self.lines(size_bytes) * len(self.line_end)

    def source(self, size_bytes: int, start: int, end: int) -> tuple[int, int]:
        """Return the range of the `size_bytes` octets that the text from `start` up to `end` encodes."""
        first, behind = self._rows(size_bytes, start, end)
        return first * self._row * 3 // 4, min(behind * self._row * 3 // 4, size_bytes)

    def encode(self, size_bytes: int, start: int, end: int, data: bytes) -> bytes:
        """Return the text from `start` up to `end`, given the octets in the range that `source` returns."""
        first, behind = self._rows(size_bytes, start, end)
        text, row, between = binascii.b2a_base64(data, newline=False), self._row, self._between
        lines = between.join([text[at : at + row] for at in range(0, len(text), row)])
        is_last = behind * row >= _quanta(size_bytes)
        lines += (self.line_end if self.is_closed else b"") if is_last else between
        origin = first * (row + len(between))
        return lines[start - origin : end - origin]

    @property
    def _row(self) -> int:
        return self.width or _ROW

    @property
    def _between(self) -> bytes:
        return self.line_end if self.width else b""

    def _rows(self, size_bytes: int, start: int, end: int) -> tuple[int, int]:
        stride = self._row + len(self._between)
        count = -(-_quanta(size_bytes) // self._row)  # the line end of a single line is in its last row
        return min(start // stride, count - 1), min(-(-end // stride), count)


class Decoded(NamedTuple):
    """Decoded octets, and the text after them that is not reproducible base64."""

    data: bytes
    rest: bytes


class Decoder:
    """Decoder of one text that may be base64. `coding` is set once something was decoded and its end is known.

    `has_ended`: decoding has stopped, at the end of the text or before. Holds less than a line between calls.
    """

    def __init__(self) -> None:
        self.coding: Coding | None = None
        self.has_ended = False
        self._buffer = bytearray()
        self._width: int | None = None  # not known yet; 0: a single line
        self._line_end = b""
        self._has_data = False

    def write(self, data: bytes) -> Decoded:
        """Decode the next octets of the text."""
        if self.has_ended:
            return Decoded(b"", data)
        self._buffer += data
        return self._decode(is_over=False)

    def finish(self) -> Decoded:
        """End the text and decode the rest of it."""
        return Decoded(b"", b"") if self.has_ended else self._decode(is_over=True)

    def _decode(self, *, is_over: bool) -> Decoded:
        if self._width is None and not self._learn(is_over=is_over):
            return Decoded(b"", b"") if not self.has_ended else self._end(b"", is_closed=False)
        decoded = self._whole_lines()
        self._has_data = self._has_data or decoded != b""
        at = self._buffer.find(b"\n")
        if at < 0 and not is_over and len(self._buffer) < self._stride + 2:
            return Decoded(decoded, b"")
        return self._last_line(decoded, self._buffer[: at + 1] if at >= 0 else self._buffer[:])

    def _learn(self, *, is_over: bool) -> bool:
        """Find out the line length and line end. Return False if more octets are needed, or this is no base64."""
        at = self._buffer.find(b"\n", 0, LINE_MAX + 2)
        if at < 0:
            if len(self._buffer) < LINE_MAX + 2 and not is_over:
                return False
            self._width = 0
            return True
        self._line_end = b"\r\n" if self._buffer[:at].endswith(b"\r") else b"\n"
        width = at + 1 - len(self._line_end)
        self.has_ended = width % 4 != 0 or not 0 < width <= LINE_MAX
        self._width = None if self.has_ended else width
        return not self.has_ended

    @property
    def _stride(self) -> int:
        return (self._width or 4) + len(self._line_end)

    def _whole_lines(self) -> bytes:
        """Decode the full and valid lines at the beginning; of a single line, the groups of four."""
        pieces: list[bytes] = []
        good, bad = 0, len(self._buffer) // self._stride + 1  # lines before `good` are valid, one before `bad` is not
        middle = bad - 1
        while good < middle:
            piece = self._lines(good, middle)
            if piece is None:
                bad = middle
            else:
                pieces.append(piece)
                good = middle
            middle = (good + bad) // 2
        del self._buffer[: good * self._stride]
        return b"".join(pieces)

    def _lines(self, start: int, end: int) -> bytes | None:
        """Return these lines decoded, or None if any is not full or would be encoded differently."""
        width, count = self._width or 4, end - start
        lines = self._buffer[start * self._stride : end * self._stride]
        for at, octet in enumerate(self._line_end, width):
            if lines[at :: self._stride].count(octet) != count:
                return None
        decoded = _canonical(bytes(lines.translate(None, b"\r\n")))  # too short if there are other line ends
        return decoded if decoded is not None and len(decoded) == count * width // 4 * 3 else None

    def _last_line(self, decoded: bytes, line: bytearray) -> Decoded:
        """Decode a line that is not full as the last one, if it is valid; the remaining text is the rest."""
        text = bytes(line.removesuffix(b"\n"))
        text = text.removesuffix(b"\r") if len(text) < len(line) else text
        line_end = bytes(line[len(text) :])
        if self._width:
            is_right = 0 < len(text) <= self._width and line_end in {self._line_end, b""}
        else:
            is_right = text != b"" or (self._has_data and line_end != b"")
        last = _canonical(text) if is_right else None
        if last is None:
            return self._end(decoded, is_closed=bool(self._width))
        del self._buffer[: len(line)]
        self._line_end = self._line_end if self._width else line_end
        self._has_data = True
        return self._end(decoded + last, is_closed=line_end != b"")

    def _end(self, decoded: bytes, *, is_closed: bool) -> Decoded:
        self.has_ended = True
        if self._has_data:
            self.coding = Coding(self._width or 0, self._line_end, is_closed)
        rest, self._buffer = bytes(self._buffer), bytearray()
        return Decoded(decoded, rest)


def _quanta(size_bytes: int) -> int:
    """Return the octets of base64 without line ends."""
    return -(-size_bytes // 3) * 4


def _canonical(text: bytes) -> bytes | None:
    """Return the text decoded, or None if encoding would not reproduce it."""
    try:
        decoded = binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        return None
    return decoded if binascii.b2a_base64(decoded, newline=False) == text else None
