"""Line numbers of the keys of a TOML file.

The standard library parses TOML but drops positions. This module finds them in a text that has been parsed
successfully: it only needs to know where keys, headers, strings and brackets begin and end (TOML 1.0).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

KeyPath = tuple[str | int, ...]
"""Position of a value in the parsed file: `("peer", 1, "id")`."""

LEXEME = re.compile(
    r'''
      """(?:\\.|[^\\])*?"{3,5}    # strings of several lines may end in one or two quotes of their own
    | \'\'\'.*?\'{3,5}
    | "(?:\\.|[^"\\\n])*"
    | '[^'\n]*'
    | \#[^\n]*
    | \n
    | \[\[ | \]\] | [\[\]{}=.,]
    | [^\s"'#\[\]{}=.,]+
    ''',
    re.VERBOSE | re.DOTALL,
)


class Span(NamedTuple):
    """The first and the last line, from 1, of a header, or of a key with its value."""

    first: int
    last: int


def key_lines(text: str) -> Mapping[KeyPath, int]:
    """Return the line, from 1, of every key and header. Keys in inline tables and arrays are on their key's line."""
    return {path: span.first for path, span in key_spans(text).items()}


def key_spans(text: str) -> Mapping[KeyPath, Span]:
    """Return the lines of every key and header. Those of a table are the lines of its first header or key."""
    spans: dict[KeyPath, Span] = {}
    header: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    for span, lexemes in _statements(text):
        if lexemes[0] == "[[":
            array = _resolved(_names(lexemes[1 : lexemes.index("]]")]), counts)
            counts[array] = counts.get(array, -1) + 1
            header = (*array, counts[array])
            spans.setdefault(array, span)
            spans[header] = span
        elif lexemes[0] == "[":
            header = _resolved(_names(lexemes[1 : lexemes.index("]")]), counts)
            spans.setdefault(header, span)
        else:
            key = _names(lexemes[: lexemes.index("=")])
            for length in range(1, len(key) + 1):
                spans.setdefault((*header, *key[:length]), span)
    return spans


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """Return the line of the key, or of its nearest enclosing element; 1 if there is none."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def _statements(text: str) -> Iterator[tuple[Span, list[str]]]:
    """Yield the lines and lexemes of each header, and of each key with its value."""
    line, start, depth = 1, 1, 0
    lexemes: list[str] = []
    for match in LEXEME.finditer(text):
        lexeme = match[0]
        if lexeme == "\n" and depth == 0 and lexemes:
            yield Span(start, line), lexemes
            lexemes = []
        elif lexeme != "\n" and not lexeme.startswith("#"):
            start = start if lexemes else line
            lexemes.append(lexeme)
            # In a value, `]]` closes two arrays and `[[` opens two.
            depth += lexeme.count("[") - lexeme.count("]") if lexeme[0] in "[]" else 0
        line += lexeme.count("\n")
    if lexemes:
        yield Span(start, line), lexemes


def _names(lexemes: Sequence[str]) -> tuple[str, ...]:
    """Return the parts of a dotted key."""
    return tuple(_unquoted(lexeme) for lexeme in lexemes if lexeme != ".")


def _unquoted(lexeme: str) -> str:
    if lexeme[0] not in "\"'":
        return lexeme
    name: str = tomllib.loads(f"name = {lexeme}")["name"]
    return name


def _resolved(names: tuple[str, ...], counts: Mapping[KeyPath, int]) -> KeyPath:
    """Return a header's path. The name of an array of tables stands for its last table (TOML 1.0 "array of tables")."""
    path: KeyPath = ()
    for name in names[:-1]:
        path = (*path, name)
        if path in counts:
            path = (*path, counts[path])
    return (*path, names[-1])
