"""Values of FETCH items, from a message's row in the view and from its body. Pure functions.

A body is parsed as far as an answer needs: ENVELOPE and HEADER parse the header alone. Of a large body only the
skeleton is in memory; content in its gaps is represented by a `Span`, which the sender reads.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from functools import cached_property, lru_cache
from types import MappingProxyType

from protocol.units import MIB
from replicator.errors import UnknownEncodingError
from replicator.imap.rendering.bodystructure import body_structure
from replicator.imap.rendering.envelope import envelope
from replicator.imap.rendering.preview import preview
from replicator.imap.rendering.thread_id import thread_id
from replicator.imap.text.transfer_encodings import DECODERS, transfer_encoding
from replicator.imap.wire.fetch_items import (
    Atom,
    Attribute,
    BinarySection,
    BodySection,
    Decoded,
    FetchItem,
    SectionText,
    Span,
    Value,
    is_preview,
    needs_body,
)
from replicator.mail.view import Message
from replicator.mime.header import MAX_FIELDS, Header
from replicator.mime.skeleton import Gap, Skeleton
from replicator.mime.structure import Part, parse

_EPOCH = dt.date(1970, 1, 1)
_EARLIEST_MS, _LATEST_MS = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999: the grammar has four digits
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

SPAN_BYTES = 2 * MIB  # largest content that stays in memory while it is sent

# RFC 3501 section 6.4.5 defines these as equivalent.
_SECTIONS: Mapping[Attribute, BodySection] = MappingProxyType(
    {
        Attribute.RFC822: BodySection(),
        Attribute.RFC822_HEADER: BodySection(text=SectionText.HEADER),
        Attribute.RFC822_TEXT: BodySection(text=SectionText.TEXT),
    }
)


class ParsedBody:
    """A message's body (header and content), parsed on demand. Of a header, `max_fields` can be found by name."""

    def __init__(self, skeleton: Skeleton, max_fields: int = MAX_FIELDS) -> None:
        self._max_fields = max_fields
        self.skeleton = skeleton
        self.raw = skeleton.raw

    @cached_property
    def header(self) -> Header:
        """The message's own header."""
        return Header.at(self.raw, 0, len(self.raw)).showing(self._max_fields)

    @cached_property
    def structure(self) -> Part:
        """The message with all its parts."""
        return parse(self.raw, self._max_fields)

    @cached_property
    def preview(self) -> bytes | Gap:
        """The message's preview in UTF-8, or the gap whose beginning it lacks."""
        if self.skeleton.header_only:
            return self.skeleton.gaps[-1]
        found = preview(self.structure, self.skeleton)
        return found.encode("utf-8", "replace") if isinstance(found, str) else found


def fetch_value(item: FetchItem, message: Message, body: ParsedBody | None) -> Value:
    r"""Return the value of one item. `body` is needed if `needs_body(item)`; the session adds `\Recent`."""
    if isinstance(item, Attribute) and not needs_body(item) and not (body and is_preview(item)):
        return _from_metadata(item, message)
    assert body is not None, "needs_body says which items need the body"
    if isinstance(item, BinarySection):
        return _decoded(body, item)
    if item is Attribute.THREADID:
        return (Atom(thread_id(message, body.header)),)
    return section(body, item) if isinstance(item, BodySection) else _from_body(item, body)


def email_id(message: Message) -> str:
    """Return the EMAILID (RFC 8474 section 5.1); it begins with a letter, as section 7 there advises."""
    return f"M{message.guid.hex()}"


def date_time(ms: int) -> bytes:
    """Return a time in UTC (RFC 3501 section 9, `date-time`, unquoted), clamped to the years that its form allows."""
    day, second = divmod(max(_EARLIEST_MS, min(ms, _LATEST_MS)) // 1000, 86_400)
    minute, second = divmod(second, 60)
    return b"%b %02d:%02d:%02d +0000" % (_date(day), *divmod(minute, 60), second)


@lru_cache(maxsize=4096)
def _date(day: int) -> bytes:
    """Return `date` of RFC 3501 section 9 of a day since 1970."""
    date = _EPOCH + dt.timedelta(days=day)
    return f"{date.day:2}-{_MONTHS[date.month - 1]}-{date.year:04}".encode()


def section(body: ParsedBody, item: BodySection) -> bytes | Span | None:
    """Return the content of `BODY[section]<partial>`, byte for byte; None if the message has no such part."""
    if item.part:
        content = _of_part(body, item)
    elif item.text is None:
        content = _octets(body.skeleton, 0, len(body.raw))
    else:
        content = _of_message(body.skeleton, body.header, len(body.raw), item)
    if content is None or item.partial is None:
        return content
    origin, length = item.partial.origin, item.partial.length
    if isinstance(content, Span):
        start = min(content.start + origin, content.end)
        return Span(start, min(start + length, content.end))
    return content[origin : origin + length]


def _decoded(body: ParsedBody, item: BinarySection) -> Decoded | int | None:
    """Return the content of `BINARY[part]<partial>`, to be decoded as it is read (RFC 3516 section 4.3).

    Only what can be encoded is decoded: neither whole messages nor multiparts (RFC 2045 section 6.4). Raises
    UnknownEncodingError.
    """
    start, end, encoding = 0, len(body.raw), b""
    if item.part:
        part = body.structure.find(item.part)
        if part is None:
            return 0 if item.size_only else None
        start, end = part.header.end, part.end
        encoding = transfer_encoding(part) if part.nested is None and not part.children else b""
    if encoding not in DECODERS:
        raise UnknownEncodingError(f"the encoding {encoding[:100].decode('latin-1')!r} of a part is not known here")
    origin, length = (item.partial.origin, item.partial.length) if item.partial else (0, None)
    return Decoded(body.skeleton.start(start), body.skeleton.end(end), encoding, origin, length, item.size_only)


def _octets(skeleton: Skeleton, start: int, end: int) -> bytes | Span:
    """Return the octets of a skeleton's range, or a `Span` if it is large or has gaps, to be read while it is sent."""
    if skeleton.is_whole(start, end) and end - start <= SPAN_BYTES:
        return skeleton.raw[start:end]
    return Span(skeleton.start(start), skeleton.end(end))


def _of_part(body: ParsedBody, item: BodySection) -> bytes | Span | None:
    part = body.structure.find(item.part)
    if part is None:
        return None
    if item.text is None:
        return _octets(body.skeleton, part.header.end, part.end)
    if item.text is SectionText.MIME:
        return _header(part.header)
    # HEADER and TEXT below a part number are those of a nested message (RFC 3501 section 6.4.5).
    return None if part.nested is None else _of_message(body.skeleton, part.nested.header, part.nested.end, item)


def _of_message(skeleton: Skeleton, header: Header, end: int, item: BodySection) -> bytes | Span:
    if item.text is SectionText.TEXT:
        return _octets(skeleton, header.end, end)
    if item.text in {SectionText.HEADER_FIELDS, SectionText.HEADER_FIELDS_NOT}:
        names = frozenset(name.lower().encode() for name in item.fields)
        return header.select(names, others=item.text is SectionText.HEADER_FIELDS_NOT)
    return _header(header)


def _header(header: Header) -> bytes | Span:
    """Return the header, or a `Span` if it is large.

    The header in a skeleton with gaps is always smaller than `SPAN_BYTES`, so the offsets of a larger one are those in
    the message.
    """
    if header.end - header.start > SPAN_BYTES:
        return Span(header.start, header.end)
    return header.raw[header.start : header.end]


def _from_metadata(item: Attribute, message: Message) -> Value:
    match item:
        case Attribute.EMAILID:
            return (Atom(email_id(message)),)
        case Attribute.FLAGS:
            return tuple(Atom(flag) for flag in sorted(message.flags))
        case Attribute.INTERNALDATE:
            return date_time(message.received_ms)
        case Attribute.MODSEQ:
            return (message.modseq,)
        case Attribute.PREVIEW_LAZY:
            return None
        case Attribute.RFC822_SIZE:
            return message.size_bytes
        case Attribute.SAVEDATE:
            return None if message.saved_ms is None else date_time(message.saved_ms)
        case Attribute.UID:
            return message.uid
    raise AssertionError(f"needs_body says that {item} needs the body")


def _from_body(item: Attribute, body: ParsedBody) -> Value:
    if item is Attribute.ENVELOPE:
        return envelope(body.header)
    if is_preview(item):
        return body.preview if isinstance(body.preview, bytes) else None
    if item in _SECTIONS:
        return section(body, _SECTIONS[item])
    return body_structure(body.structure, body.skeleton, extended=item is Attribute.BODYSTRUCTURE)
