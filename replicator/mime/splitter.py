"""Cuts the content of large parts out of an incoming message so that the rest keeps its structure.

The message is scanned as in `structure.parse`, with line ends and delimiters found in C: headers are buffered, content
passes through. The boundaries of all enclosing multiparts are searched at once, and outer ones end everything within,
as in `parse`. Content is cut out only after an empty line and up to the line end before a delimiter, so that none of
its lines is a delimiter or part of a header, and no new line results from the cut. If the message has too many parts,
`parse` shows several as one; that one may be cut in several places, and its delimiters, which determine its type, stay.
If a rule would need unbounded memory, nothing is cut until the next delimiter that counts either way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from replicator.mime.header import LINE_END, MESSAGE_RFC822, TEXT_PLAIN, ContentType, Header, without_comment
from replicator.mime.structure import MAX_BOUNDARY, MAX_DEPTH, MAX_PARTS

HEADER_MAX = 64 * 1024
"""Octets of a header, which is held in memory. The part of a longer one is not cut out."""

BLANKS_MAX = 1000
"""Spaces and tabs after a delimiter (RFC 2046 section 5.1.1, transport-padding). With more, its meaning stays open."""

_LINE_MAX = MAX_BOUNDARY + BLANKS_MAX + 16  # longest unfinished line that may still become a delimiter
_EMPTY_LINE = re.compile(rb"\n" + LINE_END)


class Inline(NamedTuple):
    """Octets that are not cut out: headers, delimiters, small content and so on."""

    data: bytes


class BodyBegins(NamedTuple):
    """Start of a part's content of at least `part_min` octets. `base64`: its Content-Transfer-Encoding is base64."""

    base64: bool


class BodyData(NamedTuple):
    """Octets of that content."""

    data: bytes


class BodyEnds(NamedTuple):
    """End of that content."""


Event: TypeAlias = Inline | BodyBegins | BodyData | BodyEnds


class _Level(NamedTuple):
    """An enclosing multipart: its delimiter, and the default type and depth of its parts."""

    delimiter: re.Pattern[bytes]
    default: ContentType
    depth: int  # depth of its parts


class _Body:
    """Content of a part, cut out if it becomes large enough."""

    def __init__(self, *, is_base64: bool) -> None:
        self.is_base64 = is_base64
        self.is_large = False
        self.held = bytearray()


class Splitter:
    """Splitter of one message. The data of all events together is the message.

    The cuts do not depend on how the message arrives in pieces. Between calls it holds less than `part_min` octets (at
    least 1), a header and a line. After `MAX_PARTS` parts it cuts out nothing more.
    """

    def __init__(self, part_min: int) -> None:
        self._part_min = max(1, part_min)
        self._events: list[Event] = []
        self._buffer = bytearray(b"\n")  # one octet that was given out (or precedes the message), then the rest
        self._searched = 0  # no end of the header before this offset
        self._levels: list[_Level] = []  # innermost last
        self._parts_left = MAX_PARTS
        self._body: _Body | None = None
        self._default, self._depth = TEXT_PLAIN, 0  # of the part whose header is being read
        self._step: Callable[[], bool] = self._header

    def write(self, data: bytes) -> list[Event]:
        """Take the next octets of the message, and return the events that are certain now."""
        self._buffer += data
        while self._step():
            pass
        return self._told()

    def finish(self) -> list[Event]:
        """End the message and return the last events."""
        end = self._held_from()
        may_be_delimiter = self._levels and self._buffer[end:].lstrip(b"\r\n").startswith(b"--")
        if not may_be_delimiter:
            end = len(self._buffer)
        self._pass_on(end)
        self._end_body()
        self._pass_on(len(self._buffer))
        return self._told()

    def _told(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # ---- steps: each returns True if there may be more to do with the buffer

    def _header(self) -> bool:
        found = _EMPTY_LINE.search(self._buffer, self._searched, HEADER_MAX + 1)
        end = found.end() if found else len(self._buffer)
        if end > HEADER_MAX + 1:
            return self._content(None)
        if self._delimited(self._searched, end):
            return True
        if found is None:
            self._searched = max(0, end - _LINE_MAX)
            return False
        raw = bytes(self._buffer[1:end])
        header = Header.at(raw, 0, end - 1)
        self._pass_on(end)
        # An invalid line may end a header before the empty line; the part's content then began there.
        return self._after(header) if header.end == len(raw) else self._content(None)

    def _after(self, header: Header) -> bool:
        content_type = ContentType.parse_or(header.value(b"content-type"), self._default)
        may_descend = self._depth < MAX_DEPTH
        if content_type.value == b"MULTIPART":
            boundary = (content_type.decoded_parameter(b"boundary") or b"").rstrip()
            if 0 < len(boundary) <= MAX_BOUNDARY:
                if may_descend:
                    default = MESSAGE_RFC822 if content_type.subtype == b"DIGEST" else TEXT_PLAIN
                    self._levels.append(_Level(_delimiter(boundary), default, self._depth + 1))
                return self._content(None)
        elif may_descend and (content_type.value, content_type.subtype) == (b"MESSAGE", b"RFC822"):
            return self._part(TEXT_PLAIN, self._depth + 1)
        encoding = without_comment(header.value(b"content-transfer-encoding") or b"").lower()
        return self._content(_Body(is_base64=encoding == b"base64"))

    def _pass(self) -> bool:
        if self._delimited(0, len(self._buffer)):
            return True
        self._pass_on(self._held_from() if self._levels else len(self._buffer))
        return False

    def _part(self, default: ContentType, depth: int) -> bool:
        self._default, self._depth, self._searched = default, depth, 0
        self._step = self._header
        return True

    def _content(self, body: _Body | None) -> bool:
        self._body = body
        self._step = self._pass
        return True

    # ---- delimiters

    def _delimited(self, start: int, end: int) -> bool:
        """Find a delimiter in this range. If there is one, give out it and everything before it, and return True."""
        found, which = None, 0
        for index in range(len(self._levels) - 1, -1, -1):
            match = self._levels[index].delimiter.search(self._buffer, start, end)
            if match is not None and (found is None or match.start() <= found.start()):
                found, which, end = match, index, match.end()  # the outermost one, if a line matches several
        if found is None:
            return False
        before = self._line_end_from(found.start())
        self._pass_on(before)
        self._end_body()
        self._pass_on(found.end() - before + 1)
        return self._delimit(which, is_last=found["last"] is not None, is_endless=found["endless"] is not None)

    def _delimit(self, which: int, *, is_last: bool, is_endless: bool) -> bool:
        level = self._levels[which]
        self._parts_left -= not is_last
        del self._levels[which + (not is_last) :]
        if self._parts_left < 0:
            self._levels.clear()
        is_part = self._levels and not is_last and not is_endless
        return self._part(level.default, level.depth) if is_part else self._content(None)

    def _held_from(self) -> int:
        """Return the end of the octets that can be given out, before a line end whose line may become a delimiter."""
        end = len(self._buffer)
        at = self._buffer.rfind(b"\n", max(0, end - _LINE_MAX))
        if at >= 0 and b"--".startswith(self._buffer[at + 1 : at + 3]):
            return self._line_end_from(at)
        return max(1, end - self._buffer.endswith(b"\r"))

    def _line_end_from(self, at: int) -> int:
        """Return the start of the line end at `at`, as far as it was not given out."""
        return max(1, at - (at > 0 and self._buffer[at - 1] == ord("\r")))

    # ---- giving out

    def _pass_on(self, end: int) -> None:
        """Give out everything before `end`; the rest moves to the start of the buffer."""
        assert end <= len(self._buffer)
        with memoryview(self._buffer) as view:
            data = bytes(view[1:end])
        if not data:
            return
        del self._buffer[: end - 1]
        body = self._body
        if body is None:
            self._events.append(Inline(data))
        elif body.is_large:
            self._events.append(BodyData(data))
        else:
            body.held += data
            if len(body.held) >= self._part_min:
                body.is_large = True
                self._events += (BodyBegins(body.is_base64), BodyData(bytes(body.held)))
                body.held.clear()

    def _end_body(self) -> None:
        if self._body is not None and self._body.is_large:
            self._events.append(BodyEnds())
        elif self._body is not None and self._body.held:
            self._events.append(Inline(bytes(self._body.held)))
        self._body = None


def _delimiter(boundary: bytes) -> re.Pattern[bytes]:
    """Return a pattern of a line end and a whole delimiter line, or one with too much padding to wait for its end."""
    blanks = rb"[ \t]{0,%d}+(?:%b|(?P<endless>[ \t]))" % (BLANKS_MAX, LINE_END)
    return re.compile(rb"\n--" + re.escape(boundary) + rb"(?P<last>--)?" + blanks)
