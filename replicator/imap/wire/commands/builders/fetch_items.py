"""FETCH items (RFC 3501 section 9, RFC 3516 section 7, RFC 8970 section 6), which NOTIFY and UPDATE name, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from lark import Token, v_args

from replicator.imap.wire.commands.builders.text_values import MeaninglessError, field_name, octet_count
from replicator.imap.wire.commands.builders.values import ValueBuilder
from replicator.imap.wire.fetch_items import (
    ALL,
    FAST,
    FULL,
    Attribute,
    BinarySection,
    BodySection,
    FetchItem,
    Partial,
    SectionText,
)

_MACROS = {"ALL": ALL, "FAST": FAST, "FULL": FULL}

Items: TypeAlias = tuple[FetchItem, ...]
"""FETCH items that are wanted of new messages."""


@v_args(inline=True)
class FetchItemBuilder(ValueBuilder):
    """Builds what FETCH asks for."""

    def fetch_items(self, *items: FetchItem) -> tuple[FetchItem, ...]:
        return items

    def new_message_items(self, *items: FetchItem) -> Items:
        return items

    def fetch_macro(self, macro: Token) -> tuple[FetchItem, ...]:
        return _MACROS[macro.upper()]

    def attribute(self, name: Token) -> FetchItem:
        return Attribute(name.upper())

    def lazy_preview(self, _item: Token) -> FetchItem:
        return Attribute.PREVIEW_LAZY

    def body_section(
        self, opening: Token, section: BodySection, origin: Token | None, length: Token | None
    ) -> FetchItem:
        return replace(section, partial=_partial(origin, length), peek="." in opening)

    def binary_section(
        self, opening: Token, part: Token | None, origin: Token | None, length: Token | None
    ) -> FetchItem:
        return BinarySection(_part(part) if part else (), _partial(origin, length), peek="." in opening)

    def binary_size(self, _opening: Token, part: Token | None) -> FetchItem:
        return BinarySection(_part(part) if part else (), peek=True, size_only=True)

    def section_whole(self, part: Token | None) -> BodySection:
        return BodySection(() if part is None else _part(part))

    def section_of_message(self, text: BodySection) -> BodySection:
        return text

    def section_of_part(self, part: Token, text: BodySection) -> BodySection:
        return replace(text, part=_part(part))

    def section_mime(self, part: Token, _mime: Token) -> BodySection:
        return BodySection(_part(part), SectionText.MIME)

    def section_text(self, name: Token, *fields: bytes) -> BodySection:
        return BodySection(text=SectionText(name.upper()), fields=tuple(field_name(field) for field in fields))


def items_after(owner: object, given: Sequence[object]) -> Items | None:
    """Return the FETCH items behind `owner`, if there are any."""
    items = None
    for before, one in zip((None, *given), given, strict=False):
        if isinstance(one, tuple):
            if before != owner or items is not None:
                raise MeaninglessError("FETCH items stand once, behind MessageNew or UPDATE")
            items = one
    return items


def _partial(origin: str | None, length: str | None) -> Partial | None:
    return None if origin is None or length is None else Partial(octet_count(origin), octet_count(length))


def _part(numbers: str) -> tuple[int, ...]:
    return tuple(int(number) for number in numbers.split("."))
