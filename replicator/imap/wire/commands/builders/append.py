"""APPEND, with several messages (RFC 3502), of parts (RFC 4469), in UTF-8 (RFC 6855), or begun only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lark import Token, v_args

from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.commands.builders.text_values import date_time_ms
from replicator.imap.wire.commands.builders.values import ValueBuilder, joined

_MessageParts: TypeAlias = tuple[bytes | c.StoredPart, ...]


@dataclass(frozen=True, slots=True)
class _BegunMessage:
    """A message of which more is to come."""

    message: c.AppendedMessage
    within: c.Within


@v_args(inline=True)
class AppendBuilder(ValueBuilder):
    """Builds APPEND, all of it or as much as has arrived."""

    def append(
        self, mailbox: str, messages: tuple[c.AppendedMessage, ...] | None, begun: _BegunMessage | None = None
    ) -> c.Command:
        if begun is None:
            return c.Append(mailbox, messages or ())
        return c.Append(mailbox, (*(messages or ()), begun.message), begun.within)

    def append_messages(self, *messages: c.AppendedMessage | tuple[c.AppendedMessage, ...]) -> tuple[object, ...]:
        return joined(messages)

    def append_message(
        self, flags: tuple[str, ...] | None, received: Token | None, parts: _MessageParts
    ) -> c.AppendedMessage:
        return c.AppendedMessage(flags or (), None if received is None else date_time_ms(received), parts)

    def append_data(self, data: bytes | _MessageParts) -> _MessageParts:
        return (data,) if isinstance(data, bytes) else data

    def begun_message(
        self, flags: tuple[str, ...] | None, received: Token | None, begun: tuple[_MessageParts, c.Within]
    ) -> _BegunMessage:
        parts, within = begun
        return _BegunMessage(self.append_message(flags, received, parts), within)

    def begun_parts(self, parts: _MessageParts) -> tuple[_MessageParts, c.Within]:
        return parts, c.Within.CATENATE

    def begun_parts_and_utf8(self, parts: _MessageParts | None, text: bytes) -> tuple[_MessageParts, c.Within]:
        return (*(parts or ()), text), c.Within.CATENATE_UTF8

    def begun_utf8(self, text: bytes) -> tuple[_MessageParts, c.Within]:
        return (text,), c.Within.UTF8

    def cat_parts(self, *parts: object) -> tuple[object, ...]:
        return joined(parts)

    def stored_part(self, url: bytes) -> c.StoredPart:
        return c.StoredPart(url)

    def message_text(self, _marker: Token) -> bytes:
        return next(self.literals)

    begun_utf8_text = message_text

    def utf8_text(self, text: bytes) -> bytes:
        return text
