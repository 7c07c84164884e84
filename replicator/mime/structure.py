"""Positions of the parts of a message (RFC 2046 section 5).

Nothing here raises, whatever the message: a multipart without parts is plain text, one beyond the limits is opaque, a
missing end is the end of the enclosing part. An outer boundary ends everything within.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from replicator.mime.header import LINE_END, MAX_FIELDS, MESSAGE_RFC822, OCTET_STREAM, TEXT_PLAIN, ContentType, Header

MAX_DEPTH = 50
"""Levels of nested parts: every level scans its content once more, and clients recurse over the answer."""

MAX_PARTS = 1000
"""Parts of a message in all: the answer to BODYSTRUCTURE is held in memory."""

MESSAGE_COST = 4
"""Count of a nested message towards `MAX_PARTS`: it adds an envelope to the answer."""

MAX_BOUNDARY = 1000
"""Octets of a boundary. RFC 2046 section 5.1.1 allows 70; some generators exceed that."""


@dataclass(frozen=True, slots=True)
class Part:
    """A message or a MIME part: a header, and content from its end to `end`.

    `children` are the parts of a multipart, `nested` is the message in a MESSAGE/RFC822.
    """

    header: Header
    end: int
    content_type: ContentType
    children: tuple[Part, ...] = ()
    nested: Part | None = None

    @property
    def body(self) -> bytes:
        """The content, byte for byte, as far as it is in the parsed octets."""
        return self.header.raw[self.header.end : self.end]

    def walk(self) -> Iterator[Part]:
        """Yield this part and all parts within it, in order."""
        yield self
        for part in self.children if self.nested is None else (self.nested,):
            yield from part.walk()

    def find(self, numbers: tuple[int, ...]) -> Part | None:
        """Return the part with these part numbers (RFC 3501 section 6.4.5), counted from 1; None if there is none."""
        part, is_message = self, True
        for number in numbers:
            if part.nested is not None and not is_message:
                part, is_message = part.nested, True
            if 0 < number <= len(part.children):
                part = part.children[number - 1]
            elif part.children or not is_message or number != 1:
                return None
            is_message = False
        return part


def parse(raw: bytes, max_fields: int = MAX_FIELDS) -> Part:
    """Return the structure of a message. Of each header, so many fields at most can be found by name."""
    return _Parser(raw, max_fields).part(0, len(raw), TEXT_PLAIN, 0)


class _Parser:
    def __init__(self, raw: bytes, max_fields: int) -> None:
        self._raw = raw
        self._max_fields = max_fields
        self._parts_left = MAX_PARTS

    def part(self, start: int, end: int, default: ContentType, depth: int) -> Part:
        header = Header.at(self._raw, start, end)
        # From as many fields as the splitter knows, whatever the limit of what is shown: it has cut by this type.
        content_type = ContentType.parse_or(header.value(b"content-type"), default)
        header = header.showing(self._max_fields)
        if content_type.value == b"MULTIPART":
            return self._multipart(header, end, content_type, depth)
        if (content_type.value, content_type.subtype) == (b"MESSAGE", b"RFC822"):
            return self._message(header, end, content_type, depth)
        return Part(header, end, content_type)

    def _multipart(self, header: Header, end: int, content_type: ContentType, depth: int) -> Part:
        boundary = (content_type.decoded_parameter(b"boundary") or b"").rstrip()
        spans = list(islice(_spans(self._raw, boundary, header.end, end), self._parts_left + 1))
        if not spans:
            return Part(header, end, TEXT_PLAIN)
        if not self._may_descend(len(spans), depth):
            return Part(header, end, OCTET_STREAM)
        default = MESSAGE_RFC822 if content_type.subtype == b"DIGEST" else TEXT_PLAIN  # RFC 2046 section 5.1.5
        children = tuple(self.part(*span, default, depth + 1) for span in spans)
        return Part(header, end, content_type, children)

    def _message(self, header: Header, end: int, content_type: ContentType, depth: int) -> Part:
        if not self._may_descend(MESSAGE_COST, depth):
            return Part(header, end, OCTET_STREAM)
        return Part(header, end, content_type, nested=self.part(header.end, end, TEXT_PLAIN, depth + 1))

    def _may_descend(self, cost: int, depth: int) -> bool:
        if depth >= MAX_DEPTH or cost > self._parts_left:
            return False
        self._parts_left -= cost
        return True


def _spans(raw: bytes, boundary: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each part of a multipart. The line end before a delimiter belongs to the delimiter."""
    if not 0 < len(boundary) <= MAX_BOUNDARY:
        return
    delimiter = re.compile(rb"\n--" + re.escape(boundary) + rb"(--)?[ \t]*+(?:(?=(" + LINE_END + rb"))|\Z)")
    opened = None
    for found in delimiter.finditer(raw, start - 1, end):  # the octet before a multipart's content ends a header line
        if opened is not None and found.start() >= opened:  # adjacent delimiters begin the same part
            yield opened, found.start() - (raw[found.start() - 1] == ord("\r"))
        if found[1]:
            return
        opened = found.end() + len(found[2] or b"")
    if opened is not None:
        yield opened, end
