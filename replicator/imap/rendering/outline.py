"""Outlines: what clients ask of each message of a folder, made once when its body arrives (design section 6).

An outline holds ENVELOPE and BODYSTRUCTURE as they are sent, the preview, and the header fields that clients list, sort
and thread by. It tells exactly what the body tells, or that it does not know: then the body is read. Bodies whose
answers depend on the node's limits, or that are damaged, have no outline.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import cast

import msgpack

from replicator.imap.rendering.bodystructure import body_structure
from replicator.imap.rendering.envelope import envelope
from replicator.imap.rendering.fetch_answers import ParsedBody
from replicator.imap.rendering.thread_id import thread_id
from replicator.imap.wire.fetch_items import (
    Atom,
    Attribute,
    BodySection,
    FetchItem,
    Printed,
    SectionText,
    Span,
    Value,
    is_preview,
)
from replicator.imap.wire.responses import printed
from replicator.mailstore import Outliner
from replicator.mime.header import Header
from replicator.mime.skeleton import Gap, Skeleton
from replicator.mime.structure import Part
from replicator.view import Message

VERSION = 2
"""Number that rises whenever outlines would tell something else of any message; nodes then make all of them anew."""

_unpack = cast("Callable[..., tuple[bytes, bytes, bytes | None, bytes, tuple[bytes, ...]]]", msgpack.unpackb)

MAX_FIELDS = 100
"""Most fields of any header in an outlined message. All of these can be found by name, whatever the node's limits."""

KEPT = frozenset(
    {
        *(b"date", b"from", b"sender", b"reply-to", b"to", b"cc", b"bcc", b"subject"),
        *(b"message-id", b"in-reply-to", b"references", b"thread-topic", b"thread-index"),
        *(b"content-type", b"mime-version", b"content-transfer-encoding", b"content-disposition", b"content-language"),
        *(b"list-id", b"list-post", b"list-unsubscribe", b"newsgroups", b"mail-followup-to", b"mail-reply-to"),
        *(b"x-priority", b"x-msmail-priority", b"importance", b"priority", b"precedence", b"auto-submitted"),
        *(b"disposition-notification-to", b"return-receipt-to", b"x-draft-info", b"user-agent", b"x-mailer"),
        *(b"x-uniform-type-identifier", b"x-universally-unique-identifier", b"x-spam-flag", b"x-spam-status"),
    }
)
"""Names of the fields that outlines hold. Others are known by name only: that a message has them, or has not."""


class Outline:
    """The outline of one body. `left_out` are the names of the fields that it does not have. Immutable."""

    def __init__(
        self, told: bytes, structure: bytes, preview: bytes | None, fields: bytes, left_out: tuple[bytes, ...]
    ) -> None:
        self.envelope = told
        self.structure = structure
        self.preview = preview
        self.left_out = left_out
        self._fields = fields

    @cached_property
    def header(self) -> Header:
        """The fields that are kept. Parsed where it is asked for: most listings need none."""
        return Header.at(self._fields, 0, len(self._fields))

    @classmethod
    def unpack(cls, packed: bytes | None) -> Outline | None:
        """Return the outline that `outline_of` has made; None if there is none."""
        if not packed:
            return None
        return cls(*_unpack(packed, use_list=False))

    def value(self, item: FetchItem, message: Message) -> Printed | None:
        """Return the value of an item as it is sent; None if the outline, which is this message's, does not tell it."""
        if item is Attribute.ENVELOPE:
            return Printed((self.envelope,))
        if item is Attribute.BODYSTRUCTURE:
            return Printed((self.structure,))
        if is_preview(item):
            return None if self.preview is None else printed(self.preview)
        if item is Attribute.THREADID:
            return printed((Atom(thread_id(message, self.header)),))
        if not may_tell(item) or not isinstance(item, BodySection):
            return None
        names = frozenset(name.lower().encode() for name in item.fields)
        if not names.isdisjoint(self.left_out):
            return None
        content = self.header.select(names)
        if item.partial is not None:
            content = content[item.partial.origin : item.partial.origin + item.partial.length]
        return printed(content)


def may_tell(item: FetchItem) -> bool:
    """Return True if outlines of most messages tell the value of this item."""
    if isinstance(item, BodySection):
        return not item.part and item.text is SectionText.HEADER_FIELDS
    return item in {Attribute.ENVELOPE, Attribute.BODYSTRUCTURE, Attribute.THREADID} or is_preview(item)


def outline_of(skeleton: Skeleton) -> bytes:
    """Return the outline of a body, packed; nothing if the body is always to be read."""
    if skeleton.lacks_header or skeleton.header_only:
        return b""
    body = ParsedBody(skeleton, MAX_FIELDS + 1)
    header = body.header
    if header.end == header.fields_end or not all(has_few_fields(part) for part in body.structure.walk()):
        return b""  # without an empty line after the header, its fields cannot be told apart when they are read again
    structure = body_structure(body.structure, skeleton, extended=True)
    left_out = sorted({*header.names} - KEPT)
    preview = body.preview if isinstance(body.preview, bytes) else None
    outline = (_octets(envelope(header)), _octets(structure), preview, header.select(KEPT), left_out)
    return cast("bytes", msgpack.packb(outline))


def wanted_gap(skeleton: Skeleton) -> Gap | None:
    """Return the gap that has the text of the preview; None if there is none, or the body has no outline."""
    if not skeleton.gaps or skeleton.header_only:
        return None
    found = ParsedBody(skeleton, MAX_FIELDS + 1).preview
    return found if isinstance(found, Gap) else None


OUTLINER = Outliner(VERSION, outline_of, wanted_gap)


def has_few_fields(part: Part) -> bool:
    """Return True if all fields of the part's header can be found by name, whatever the node's limits."""
    return len(part.header.names) <= MAX_FIELDS


def _octets(value: Value) -> bytes:
    chunks = printed(value).chunks
    assert not any(isinstance(chunk, Span) for chunk in chunks), "neither item has contents of the message"
    return b"".join(chunk for chunk in chunks if isinstance(chunk, bytes))
