"""FETCH responses of items that a message's row in the view tells: flags, numbers and dates, without the body.

Clients ask for these of whole mailboxes, so a response is one format string, made once for the command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replicator.imap.rendering.fetch_answers import date_time, fetch_value
from replicator.imap.wire.fetch_items import Attribute, FetchItem
from replicator.imap.wire.responses import printed, without_body
from replicator.view import Message

RowAnswer = Callable[[int, Message], bytes]
"""A FETCH response of a message under its sequence number."""

_Get = Callable[[Message], object]


def row_answer(items: Sequence[tuple[bytes, FetchItem]], flags: Callable[[Message], bytes]) -> RowAnswer:
    """Return a formatter of these items, each with the name that responses give it (RFC 3501 section 7.4.2).

    None of the items needs the body. `flags` formats a message's flags as the session shows them.
    """
    columns = [_column(item, flags) for _, item in items]
    values = b" ".join(name + b" " + form for (name, _), (form, _) in zip(items, columns, strict=True))
    template = b"* %d FETCH (" + values + b")\r\n"
    gets = [get for _, get in columns]

    def answer(number: int, message: Message) -> bytes:
        return template % (number, *[get(message) for get in gets])

    return answer


def _column(item: FetchItem, flags: Callable[[Message], bytes]) -> tuple[bytes, _Get]:
    """Return the form of an item's value, and the function that takes the value from a row."""
    match item:
        case Attribute.FLAGS:
            return b"%b", flags
        case Attribute.INTERNALDATE:
            return b'"%b"', lambda message: date_time(message.received_ms)
        case Attribute.MODSEQ:
            return b"(%d)", lambda message: message.modseq
        case Attribute.RFC822_SIZE:
            return b"%d", lambda message: message.size_bytes
        case Attribute.SAVEDATE:
            return b"%b", _save_date
        case Attribute.UID:
            return b"%d", lambda message: message.uid
    return b"%b", lambda message: b"".join(without_body(printed(fetch_value(item, message, None)).chunks))


def _save_date(message: Message) -> bytes:
    return b"NIL" if message.saved_ms is None else b'"%b"' % date_time(message.saved_ms)
