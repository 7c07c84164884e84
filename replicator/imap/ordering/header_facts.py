"""Facts of a header for SORT and THREAD. Each is found where it is asked for, so a SORT by date parses dates only."""

from __future__ import annotations

from functools import cached_property
from itertools import islice

from protocol.units import KIB
from replicator.imap.ordering.base_subject import BaseSubject, base_subject
from replicator.imap.rendering.address_lists import parse_addresses
from replicator.imap.rendering.casemap import casemap
from replicator.imap.rendering.decoding import sent_ms, value_text
from replicator.imap.rendering.thread_id import message_ids
from replicator.mime.header import Header

MAX_COMPARED = 500
"""Limit of characters by which messages are compared: the texts of a whole mailbox are in memory while it is sorted."""

_LOOKED_AT = 4 * KIB  # octets of a value
_REFERENCES_LOOKED_AT = 16 * KIB  # octets, the last ones, in which the parent is: two hundred messages


class HeaderFacts:
    """Facts of one header. Texts are in the form in which they are compared (`casemap`)."""

    def __init__(self, header: Header) -> None:
        self._header = header

    @property
    def size_bytes(self) -> int:
        """Size of the header: what finding its facts costs."""
        return self._header.end - self._header.start

    @cached_property
    def sent_ms(self) -> int | None:
        """The time in the Date field, in UTC (RFC 5256 section 2.2); None if there is no valid date."""
        return sent_ms(self._header)

    @cached_property
    def subject(self) -> BaseSubject:
        """The base subject."""
        subject = base_subject(value_text((self._header.value(b"subject") or b"")[:_LOOKED_AT]))
        return BaseSubject(casemap(subject.text)[:MAX_COMPARED], subject.is_reply)

    @cached_property
    def message_id(self) -> bytes | None:
        """The message's own id (RFC 5256 section 3, REFERENCES)."""
        return next(message_ids(self._value(b"message-id")), None)

    @property
    def references(self) -> list[bytes]:
        """The ids of the messages before this one in its thread, the parent last (RFC 5256 section 3, REFERENCES)."""
        if found := [*message_ids((self._header.value(b"references") or b"")[-_REFERENCES_LOOKED_AT:])]:
            return found
        return [*islice(message_ids(self._value(b"in-reply-to")), 1)]

    def mailbox(self, name: bytes) -> str:
        """Return the local part of the first address in the field of this name (RFC 5256 section 3)."""
        addresses = parse_addresses(self._value(name), most=1)
        return _compared(addresses[0].mailbox or b"") if addresses else ""

    def display(self, name: bytes) -> str:
        """Return the name of the first address in the field of this name, else the address (RFC 5957 section 3)."""
        addresses = parse_addresses(self._value(name), most=1)
        if not addresses:
            return ""
        first = addresses[0]
        if first.name:
            return _compared(first.name)
        local, host = first.mailbox or b"", first.host or b""
        return _compared(local + b"@" + host if host else local)

    def _value(self, name: bytes) -> bytes:
        return (self._header.value(name) or b"")[:_LOOKED_AT]


NO_FACTS = HeaderFacts(Header(b"", 0, 0, 0))
"""Facts of a header that cannot be read."""


def _compared(text: bytes) -> str:
    return casemap(value_text(text))[:MAX_COMPARED]
