"""THREADID (RFC 8474 section 5.2): the name of a message's conversation, told by the message alone.

A conversation has the name of its first message: the first id in References, or else in In-Reply-To, or else the
message's own id. So the name never changes, whatever mail comes or goes, and is the same in all folders and at all
nodes. The price is that a reply that names a later message only begins a conversation of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b

from replicator.mail.view import Message
from replicator.mime.header import MAX_FIELDS, Header

_NAMING = (b"references", b"in-reply-to", b"message-id")
_LOOKED_AT = 4096  # octets of a field, in which its first id is
_HASH_BYTES = 16

# RFC 5322 section 3.6.4, with ids of other forms that senders use.
_MESSAGE_ID = re.compile(rb"<([^<>\s]{1,1000})>")
_QUOTING = b'"\\'  # does not count: ids are compared as if none of their parts were quoted


def message_ids(value: bytes) -> Iterator[bytes]:
    """Yield the message ids in a field's value."""
    return (found[1].translate(None, _QUOTING) for found in _MESSAGE_ID.finditer(value))


def thread_id(message: Message, header: Header) -> str:
    """Return the THREADID. A message whose header has no id is a conversation of its own, together with its copies."""
    return named_thread(header) or lone_thread(message)


def named_thread(header: Header) -> str | None:
    """Return the THREADID that the header tells; None if the header has no id.

    It is a hash, because ids may be long and hold characters that a THREADID cannot. The limit of the fields that can
    be found by name does not count, since nodes may have different ones.
    """
    shown = header.showing(MAX_FIELDS)
    for name in _NAMING:
        if (first := next(message_ids((shown.value(name) or b"")[:_LOOKED_AT]), None)) is not None:
            return f"T{blake2b(first, digest_size=_HASH_BYTES).hexdigest()}"
    return None


def lone_thread(message: Message) -> str:
    """Return the THREADID of a message whose header has no id."""
    return f"T{message.guid.hex()}"
