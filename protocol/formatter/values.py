"""Format single fields as text, each checked against the grammar's terminal and the parser's limits.

All functions raise ValueError for a value that cannot be expressed. The other modules of this package extend `form`,
one class at a time.
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
"""Characters of a quoted string; longer texts go as literals, so that lines stay readable and short."""
UID_SET_TEXT_MAX = 4096
"""Characters of a set of UIDs on a line; longer sets go as literals."""


@singledispatch
def form(value: object) -> list[Field]:
    """Return the verb and the fields of a command; for a reply, the words after OK or NO."""
    raise ValueError(f"{type(value).__name__} is neither a command nor a reply")


def match(name: str, text: str) -> str:
    """Return `text`. Raises ValueError if it is not this terminal of the grammar."""
    if terminal(name).fullmatch(text) is None:
        raise ValueError(f"{text[:80]!r} is not a {name} of the protocol: {terminal(name).pattern}")
    return text


def number(value: int, maximum: int = NUMBER_MAX, minimum: int = 0) -> str:
    """Format a decimal number of up to 63 bits."""
    if not minimum <= value <= maximum:
        raise ValueError(f"{value} is not between {minimum} and {maximum}")
    return str(value)


def number_32(value: int) -> str:
    """Format a decimal number of up to 32 bits."""
    return number(value, NUMBER_32_MAX)


def uid(value: int) -> str:
    """Format a UID: decimal, up to 32 bits, from 1."""
    return number(value, UID_MAX, 1)


def date_ms(value: int) -> str:
    """Format milliseconds since the epoch in decimal; negative before it."""
    return number(value, NUMBER_MAX, -NUMBER_MAX)


def hex_id(value: bytes) -> str:
    """Format a mailbox id, a GUID or a sum of hashes: 16 bytes."""
    return match("ID", value.hex())


def content_hash(value: bytes) -> str:
    """Format a SHA-256: 32 bytes."""
    return match("CONTENT_HASH", value.hex())


def digest(value: bytes) -> str:
    """Format a digest of up to 64 bytes, or NIL for none."""
    return match("DIGEST", value.hex()) if value else "NIL"


def prefix(value: str) -> str:
    """Format a range of keys by the digits with which they begin."""
    return match("RANGE", value or '""')


def sid(value: str) -> str:
    """Format the SID of a node."""
    return match("SID", value)


def atom(value: str) -> str:
    """Format a protocol word that programs read."""
    return match("ATOM", value)


def flag(value: str) -> str:
    """Format an IMAP flag."""
    return match("FLAG", value)


def dot(value: Dot) -> str:
    """Format the name of an entry."""
    return f"{match('ORIGIN', value.origin)}:{number(value.seq)}"


def maybe_dot(value: Dot | None) -> str:
    """Format the name of an entry, or NIL for none."""
    return "NIL" if value is None else dot(value)


def list_of(member: Callable[[T], str], members: Iterable[T]) -> str:
    """Return a parenthesised list whose members `member` formats."""
    texts = [member(value) for value in members]
    if len(texts) > LIST_MAX:
        raise ValueError(f"a list of {len(texts)} members; the limit is {LIST_MAX}")
    return f"({' '.join(texts)})"


def string(text: str) -> Field:
    """Return the shortest of the three forms that can hold the text.

    Raises UnicodeEncodeError for lone surrogates, which have no UTF-8.
    """
    if len(text) <= QUOTED_MAX:
        if terminal("ASTRING_ATOM").fullmatch(text):
            return text
        if text.isascii() and text.isprintable():
            escaped = text.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
    literal = text.encode()
    if len(literal) > TEXT_MAX:
        raise ValueError(f"a text of {len(literal)} bytes, {text[:24]!a}; the limit is {TEXT_MAX}")
    return literal


def uid_set(uids: UidSet) -> Field:
    """Format a set of UIDs, or NIL for none; a long set becomes a literal."""
    if not uids:
        return "NIL"
    if uids.ranges[0][0] < 1 or uids.ranges[-1][1] > UID_MAX or UidSet.of_ranges(uids.ranges) != uids:
        raise ValueError(f"{str(uids)[:80]} is not an ascending set of UIDs without overlaps")
    text = str(uids)
    if len(text) > UID_SET_MAX:
        raise ValueError(f"a set of {len(uids.ranges)} UID ranges is longer than {UID_SET_MAX} bytes: split it")
    return text if len(text) <= UID_SET_TEXT_MAX else text.encode("ascii")


def option(word: str, field: Callable[[T], Field], value: T | None) -> list[Field]:
    """Return an optional field behind its word, or nothing if the value is None."""
    return [] if value is None else [word, field(value)]
