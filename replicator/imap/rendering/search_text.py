"""Search texts: what SEARCH looks for in the text of a message, decoded once when the body arrives (design section 6).

Without a search text, SEARCH makes the same of the body. Both are in the form in which text is compared (`casemap`), so
to search is to look for octets. Bodies whose answers depend on the node's limits, or that have more text than is kept,
have no search text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple, cast

import msgpack

from protocol.units import MIB
from replicator.imap.rendering.fetch_answers import ParsedBody
from replicator.imap.rendering.outline import MAX_FIELDS, has_few_fields
from replicator.imap.text.casemap import casemap
from replicator.imap.text.decoding import header_text, part_text
from replicator.mail.mailstore import SearchTextMaker
from replicator.mime.header import Header
from replicator.mime.skeleton import Skeleton
from replicator.mime.structure import Part

VERSION = 1
"""Number that rises whenever search texts would tell something else of any message; nodes then make all anew."""

TEXT_MAX_BYTES = MIB
"""Largest text of a body that is kept, in UTF-8: what a long book has. Longer ones are read."""


class SearchText(NamedTuple):
    """Text that is searched in one body, as it is compared and in UTF-8: its header, and each text within it."""

    header: bytes
    texts: tuple[bytes, ...]

    @classmethod
    def unpack(cls, packed: bytes | None) -> SearchText | None:
        """Return the search text that `search_text_of` has made; None if there is none."""
        if not packed:
            return None
        return cls(*cast("tuple[bytes, tuple[bytes, ...]]", msgpack.unpackb(packed, use_list=False)))


def is_text(part: Part) -> bool:
    """Return True if the part's content is text for people to read."""
    return part.nested is None and part.content_type.value == b"TEXT"


def hides_text(body: ParsedBody) -> bool:
    """Return True if the gaps of the body's skeleton hold any searchable text."""
    texts = (part for part in body.structure.walk() if is_text(part))
    return not all(body.skeleton.is_whole(part.header.end, part.end) for part in texts)


def compared_header(header: Header) -> str:
    """Return the whole header as it is compared."""
    return casemap(header_text(header))


def compared_texts(body: ParsedBody) -> Iterator[Iterator[str]]:
    """Yield each text within the body as it is compared, in pieces: text parts, and headers of nested messages."""
    for part in body.structure.walk():
        if part.nested is not None:
            yield iter([compared_header(part.nested.header)])
        elif is_text(part):
            yield map(casemap, part_text(part))


def encoded(text: str) -> bytes:
    """Return a text as search texts hold it. A text contains another one if and only if it does so in this form."""
    return text.encode("utf-8", "surrogatepass")  # some charsets decode to halves of characters


def search_text_of(skeleton: Skeleton) -> bytes:
    """Return the search text of a body that is all there, packed; nothing if the body is always to be read."""
    body = ParsedBody(skeleton, MAX_FIELDS + 1)
    if not all(has_few_fields(part) for part in body.structure.walk()):
        return b""
    header = encoded(compared_header(body.header))
    texts, left = [], TEXT_MAX_BYTES - len(header)
    if left < 0:
        return b""
    for pieces in compared_texts(body):
        text = bytearray()
        for piece in pieces:
            text += encoded(piece)
            if len(text) > left:
                return b""
        texts.append(bytes(text))
        left -= len(text)
    return cast("bytes", msgpack.packb((header, texts)))


def _lacks_text(skeleton: Skeleton) -> bool:
    if skeleton.lacks_header or skeleton.header_only:
        return True
    return bool(skeleton.gaps) and hides_text(ParsedBody(skeleton, MAX_FIELDS + 1))


# Another Python may know more of Unicode, and decode charsets otherwise: it makes its own search texts.
SEARCH_TEXTS = SearchTextMaker(1000 * VERSION + sys.version_info.minor, _lacks_text, search_text_of)
