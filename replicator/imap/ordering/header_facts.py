"""Columns of headers for SORT and THREAD: texts in the form in which they are compared."""

from __future__ import annotations

from itertools import islice

from protocol.units import KIB
from replicator.imap.ordering.base_subject import base_subject
from replicator.imap.rendering.header_columns import Column
from replicator.imap.rendering.thread_id import message_ids
from replicator.imap.text import decoding
from replicator.imap.text.address_lists import parse_addresses
from replicator.imap.text.casemap import casemap
from replicator.imap.text.decoding import value_text
from replicator.mime.header import Header

MAX_COMPARED = 500
"""Limit of characters by which messages are compared: the texts of a whole mailbox are in memory while it is sorted."""

_LOOKED_AT = 4 * KIB  # octets of a value
_REFERENCES_LOOKED_AT = 16 * KIB  # octets, the last ones, in which the parent is
_REFERENCES_KEPT = 200  # ids, the last ones: as many as usual ones in those octets


def sent_ms(header: Header, _name: bytes) -> int | None:
    """Return the time in the Date field, in UTC (RFC 5256 section 2.2); None if there is no valid date."""
    return decoding.sent_ms(header)


def subject(header: Header, name: bytes) -> tuple[str, bool]:
    """Return the text of the base subject, and True if it is that of a reply or a forward.

    A plain tuple of such values costs no collection of garbage anything, unlike one of a class.
    """
    found = base_subject(value_text(_value(header, name)))
    return casemap(found.text)[:MAX_COMPARED], found.is_reply


def message_id(header: Header, name: bytes) -> bytes | None:
    """Return the message's own id (RFC 5256 section 3, REFERENCES)."""
    return next(message_ids(_value(header, name)), None)


def references(header: Header, name: bytes) -> tuple[bytes, ...]:
    """Return the ids of the messages before this one in its thread, the parent last (RFC 5256 section 3)."""
    found = (*message_ids((header.value(name) or b"")[-_REFERENCES_LOOKED_AT:]),)[-_REFERENCES_KEPT:]
    return found or (*islice(message_ids(_value(header, b"in-reply-to")), 1),)


def mailbox(header: Header, name: bytes) -> str:
    """Return the local part of the first address in the field of this name (RFC 5256 section 3)."""
    addresses = parse_addresses(_value(header, name), most=1)
    return _compared(addresses[0].mailbox or b"") if addresses else ""


def display(header: Header, name: bytes) -> str:
    """Return the name of the first address in the field of this name, else the address (RFC 5957 section 3)."""
    addresses = parse_addresses(_value(header, name), most=1)
    if not addresses:
        return ""
    first = addresses[0]
    if first.name:
        return _compared(first.name)
    local, host = first.mailbox or b"", first.host or b""
    return _compared(local + b"@" + host if host else local)


SENT_MS = Column(sent_ms, b"date")
SUBJECT = Column(subject, b"subject")
MESSAGE_ID = Column(message_id, b"message-id")
REFERENCES = Column(references, b"references")


def _value(header: Header, name: bytes) -> bytes:
    return (header.value(name) or b"")[:_LOOKED_AT]


def _compared(text: bytes) -> str:
    return casemap(value_text(text))[:MAX_COMPARED]
