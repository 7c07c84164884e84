"""BODY and BODYSTRUCTURE of a part (RFC 3501 section 7.4.2)."""

from __future__ import annotations

import re

from replicator.imap.rendering.envelope import envelope
from replicator.imap.wire.fetch_items import Adjacent, Value
from replicator.mime.header import TEXT_PLAIN, ContentType, Parameterised, without_comment
from replicator.mime.skeleton import Skeleton
from replicator.mime.structure import Part

_CHARSET = frozenset({b"charset", b"charset*"})
_LANGUAGE_SEPARATOR = re.compile(rb"[\s,]+")

# Tokens of RFC 2045 section 6.1, without lower case. Any other value would be useless to a client.
_TOKEN = re.compile(rb"[!#$%&'*+\-.0-9A-Z^_`{|}~]+")


def body_structure(part: Part, skeleton: Skeleton, *, extended: bool) -> Value:
    """Return the structure, with extension data if `extended` (BODYSTRUCTURE) and without if not (BODY)."""
    if part.children:
        bodies = Adjacent(tuple(body_structure(child, skeleton, extended=extended) for child in part.children))
        extension = (_parameters(part.content_type), *_common_extension(part))
        return (bodies, part.content_type.subtype, *(extension if extended else ()))
    return (*_single_part(part, skeleton, extended=extended), *(_single_part_extension(part) if extended else ()))


def _single_part(part: Part, skeleton: Skeleton, *, extended: bool) -> tuple[Value, ...]:
    header, content_type = part.header, part.content_type
    basic: tuple[Value, ...] = (
        content_type.value,
        content_type.subtype,
        _printed(_with_charset(content_type)),
        header.value(b"content-id"),
        header.value(b"content-description"),
        _encoding(part),
        skeleton.end(part.end) - skeleton.start(header.end),  # in its transfer encoding
    )
    if part.nested is not None:
        nested = body_structure(part.nested, skeleton, extended=extended)
        return (*basic, envelope(part.nested.header), nested, skeleton.lines(header.end, part.end))
    if content_type.value == b"TEXT":
        return (*basic, skeleton.lines(header.end, part.end))
    return basic


def _single_part_extension(part: Part) -> tuple[Value, ...]:
    return (part.header.value(b"content-md5"), *_common_extension(part))


def _common_extension(part: Part) -> tuple[Value, ...]:
    """Return disposition, language and location."""
    disposition = part.header.value(b"content-disposition")
    languages = [word for word in _LANGUAGE_SEPARATOR.split(part.header.value(b"content-language") or b"") if word]
    return (
        _disposition(disposition) if disposition else None,
        tuple(languages) if len(languages) > 1 else next(iter(languages), None),
        part.header.value(b"content-location"),
    )


def _disposition(text: bytes) -> Value:
    disposition = Parameterised.parse(text)
    return (disposition.value, _parameters(disposition))


def _with_charset(content_type: ContentType) -> tuple[tuple[bytes, bytes], ...]:
    """Return the parameters; a text without a charset is in US-ASCII (RFC 2046 section 4.1.2)."""
    parameters = content_type.joined_parameters()
    if content_type.value != b"TEXT" or any(name.lower() in _CHARSET for name, _ in parameters):
        return parameters
    return (*parameters, *TEXT_PLAIN.parameters)


def _parameters(value: Parameterised) -> Value:
    return _printed(value.joined_parameters())


def _printed(parameters: tuple[tuple[bytes, bytes], ...]) -> Value:
    return tuple(word for pair in parameters for word in pair) or None


def _encoding(part: Part) -> bytes:
    encoding = without_comment(part.header.value(b"content-transfer-encoding") or b"7BIT").upper()
    return encoding if _TOKEN.fullmatch(encoding) else b"7BIT"
