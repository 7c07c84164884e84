"""Values in lines of dsync: escapes, records of them, and lists within one value.

A record is values with tabs between them; absent ones at its end are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

TAB = "\t"
ABSENT = "\x02"
"""An absent value. A value that begins with this character has it twice."""

_CODES = {"\0": "0", "\1": "1", "\t": "t", "\r": "r", "\n": "n"}
_CHARACTERS = {code: character for character, code in _CODES.items()}
_TO_ESCAPE = re.compile("[" + "".join(_CODES) + "]")
_ESCAPED = re.compile("\1(.?)", re.DOTALL)


def escape(text: str) -> str:
    """Return a text without NUL, SOH, tab, CR and LF, which become SOH and a letter."""
    if text.isprintable():  # nearly always, and a look is quick
        return text
    return _TO_ESCAPE.sub(lambda found: "\1" + _CODES[found[0]], text)


def unescape(text: str) -> str:
    """Return the text that `escape` was given. Another letter after SOH stands for itself."""
    return _ESCAPED.sub(lambda found: _CHARACTERS.get(found[1], found[1]), text) if "\1" in text else text


def encode_record(values: Iterable[str | None]) -> str:
    """Return a record of these values; None is absent."""
    encoded = [ABSENT if value is None else _guarded(value) for value in values]
    while encoded and encoded[-1] == ABSENT:
        encoded.pop()
    return TAB.join(encoded)


def decode_record(text: str) -> list[str | None]:
    """Return the values of a record; an empty record has none."""
    return [_decoded(value) for value in text.split(TAB)] if text else []


def encode_list(parts: Iterable[str]) -> str:
    """Return one value that has these parts."""
    return TAB.join(map(escape, parts))


def decode_list(value: str) -> Sequence[str]:
    """Return the parts of a value; an empty value has none."""
    return tuple(map(unescape, value.split(TAB))) if value else ()


def _guarded(value: str) -> str:
    return ABSENT + escape(value) if value.startswith(ABSENT) else escape(value)


def _decoded(value: str) -> str | None:
    if value.startswith(ABSENT):
        return None if value == ABSENT else unescape(value[1:])
    return unescape(value)
