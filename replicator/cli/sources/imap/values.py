"""Values in the answers of an IMAP server (RFC 9051 section 4): numbers and atoms as text, strings, lists, NIL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from replicator.imap.wire.commands.builders.text_values import MeaninglessError, date_time_ms

Value: TypeAlias = "bytes | list[Value] | None"
"""A string, a number or an atom; NIL; or a list."""

Answer: TypeAlias = "bytes | tuple[bytes, bytes]"
"""A part of an answer, as imaplib has it: a line, or the beginning of a line and the literal that follows."""

DEPTH_MAX: Final = 20
"""Lists within lists: what is asked for here has three."""

_TOKEN: Final = re.compile(rb' *(?:([()])|"((?:[^"\\]|\\.)*)"|([^ ()"]+))')
_OPEN, _CLOSE = "(", ")"
_ESCAPED: Final = re.compile(rb"\\(.)")
_LITERAL: Final = re.compile(rb" ?~?\{\d+\+?\}$")
_DATE: Final = re.compile(r" ?\d{1,2}-[A-Za-z]{3}-\d{4} \d\d:\d\d:\d\d [+-]\d{4}")


class SenselessAnswerError(Exception):
    """An answer that is not IMAP. The text quotes its beginning."""


def values(parts: Sequence[Answer]) -> list[Value]:
    """Return the values of one answer, which may have literals. Raises SenselessAnswerError."""
    open_lists: list[list[Value]] = [[]]
    for value in _tokens(parts):
        if value == _OPEN:
            open_lists.append([])
            if len(open_lists) > DEPTH_MAX:
                raise SenselessAnswerError(_quoted(parts))
        elif value == _CLOSE:
            closed = open_lists.pop()
            if not open_lists:
                raise SenselessAnswerError(_quoted(parts))
            open_lists[-1].append(closed)
        else:
            assert not isinstance(value, str)
            open_lists[-1].append(value)
    if len(open_lists) != 1:
        raise SenselessAnswerError(_quoted(parts))
    return open_lists[0]


def answers(data: Sequence[Answer | None]) -> Iterator[list[Value]]:
    """Yield the values of each answer in what imaplib returns for a command. Raises SenselessAnswerError."""
    parts: list[Answer] = []
    for part in data:
        if part is None:
            continue
        parts.append(part)
        if isinstance(part, bytes):  # a literal is followed by more of its answer
            yield values(parts)
            parts = []


def pairs(found: Value) -> dict[bytes, Value]:
    """Return a list `name value name value` by names, in capitals. Raises SenselessAnswerError."""
    if not isinstance(found, list) or len(found) % 2:
        raise SenselessAnswerError(repr(found)[:100])
    return {text(name).upper(): value for name, value in zip(found[::2], found[1::2], strict=True)}


def text(value: Value) -> bytes:
    """Return a value that is to be text. Raises SenselessAnswerError."""
    if not isinstance(value, bytes):
        raise SenselessAnswerError(repr(value)[:100])
    return value


def told_number(told: Mapping[bytes, Value], name: bytes, highest: int) -> int:
    """Return a number that is to be among what is told. Raises SenselessAnswerError."""
    if name not in told:
        raise SenselessAnswerError(f"no {name.decode()}")
    return number(told[name], highest)


def number(value: Value, highest: int) -> int:
    """Return a value that is to be a number from 0 on. Raises SenselessAnswerError."""
    digits = text(value)
    if not digits.isdigit() or len(digits) > len(str(highest)) or int(digits) > highest:
        raise SenselessAnswerError(repr(value)[:100])
    return int(digits)


def words(value: Value) -> list[str]:
    """Return a list of atoms. Raises SenselessAnswerError."""
    if not isinstance(value, list):
        raise SenselessAnswerError(repr(value)[:100])
    return [text(one).decode("utf-8", "replace") for one in value]


def time_ms(value: Value) -> int | None:
    """Return an INTERNALDATE in milliseconds since the epoch; None for one that no calendar has, or before that."""
    date = text(value).decode("ascii", "replace")
    if not _DATE.fullmatch(date):
        return None
    try:
        return max(0, date_time_ms(date))
    except (MeaninglessError, ValueError):
        return None


def _tokens(parts: Sequence[Answer]) -> Iterator[str | bytes | None]:
    for part in parts:
        line, literal = part if isinstance(part, tuple) else (part, None)
        at, line = 0, _LITERAL.sub(b"", line) if literal is not None else line.rstrip(b" ")
        while at < len(line):
            found = _TOKEN.match(line, at)
            if found is None:
                raise SenselessAnswerError(_quoted(parts))
            at = found.end()
            bracket, quoted, atom = found.groups()
            if bracket is not None:
                yield bracket.decode()
            elif quoted is not None:
                yield _ESCAPED.sub(rb"\1", quoted)
            else:
                yield None if atom.upper() == b"NIL" else atom
        if literal is not None:
            yield literal


def _quoted(parts: Sequence[Answer]) -> str:
    first = parts[0]
    return repr(first if isinstance(first, bytes) else first[0])[:100]
