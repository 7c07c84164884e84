"""ENVELOPE of a header (RFC 3501 section 7.4.2). Values stay undecoded: the client decodes encoded words."""

from __future__ import annotations

from replicator.imap.text.address_lists import parse_addresses
from replicator.imap.wire.fetch_items import Adjacent, Value
from replicator.mime.header import Header


def envelope(header: Header) -> Value:
    """Return (date subject from sender reply-to to cc bcc in-reply-to message-id)."""
    sender = _addresses(header, b"from")
    return (
        header.value(b"date"),
        header.value(b"subject"),
        sender,
        _addresses(header, b"sender") or sender,
        _addresses(header, b"reply-to") or sender,
        _addresses(header, b"to"),
        _addresses(header, b"cc"),
        _addresses(header, b"bcc"),
        header.value(b"in-reply-to"),
        header.value(b"message-id"),
    )


def _addresses(header: Header, name: bytes) -> Value:
    """Return the addresses, or NIL if the field is absent or holds none."""
    addresses = parse_addresses(header.value(name) or b"")
    return (Adjacent(tuple(tuple(address) for address in addresses)),) if addresses else None
