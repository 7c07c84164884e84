"""Items of FETCH (RFC 3501 section 6.4.5), and the types of their values.

Plain values: the parser creates items, `rendering.fetch_answers.fetch_value` computes their values, and the formatter
prints `response_name(item)`, a space and the value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NewType, TypeAlias

Atom = NewType("Atom", str)
"""Text printed as it stands: flags, object ids, and names that the grammar wants unquoted."""


@dataclass(frozen=True, slots=True)
class Adjacent:
    """Values printed one after the other without spaces, as the grammar has addresses and the parts of a multipart."""

    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Octets of the message, from `start` up to `end`, that are read while they are sent."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """Octets of the message from `start` up to `end`, without their transfer `encoding`, in lower case.

    `origin` and `length` select some of the decoded octets. With `size_only`, it stands for the number of all of them.
    """

    start: int
    end: int
    encoding: bytes
    origin: int = 0
    length: int | None = None
    size_only: bool = False


@dataclass(frozen=True, slots=True)
class Printed:
    """A value in the form in which it is sent."""

    chunks: tuple[Chunk, ...]


Chunk: TypeAlias = bytes | Span | Decoded
"""Octets of an answer, or their description until they are read."""

Value: TypeAlias = "int | Atom | bytes | Span | Decoded | tuple[Value, ...] | Adjacent | Printed | None"
"""None: NIL. bytes: a quoted string or a literal, as its octets need. Span: a literal. tuple: a parenthesised list.
Decoded: a literal8, whose length is known only once it has been read."""


class Attribute(Enum):
    """Items without a section, by their name in requests."""

    BODY = "BODY"
    BODYSTRUCTURE = "BODYSTRUCTURE"
    EMAILID = "EMAILID"  # RFC 8474 section 5.1
    ENVELOPE = "ENVELOPE"
    FLAGS = "FLAGS"
    INTERNALDATE = "INTERNALDATE"
    MODSEQ = "MODSEQ"  # RFC 7162 section 3.1.4.2
    PREVIEW = "PREVIEW"  # RFC 8970 section 3.1
    PREVIEW_LAZY = "PREVIEW (LAZY)"  # section 4: only if it is at hand
    RFC822 = "RFC822"
    RFC822_HEADER = "RFC822.HEADER"
    RFC822_SIZE = "RFC822.SIZE"
    RFC822_TEXT = "RFC822.TEXT"
    SAVEDATE = "SAVEDATE"  # RFC 8514 section 4.2
    THREADID = "THREADID"  # RFC 8474 section 5.2
    UID = "UID"


FAST = (Attribute.FLAGS, Attribute.INTERNALDATE, Attribute.RFC822_SIZE)
ALL = (*FAST, Attribute.ENVELOPE)
FULL = (*ALL, Attribute.BODY)
"""The macros of RFC 3501 section 6.4.5; each is the only item of its FETCH."""


class SectionText(Enum):
    """Part of a message or body part (RFC 3501 section 9, `section-text`)."""

    HEADER = "HEADER"
    HEADER_FIELDS = "HEADER.FIELDS"
    HEADER_FIELDS_NOT = "HEADER.FIELDS.NOT"
    TEXT = "TEXT"
    MIME = "MIME"  # only below a part number


@dataclass(frozen=True, slots=True)
class Partial:
    """`<origin.length>`: `length` octets at most, from octet `origin` on, counted from 0."""

    origin: int
    length: int


@dataclass(frozen=True, slots=True)
class BodySection:
    r"""A `BODY[section]<partial>` item.

    `part` holds the part numbers. `text` None means the part's whole content or, without part numbers, the whole
    message. `fields` are the names of HEADER.FIELDS and HEADER.FIELDS.NOT, in printable ASCII. `peek`: does not set
    `\Seen`.
    """

    part: tuple[int, ...] = ()
    text: SectionText | None = None
    fields: tuple[str, ...] = ()
    partial: Partial | None = None
    peek: bool = False


@dataclass(frozen=True, slots=True)
class BinarySection:
    r"""A `BINARY[part]<partial>` item or, if `size_only`, `BINARY.SIZE[part]` (RFC 3516 section 4.2).

    Without part numbers it is the whole message. `peek`: does not set `\Seen`.
    """

    part: tuple[int, ...] = ()
    partial: Partial | None = None
    peek: bool = False
    size_only: bool = False


FetchItem: TypeAlias = Attribute | BodySection | BinarySection

_METADATA = frozenset(
    {
        Attribute.EMAILID,
        Attribute.FLAGS,
        Attribute.INTERNALDATE,
        Attribute.MODSEQ,
        Attribute.PREVIEW_LAZY,
        Attribute.RFC822_SIZE,
        Attribute.SAVEDATE,
        Attribute.UID,
    }
)

# RFC 3501 section 9, ATOM-CHAR, without the brackets that would end the section.
_ATOM = re.compile(r"[!#$&'+,\-./0-9:;<=>?@A-Z^_`a-z|}~]+")


def needs_body(item: FetchItem) -> bool:
    """Return True if the message's body must be read for the item, unless its outline tells the value."""
    return item not in _METADATA


def needs_structure(item: FetchItem) -> bool:
    """Return True if the item needs the MIME structure, beyond the message's own header and the octets below it."""
    if isinstance(item, Attribute):
        return item in {Attribute.BODY, Attribute.BODYSTRUCTURE, Attribute.PREVIEW}
    return bool(item.part)


def is_preview(item: FetchItem) -> bool:
    """Return True if the item's value is the message's preview."""
    return item in {Attribute.PREVIEW, Attribute.PREVIEW_LAZY}


def sets_seen(item: FetchItem) -> bool:
    r"""Return True if fetching the item sets `\Seen` (RFC 3501 section 6.4.5)."""
    if not isinstance(item, Attribute):
        return not item.peek
    return item in {Attribute.RFC822, Attribute.RFC822_TEXT}


def response_name(item: FetchItem) -> str:
    """Return the item's name in answers: `BODY[1.HEADER.FIELDS (SUBJECT)]<0>`, never `BODY.PEEK`."""
    if isinstance(item, Attribute):
        return Attribute.PREVIEW.value if is_preview(item) else item.value
    words = [str(number) for number in item.part]
    start = f"<{item.partial.origin}>" if item.partial else ""
    if isinstance(item, BinarySection):
        return f"BINARY{'.SIZE' if item.size_only else ''}[{'.'.join(words)}]{start}"
    if item.text is not None:
        words.append(item.text.value)
    section = ".".join(words)
    if item.fields:
        section += f" ({' '.join(_astring(name) for name in item.fields)})"
    return f"BODY[{section}]{start}"


def _astring(name: str) -> str:
    if _ATOM.fullmatch(name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
