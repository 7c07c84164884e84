"""Split a byte stream into frames, one per command (RFC 3501 sections 2.2 and 4.3, RFC 7888).

A frame is one command with all its literals. The framer looks only at line ends and literal markers and does no I/O. It
buffers at most one frame within its limits plus the bytes of the last `receive`, and examines every byte once, however
the stream is cut. Literals of more than `FrameLimits.whole` bytes are not buffered but handed out as they arrive. The
grammars parse a frame's text; both text protocols are framed here.

    framer.receive(data)
    while (event := framer.next_event()) is not None: ...
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.units import KIB, MIB

_MARKER = re.compile(rb"\{([0-9]+)(\+?)\}\Z")
_MARKER_BYTES = 32
"""Bytes at a line's end that are searched for a literal marker; a longer marker would exceed every limit anyway."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits on the bytes and literals of one frame, which bound its reader's memory."""

    text: int = 64 * KIB  # all lines of the frame, without the last CRLF and the literals
    literal: int = 64 * MIB  # one literal
    literals_total: int = 65 * MIB  # all buffered literals of the frame together: a large one and some names
    literals: int = 64  # number of literals: each costs an object and a slot on the parser's stack
    whole: int | None = None  # bytes of a literal that is buffered, within the total, else it becomes a `LargeLiteral`


class Frame(NamedTuple):
    r"""One command: its text, with each literal cut down to its marker `{n}\r\n` or `{n+}\r\n`, and its literals.

    The literals are in order. There are as many as CRLFs in the text, and each has the length that its marker gives.
    Large literals are the exception: they have been handed out already and are empty here.
    """

    text: bytes
    literals: tuple[bytes, ...]


class ContinuationNeeded(NamedTuple):
    """The sender waits for permission to send `size` bytes (RFC 3501 section 7.5).

    `frame` is the command so far, with an empty literal in place of this one. Either send a continuation and go on
    reading events, or call `Framer.refuse` and answer the command.
    """

    frame: Frame
    size: int


class LargeLiteral(NamedTuple):
    """The start of a literal of `size` bytes that is not buffered: `LiteralChunk`s with that many bytes follow.

    `frame` is the command so far, with this literal's marker. If `synchronising`, the sender waits for permission to
    send the literal, as after `ContinuationNeeded`.
    """

    frame: Frame
    size: int
    synchronising: bool


class LiteralChunk(NamedTuple):
    """The next bytes of the current large literal."""

    data: bytes


Event = Frame | ContinuationNeeded | LargeLiteral | LiteralChunk


class FramingError(Exception):
    """The bytes are not a frame within the limits. `text` is the command so far, which may contain its tag.

    If `recoverable`, the frame is dropped and the framer stands at the next command. This is the case after a
    synchronising literal that was too large, because its sender is waiting. Otherwise the rest of the stream cannot be
    told from commands: the framer raises the same error for ever, and the connection should end. `oversized`: it is a
    literal that is too large.
    """

    def __init__(self, message: str, text: bytes, *, recoverable: bool = False, oversized: bool = False) -> None:
        super().__init__(message)
        self.text = text
        self.recoverable = recoverable
        self.oversized = oversized


@dataclass(slots=True)
class Framer:
    """Framer of one incoming stream. `limits` may be replaced at any time; new limits apply from the next line on.

    `bare_lf`: accept a bare LF as a line end too, for clients that are typed by hand; the frame still shows CRLF.
    """

    limits: FrameLimits = field(default_factory=FrameLimits)
    bare_lf: bool = False
    _buffer: bytearray = field(default_factory=bytearray, init=False)
    _searched: int = field(default=0, init=False)  # this many bytes of the buffer hold no LF
    _text: bytearray = field(default_factory=bytearray, init=False)
    _literals: list[bytes] = field(default_factory=list, init=False)
    _literals_total: int = field(default=0, init=False)
    _awaited: int | None = field(default=None, init=False)  # size of the literal that is being read
    _large_left: int = field(default=0, init=False)  # bytes of the current large literal that are still to come
    _error: FramingError | None = field(default=None, init=False)

    def receive(self, data: bytes) -> None:
        """Take bytes from the stream. Drain `next_event` before the next call, so that memory stays bounded."""
        if self._error is None:  # keep nothing of a dead stream
            self._buffer += data

    def next_event(self) -> Event | None:
        """Return the next event, or None if more bytes are needed. Raises FramingError."""
        if self._error is not None:
            raise self._error
        if self._large_left:
            return self._read_chunk()
        while True:
            if self._awaited is not None and not self._read_literal(self._awaited):
                return None
            line = self._read_line()
            if line is None:
                return None
            self._text += line
            marker = _MARKER.search(line, max(0, len(line) - _MARKER_BYTES))
            if marker is None:
                return self._finish()
            if (question := self._begin_literal(int(marker[1]), synchronising=not marker[2])) is not None:
                return question

    def refuse(self) -> None:
        """Drop the frame whose sender waits for permission to send a literal; another command follows."""
        self._finish()

    def detach(self) -> bytes:
        """Return the bytes that no event has used, and clear the buffer.

        For a stream that changes its encoding after a frame.
        """
        data = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return data

    def _read_literal(self, size: int) -> bool:
        if len(self._buffer) < size:
            return False
        self._literals.append(self._consume(size, size))
        self._awaited = None
        return True

    def _read_chunk(self) -> LiteralChunk | None:
        size = min(self._large_left, len(self._buffer))
        if not size:
            return None
        self._large_left -= size
        return LiteralChunk(self._consume(size, size))

    def _read_line(self) -> bytes | None:
        """Return the next line without its end, or None if it has not arrived completely."""
        room = max(0, self.limits.text - len(self._text))
        end = self._buffer.find(b"\n", self._searched, room + 2)
        if end < 0:
            self._searched = len(self._buffer)
            if self._searched >= room + 2:
                raise self._fail(f"the command's text is longer than {self.limits.text} bytes", buffered=room)
            return None
        stop = end - 1 if end and self._buffer[end - 1] == ord("\r") else end
        if stop == end and not self.bare_lf:
            raise self._fail("a line ends in LF without CR", buffered=min(end + 1, room))
        if stop > room:
            raise self._fail(f"the command's text is longer than {self.limits.text} bytes", buffered=room)
        return self._consume(stop, end + 1)

    def _begin_literal(self, size: int, *, synchronising: bool) -> ContinuationNeeded | LargeLiteral | None:
        """Start reading a literal. Return the event to report, or None if the literal is simply buffered."""
        limits = self.limits
        room = limits.literals_total - self._literals_total
        is_large = limits.whole is not None and size > min(limits.whole, room)
        if size > limits.literal:
            what = f"a literal of {size} bytes; the limit is {limits.literal}"
            raise self._fail(what, recoverable=synchronising, oversized=True)
        if not is_large and size > room:
            what = f"a literal of {size} bytes; all literals of a command may have {limits.literals_total}"
            raise self._fail(what, recoverable=synchronising, oversized=True)
        if len(self._literals) >= limits.literals:
            raise self._fail(f"more than {limits.literals} literals in one command", recoverable=synchronising)
        self._text += b"\r\n"
        if is_large:
            self._literals.append(b"")
            self._large_left = size
            return LargeLiteral(self._frame(), size, synchronising)
        self._literals_total += size
        self._awaited = size
        return ContinuationNeeded(Frame(bytes(self._text), (*self._literals, b"")), size) if synchronising else None

    def _frame(self) -> Frame:
        return Frame(bytes(self._text), tuple(self._literals))

    def _finish(self) -> Frame:
        frame = self._frame()
        self._text.clear()
        self._literals.clear()
        self._literals_total = 0
        self._awaited = None
        self._large_left = 0
        return frame

    def _consume(self, size: int, end: int) -> bytes:
        """Cut the first `end` bytes off the buffer and return the first `size` of them, copied once."""
        with memoryview(self._buffer) as view, view[:size] as part:
            taken = bytes(part)
        del self._buffer[:end]  # O(1): CPython moves the start
        self._searched = 0
        return taken

    def _fail(
        self, message: str, *, recoverable: bool = False, oversized: bool = False, buffered: int = 0
    ) -> FramingError:
        """Drop the frame and return the error. `buffered`: bytes of the buffer that belong to the command."""
        text = self._finish().text + bytes(self._buffer[:buffered])
        error = FramingError(message, text, recoverable=recoverable, oversized=oversized)
        if not recoverable:
            self._error = error
            self._buffer.clear()
        return error
