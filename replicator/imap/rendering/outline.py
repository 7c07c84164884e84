"""Outlines: what clients ask of each message of a folder, made once when its body arrives (design section 6).

An outline holds ENVELOPE and BODYSTRUCTURE as they are sent, the preview, and the header fields that clients list, sort
and thread by. It tells exactly what the body tells, or that it does not know: then the body is read. Bodies whose
answers depend on the node's limits, or that are damaged, have no outline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias, cast

import msgpack

from replicator.imap.rendering.bodystructure import body_structure
from replicator.imap.rendering.envelope import envelope
from replicator.imap.rendering.fetch_answers import ParsedBody
from replicator.imap.rendering.thread_id import message_ids, named_thread
from replicator.imap.wire.fetch_items import (
    Attribute,
    BodySection,
    FetchItem,
    SectionText,
    Span,
    Value,
    is_preview,
)
from replicator.imap.wire.responses import printed
from replicator.mail.mailstore import MessageIdReader, Outliner
from replicator.mime.header import Field, Header
from replicator.mime.skeleton import Gap, Skeleton
from replicator.mime.structure import Part

VERSION = 3
"""Number that rises whenever outlines would tell something else of any message; nodes then make all of them anew."""

_unpack = cast("Callable[..., tuple[object, ...]]", msgpack.unpackb)

MAX_FIELDS = 100
"""Most fields of any header in an outlined message. All of these can be found by name, whatever the node's limits."""

MESSAGE_ID_MAX = 4096
"""Most octets of a field in which its Message-ID is looked for."""

KEPT = frozenset(
    {
        *(b"date", b"from", b"sender", b"reply-to", b"to", b"cc", b"bcc", b"subject"),
        *(b"message-id", b"in-reply-to", b"references", b"thread-topic", b"thread-index"),
        *(b"content-type", b"mime-version", b"content-transfer-encoding", b"content-disposition", b"content-language"),
        *(b"list-id", b"list-post", b"list-subscribe", b"list-unsubscribe", b"newsgroups", b"content-description"),
        *(b"mail-followup-to", b"mail-reply-to", b"x-original-to", b"x-label", b"lines"),
        *(b"x-priority", b"x-msmail-priority", b"importance", b"priority", b"precedence", b"auto-submitted"),
        *(b"disposition-notification-to", b"return-receipt-to", b"x-draft-info", b"user-agent", b"x-mailer"),
        *(b"x-uniform-type-identifier", b"x-universally-unique-identifier", b"x-spam-flag", b"x-spam-status"),
    }
)
"""Names of the fields that outlines hold. Others are known by name only: that a message has them, or has not."""


Teller: TypeAlias = "Callable[[Outline], bytes | None]"
"""Returns an item's value as it is sent; None if the outline does not tell it."""


class Outline(NamedTuple):
    """The outline of one body. `left_out` are the names of the fields that it does not have."""

    envelope: bytes
    structure: bytes
    preview: bytes | None
    fields: Sequence[Field]
    empty_line: bytes  # that ends the header
    left_out: tuple[bytes, ...]

    @property
    def header(self) -> Header:
        """The fields that are kept, as a header."""
        return Header.of(self.fields, self.empty_line)

    @classmethod
    def unpack(cls, packed: bytes | None) -> Outline | None:
        """Return the outline that `outline_of` has made; None if there is none."""
        return cls._make(_unpack(packed, use_list=False)) if packed else None


def teller(item: FetchItem) -> Teller:
    """Return the function that takes the item's value from an outline."""
    if item is Attribute.ENVELOPE:
        return attrgetter("envelope")
    if item is Attribute.BODYSTRUCTURE:
        return attrgetter("structure")
    if is_preview(item):
        return _preview
    if item is Attribute.THREADID:
        return _thread_id
    assert isinstance(item, BodySection), f"no outline tells {item}"
    names, part = frozenset(name.lower().encode() for name in item.fields), item.partial

    def fields(outline: Outline) -> bytes | None:
        if not names.isdisjoint(outline.left_out):
            return None
        chosen = b"".join([field for name, field in outline.fields if name in names]) + outline.empty_line
        return _octets(chosen if part is None else chosen[part.origin : part.origin + part.length])

    return fields


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
    if not all(has_few_fields(part) for part in body.structure.walk()):
        return b""
    structure = body_structure(body.structure, skeleton, extended=True)
    left_out = sorted({*header.names} - KEPT)
    preview = body.preview if isinstance(body.preview, bytes) else None
    kept = [(name, field) for name, field in header.fields if name in KEPT]
    end = header.empty_line or b"\r\n"  # as `Header.select` ends fields
    outline = (_octets(envelope(header)), _octets(structure), preview, kept, end, left_out)
    return cast("bytes", msgpack.packb(outline))


def wanted_gap(skeleton: Skeleton) -> Gap | None:
    """Return the gap that has the text of the preview; None if there is none, or the body has no outline."""
    if not skeleton.gaps or skeleton.header_only:
        return None
    found = ParsedBody(skeleton, MAX_FIELDS + 1).preview
    return found if isinstance(found, Gap) else None


OUTLINER = Outliner(VERSION, outline_of, wanted_gap)


def _message_id(header: Header) -> str | None:
    found = next(message_ids((header.value(b"message-id") or b"")[:MESSAGE_ID_MAX]), None)
    return None if found is None else found.decode(errors="backslashreplace")


MESSAGE_IDS = MessageIdReader(
    VERSION,
    of_outline=lambda packed: _message_id(Outline._make(_unpack(packed, use_list=False)).header),
    of_skeleton=lambda skeleton: _message_id(ParsedBody(skeleton, MAX_FIELDS + 1).header),
)


def has_few_fields(part: Part) -> bool:
    """Return True if all fields of the part's header can be found by name, whatever the node's limits."""
    return len(part.header.names) <= MAX_FIELDS


def _preview(outline: Outline) -> bytes | None:
    return None if outline.preview is None else _octets(outline.preview)


def _thread_id(outline: Outline) -> bytes:
    """Return the THREADID that the header tells; nothing if the message is a conversation of its own."""
    named = named_thread(outline.header)
    return b"" if named is None else b"(%b)" % named.encode("ascii")


def _octets(value: Value) -> bytes:
    chunks = printed(value).chunks
    assert not any(isinstance(chunk, Span) for chunk in chunks), "neither item has contents of the message"
    return b"".join(chunk for chunk in chunks if isinstance(chunk, bytes))
