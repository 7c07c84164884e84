"""Headers of messages and MIME parts, by offset into the message (RFC 5322 section 2.2, RFC 2045).

The `email` package keeps no offsets and normalises its input, but IMAP must return octets unchanged; so this module
finds the positions of fields and parameters, and `decoding` lets that package decode them. Every expression here takes
linear time: the pattern after a possessive quantifier cannot match what the quantifier took.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import TypeAlias
from urllib.parse import quote_from_bytes, unquote_to_bytes

MAX_FIELDS = 10_000
"""Limit of parsed fields in a header: a hundred times what mail has. Empty fields cost 50 times their size.

What is a part of a message, and so what of it becomes an attachment, depends on this: it is the same at all nodes.
"""

MAX_PARAMETERS = 200
"""Limit of parsed parameters in a value: enough for RFC 2231's pieces, few enough to be answered."""

LINE_END = rb"\r{0,2}\n"
"""CRLF, LF, or the CR CR LF of programs that turned LF into CRLF twice: the parts of such mail are shown, too."""

# RFC 5322 section 3.6.8 (field-name), 4.5.8 (space before the colon), 2.2.3 (folding). A line `From ` of an mbox file
# is kept in the header as a field without a name. The first line that is none of this ends the header, even without an
# empty line, so that misplaced text is shown as text.
_FIELD = rb"(?:>?From |([!-9;-~]++)[ \t]*+:)[^\n]*+\n?+(?:[ \t][^\n]*+\n?+)*+"
_FIELD_PATTERN = re.compile(_FIELD)
# Not `(?:...)*+`: in Python 3.11.2, as in Debian 12, it also takes the start of text that does not match. Not all
# fields at once: each takes 150 bytes of memory until the match ends.
_SOME_FIELDS = re.compile(rb"(?>(?:" + _FIELD + rb"){0,1000})")
_EMPTY_LINE = re.compile(rb"(?:" + LINE_END + rb")?")

# RFC 2045 section 5.1, as lenient as real mail requires: whitespace around every sign, unquoted values.
_CONTENT_TYPE = re.compile(rb"\s*+([^\s/;()\"]++)\s*+/\s*+([^\s/;()\"]++)")
_PARAMETER = re.compile(rb';\s*+([^\s=;"]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"?|([^;"]*+))', re.DOTALL)
_CONTINUED = re.compile(rb"([^*]+)\*(?:(\d{1,3})(\*?))?")  # RFC 2231: name*, name*0, name*0*
_ATTRIBUTE_SIGNS = "!#$&+-.^_`{|}~"  # RFC 2231 section 7, attribute-char, besides letters and digits
_TRAILING_COMMENT = re.compile(rb"(?:^|\s)\([^()]*\)\s*$")
_QUOTED_PAIR = re.compile(rb'\\(["\\])')


Field: TypeAlias = tuple[bytes, bytes]
"""A field of a header: its name in lower case, and the whole field byte for byte."""


@dataclass(frozen=True)
class Header:
    """The header at `raw[start:end]`: fields up to `fields_end`, then the empty line that ends it, if there is one."""

    raw: bytes
    start: int
    fields_end: int
    end: int
    max_fields: int = MAX_FIELDS

    @classmethod
    def at(cls, raw: bytes, start: int, limit: int) -> Header:
        """Return the header that begins at `start` and ends by `limit`; it may be empty."""
        fields_end, before = start, -1
        while fields_end != before:
            fields_end, before = _end(_SOME_FIELDS, raw, fields_end, limit), fields_end
        return cls(raw, start, fields_end, _end(_EMPTY_LINE, raw, fields_end, limit))

    @classmethod
    def of(cls, fields: Sequence[Field], empty_line: bytes) -> Header:
        """Return the header of fields that were found before."""
        content = b"".join([field for _, field in fields])
        header = cls(content + empty_line, 0, len(content), len(content) + len(empty_line))
        vars(header)["fields"] = fields  # where `cached_property` looks
        return header

    def showing(self, max_fields: int) -> Header:
        """Return this header with so many fields, at most, that can be found by name."""
        return self if max_fields == self.max_fields else replace(self, max_fields=max_fields)

    def values(self, name: bytes) -> Iterator[bytes]:
        """Return the unfolded values of all fields of this name, which must be in lower case."""
        return (_unfold(self.fields[position][1]) for position in self._positions.get(name, ()))

    def value(self, name: bytes) -> bytes | None:
        """Return the unfolded value of the first field of this name, which must be in lower case."""
        return next(self.values(name), None)

    @property
    def names(self) -> list[bytes]:
        """The names of the fields in their order, in lower case; that of a line `From ` is empty."""
        return [name for name, _ in self.fields]

    def select(self, names: frozenset[bytes], *, others: bool = False) -> bytes:
        """Return fields of these names (in lower case), or all others, and the empty line (RFC 3501 section 6.4.5)."""
        if others:
            chosen = [field for name, field in self.fields if name not in names]
        else:
            positions = chain.from_iterable(self._positions.get(name, ()) for name in names)
            chosen = [self.fields[position][1] for position in sorted(positions)]
        return b"".join((*chosen, self.empty_line or b"\r\n"))

    @property
    def empty_line(self) -> bytes:
        """The line that ends the header; empty if there is none."""
        return self.raw[self.fields_end : self.end]

    @cached_property
    def fields(self) -> Sequence[Field]:
        """The first `max_fields` fields."""
        found = islice(_FIELD_PATTERN.finditer(self.raw, self.start, self.fields_end), self.max_fields)
        return [((field[1] or b"").lower(), field[0]) for field in found]

    @cached_property
    def _positions(self) -> dict[bytes, list[int]]:
        """Positions in `fields`, ascending, by the name of the field."""
        positions: dict[bytes, list[int]] = {}
        for position, (name, _) in enumerate(self.fields):
            positions.setdefault(name, []).append(position)
        return positions


@dataclass(frozen=True, slots=True)
class Parameterised:
    """A value with unchanged parameters: names in any case, and as RFC 2231 writes them."""

    value: bytes
    parameters: tuple[tuple[bytes, bytes], ...] = ()

    @classmethod
    def parse(cls, text: bytes) -> Parameterised:
        """Parse `value; name=value; ...`. Invalid parts are left out."""
        return cls(without_comment(text.partition(b";")[0]), _parameters(text))

    def parameter(self, name: bytes) -> bytes | None:
        """Return the first parameter of this name, which must be in lower case."""
        return next((value for found, value in self.parameters if found.lower() == name), None)

    def joined_parameters(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return the parameters with continued ones joined (RFC 2231 section 6); charset and language are kept.

        So `name*0=a; name*1=b` becomes `name=ab`, and `name*0*=utf-8''a%20; name*1=b` becomes `name*=utf-8''a%20b`.
        Pieces that do not count from 0 without gaps stay as they are.
        """
        marks = [_CONTINUED.fullmatch(name) for name, _ in self.parameters]
        pieces: dict[bytes, dict[int, int]] = {}  # name in lower case -> number of the piece -> its position
        broken = set[bytes]()
        for position, mark in enumerate(marks):
            if mark and mark[2]:
                name = mark[1].lower()
                if pieces.setdefault(name, {}).setdefault(int(mark[2]), position) != position:
                    broken.add(name)
        joined: list[tuple[bytes, bytes]] = []
        for (name, value), mark in zip(self.parameters, marks, strict=True):
            found = pieces.get(mark[1].lower(), {}) if mark and mark[2] else {}
            if mark is None or mark[1].lower() in broken or not found or max(found) >= len(found):
                joined.append((name, value))
            elif int(mark[2]) == 0:
                ordered = [found[number] for number in range(len(found))]
                joined.append(_join(mark[1], [(_is_encoded(marks[at]), self.parameters[at][1]) for at in ordered]))
        return tuple(joined)

    def decoded_parameter(self, name: bytes) -> bytes | None:
        """Return the parameter, joined and decoded if it is written as in RFC 2231."""
        plain = self.parameter(name)
        if plain is not None:
            return plain
        marked = ((_CONTINUED.fullmatch(found.lower()), value) for found, value in self.parameters)
        pieces = sorted(
            (int(mark[2] or 0), mark[3] != b"", value) for mark, value in marked if mark and mark[1] == name
        )
        if not pieces:
            return None
        decoded = b"".join(unquote_to_bytes(value) if encoded else value for _, encoded, value in pieces)
        return decoded.split(b"'", 2)[-1] if pieces[0][1] else decoded  # charset'language'value


@dataclass(frozen=True, slots=True)
class ContentType(Parameterised):
    """A Content-Type. `value` is the type in capitals."""

    subtype: bytes = b""

    @classmethod
    def parse_or(cls, text: bytes | None, default: ContentType) -> ContentType:
        """Parse a Content-Type; `default` if there is none, TEXT/PLAIN if it is invalid (RFC 2045 section 5.2)."""
        if text is None:
            return default
        found = _CONTENT_TYPE.match(text)
        if found is None:
            return TEXT_PLAIN
        return cls(found[1].upper(), _parameters(text), found[2].upper())


TEXT_PLAIN = ContentType(b"TEXT", ((b"CHARSET", b"US-ASCII"),), b"PLAIN")
OCTET_STREAM = ContentType(b"APPLICATION", (), b"OCTET-STREAM")
MESSAGE_RFC822 = ContentType(b"MESSAGE", (), b"RFC822")


def without_comment(text: bytes) -> bytes:
    """Return the text without surrounding whitespace and without a comment in brackets at its end."""
    return _TRAILING_COMMENT.sub(b"", text).strip()


def _parameters(text: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return tuple(
        (found[1], without_comment(found[3]) if found[2] is None else _QUOTED_PAIR.sub(rb"\1", found[2]))
        for found in islice(_PARAMETER.finditer(text), MAX_PARAMETERS)
    )


def _is_encoded(mark: re.Match[bytes] | None) -> bool:
    return mark is not None and mark[3] != b""


def _join(name: bytes, pieces: list[tuple[bool, bytes]]) -> tuple[bytes, bytes]:
    """Return the parameter of these pieces; if any is encoded, all of it is (RFC 2231 section 4.1)."""
    if not any(encoded for encoded, _ in pieces):
        return name, b"".join(value for _, value in pieces)
    values = (value if encoded else quote_from_bytes(value, _ATTRIBUTE_SIGNS).encode() for encoded, value in pieces)
    return name + b"*", (b"" if pieces[0][0] else b"''") + b"".join(values)


def _unfold(field: bytes) -> bytes:
    # RFC 5322 section 2.2.3. NUL is removed because IMAP strings cannot hold it (RFC 3501 section 9, CHAR8).
    return field.partition(b":")[2].translate(None, b"\r\n\0").strip(b" \t")


def _end(pattern: re.Pattern[bytes], raw: bytes, start: int, limit: int) -> int:
    found = pattern.match(raw, start, limit)
    assert found is not None, "the pattern matches nothing as well"
    return found.end()
