"""The fields of commands and replies as text, each checked against the grammar's terminal and the parser's limits.

All functions raise ValueError for what cannot be said. `form` is what the other modules of this package extend, one
class at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import singledispatch
from typing import TypeVar

from protocol.parser import LIST_MAX, NUMBER_32_MAX, NUMBER_MAX, TEXT_MAX, UID_SET_MAX, terminal
from protocol.values import UID_MAX, Dot, UidSet

T = TypeVar("T")

Field = str | bytes
"""One field of a command: `str` is its text, `bytes` travel as a literal."""

QUOTED_MAX = 1000
"""Characters; longer texts go as literals, so that lines stay readable and short."""
UID_SET_TEXT_MAX = 4096
"""Same, for sets of UIDs."""


@singledispatch
def form(value: object) -> list[Field]:
    """The verb and the fields of a command; for a reply, what follows OK or NO."""
    raise ValueError(f"{type(value).__name__} is neither a command nor a reply")


def match(name: str, text: str) -> str:
    """The text, which must be this terminal of the grammar."""
    if terminal(name).fullmatch(text) is None:
        raise ValueError(f"{text[:80]!r} is not a {name} of the protocol: {terminal(name).pattern}")
    return text


def number(value: int, maximum: int = NUMBER_MAX, minimum: int = 0) -> str:
    """Decimal, of 63 bits."""
    if not minimum <= value <= maximum:
        raise ValueError(f"{value} is not within {minimum} and {maximum}")
    return str(value)


def number_32(value: int) -> str:
    """Decimal, of 32 bits."""
    return number(value, NUMBER_32_MAX)


def uid(value: int) -> str:
    """Decimal, of 32 bits, from 1."""
    return number(value, UID_MAX, 1)


def date_ms(value: int) -> str:
    """Decimal, maybe before the epoch."""
    return number(value, NUMBER_MAX, -NUMBER_MAX)


def hex_id(value: bytes) -> str:
    """A mailbox id, a GUID or a sum of hashes: 16 bytes."""
    return match("ID", value.hex())


def content_hash(value: bytes) -> str:
    """A SHA-256: 32 bytes."""
    return match("CONTENT_HASH", value.hex())


def digest(value: bytes) -> str:
    """A digest of up to 64 bytes, or none."""
    return match("DIGEST", value.hex()) if value else "NIL"


def prefix(value: str) -> str:
    """A range of keys, by the digits that they begin with."""
    return match("RANGE", value or '""')


def sid(value: str) -> str:
    """A node."""
    return match("SID", value)


def atom(value: str) -> str:
    """A word of programs."""
    return match("ATOM", value)


def flag(value: str) -> str:
    """An IMAP flag."""
    return match("FLAG", value)


def dot(value: Dot) -> str:
    """The name of an entry."""
    return f"{match('ORIGIN', value.origin)}:{number(value.seq)}"


def maybe_dot(value: Dot | None) -> str:
    """The name of an entry, or none."""
    return "NIL" if value is None else dot(value)


def list_of(member: Callable[[T], str], members: Iterable[T]) -> str:
    """A parenthesised list, each member as that function gives it."""
    texts = [member(value) for value in members]
    if len(texts) > LIST_MAX:
        raise ValueError(f"a list of {len(texts)} members: at most {LIST_MAX} are taken")
    return f"({' '.join(texts)})"


def string(text: str) -> Field:
    """The shortest of the three forms that can hold the text. Lone surrogates have no UTF-8: UnicodeEncodeError."""
    if len(text) <= QUOTED_MAX:
        if terminal("ASTRING_ATOM").fullmatch(text):
            return text
        if text.isascii() and text.isprintable():
            escaped = text.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
    literal = text.encode()
    if len(literal) > TEXT_MAX:
        raise ValueError(f"a text of {len(literal)} bytes, {text[:24]!a}: at most {TEXT_MAX} are taken")
    return literal


def uid_set(uids: UidSet) -> Field:
    """A set of UIDs, or none; a long one as a literal."""
    if not uids:
        return "NIL"
    if uids.ranges[0][0] < 1 or uids.ranges[-1][1] > UID_MAX or UidSet.of_ranges(uids.ranges) != uids:
        raise ValueError(f"{str(uids)[:80]} is not an ascending set of UIDs without overlaps")
    text = str(uids)
    if len(text) > UID_SET_MAX:
        raise ValueError(f"a set of {len(uids.ranges)} UID ranges is longer than {UID_SET_MAX} bytes: split it")
    return text if len(text) <= UID_SET_TEXT_MAX else text.encode("ascii")


def option(word: str, field: Callable[[T], Field], value: T | None) -> list[Field]:
    """An optional field behind its word; nothing if there is none."""
    return [] if value is None else [word, field(value)]
