"""Summaries: FETCH responses of items that rows of the view and outlines tell, of many messages at once.

Clients ask for these of whole mailboxes, so a response is one format string, made once for the command, and values come
as columns: one sequence for each item, with a value for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TypeAlias

from replicator.imap.rendering import outline
from replicator.imap.rendering.fetch_answers import date_time, fetch_value
from replicator.imap.wire.fetch_items import Attribute, FetchItem, needs_body
from replicator.imap.wire.responses import printed, without_body
from replicator.mail.view import Message

Told: TypeAlias = Sequence[bytes | None]
"""Values of one item that outlines tell, by message; None where the body must be read."""

Flags: TypeAlias = Callable[[Sequence[Message]], Iterable[bytes]]

_Column: TypeAlias = Callable[[Sequence[Message]], Iterable[object]]


class Summaries:
    """Formatter of responses with these items, each under the name that responses give it (RFC 3501, 7.4.2).

    `outlined` are the items whose values come from outlines, `names_bytes` the octets of a response besides values.
    `flags` formats the flags of messages as the session shows them.
    """

    def __init__(self, items: Sequence[tuple[bytes, FetchItem]], flags: Flags) -> None:
        forms = b" ".join(name.replace(b"%", b"%%") + b" " + _form(item) for name, item in items)
        self._template = b"* %d FETCH (" + forms + b")\r\n"
        self.names_bytes = len(self._template)
        self._of_rows = [None if outline.may_tell(item) else _column(item, flags) for _, item in items]
        self.outlined = [item for _, item in items if outline.may_tell(item)]

    def responses(self, numbers: Sequence[int], messages: Sequence[Message], told: Iterable[Told] = ()) -> bytes:
        """Return the responses for messages under these numbers. `told` are the columns of `outlined`, without None."""
        of_outlines: Iterator[Told] = iter(told)
        columns = [next(of_outlines) if column is None else column(messages) for column in self._of_rows]
        return b"".join([self._template % row for row in zip(numbers, *columns, strict=True)])


def is_summary(item: FetchItem) -> bool:
    """Return True if rows tell the item's value, or outlines of most messages do."""
    return outline.may_tell(item) or not needs_body(item)


def _form(item: FetchItem) -> bytes:
    match item:
        case Attribute.INTERNALDATE:
            return b'"%b"'
        case Attribute.MODSEQ:
            return b"(%d)"
        case Attribute.RFC822_SIZE | Attribute.UID:
            return b"%d"
    return b"%b"


def _column(item: FetchItem, flags: Flags) -> _Column:
    """Return the function that takes an item's values from rows."""
    match item:
        case Attribute.FLAGS:
            return flags
        case Attribute.INTERNALDATE:
            return lambda messages: [date_time(message.received_ms) for message in messages]
        case Attribute.SAVEDATE:
            return lambda messages: [_save_date(message) for message in messages]
        case Attribute.MODSEQ:
            return lambda messages: map(attrgetter("modseq"), messages)
        case Attribute.RFC822_SIZE:
            return lambda messages: map(attrgetter("size_bytes"), messages)
        case Attribute.UID:
            return lambda messages: map(attrgetter("uid"), messages)
    return lambda messages: [_value(item, message) for message in messages]


def _save_date(message: Message) -> bytes:
    return b"NIL" if message.saved_ms is None else b'"%b"' % date_time(message.saved_ms)


def _value(item: FetchItem, message: Message) -> bytes:
    return b"".join(without_body(printed(fetch_value(item, message, None)).chunks))
