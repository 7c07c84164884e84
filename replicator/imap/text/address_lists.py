"""Address lists in the form that ENVELOPE needs (RFC 5322 section 3.4, RFC 3501 section 7.4.2).

`email.utils.getaddresses` drops groups, and the header registry of that package takes quadratic time and recurses, so
this module parses addresses itself, in one pass. It never raises; text that is no address becomes a mailbox without a
host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from protocol.units import KIB

MAX_ADDRESSES = 1000
"""Limit of addresses parsed in a field: an answer holds them in memory, each at up to fifty times its size."""

MAX_TEXT = 256 * KIB
"""Limit of octets parsed in a field: ample for each address, and a tenth of a second in the worst case."""

_TOKEN = re.compile(
    rb"""
      \s++
    | "(?P<quoted>(?:[^"\\]|\\.)*+)"?+
    | (?P<literal>\[[^\]]*+\]?+)
    | (?P<special>[()<>,;:@])
    | (?P<atom>[^\s"\[()<>,;:@]++)
    """,
    re.DOTALL | re.VERBOSE,
)
_IN_COMMENT = re.compile(rb"\\.|[()]|[^()\\]++|\\", re.DOTALL)
_QUOTED_PAIR = re.compile(rb"\\(.)", re.DOTALL)


class Address(NamedTuple):
    """An address, unquoted. `host` None: the start of a group named `mailbox`, or its end if that is None too."""

    name: bytes | None
    route: bytes | None
    mailbox: bytes | None
    host: bytes | None


GROUP_END = Address(None, None, None, None)


def parse_addresses(text: bytes, *, most: int = MAX_ADDRESSES) -> list[Address]:
    """Return the addresses of an unfolded header value, with group marks, up to so many."""
    parser = _Parser()
    for kind, token in _tokens(text[:MAX_TEXT]):
        parser.take(kind, token)
        if len(parser.addresses) >= most:
            break
    parser.end_group()
    return parser.addresses


class _Parser:
    """Collects words until a special character tells their meaning. None among the words stands for an @."""

    def __init__(self) -> None:
        self.addresses: list[Address] = []
        self._in_group = False
        self._begin_address()

    def _begin_address(self) -> None:
        self._words: list[bytes | None] = []
        self._phrase: list[bytes | None] | None = None  # the words before <
        self._route: list[bytes | None] = []
        self._closed = False  # > has been seen
        self._comment: bytes | None = None

    def take(self, kind: str, token: bytes) -> None:
        if kind == "comment":
            self._comment = token or None
        elif kind == "special":
            self._special(token)
        elif not self._closed:
            self._words.append(token)

    def _special(self, sign: bytes) -> None:
        if sign == b"@":
            self._words.append(None)
        elif sign == b"<":
            self._phrase, self._words = self._words, []
        elif sign == b">":
            self._closed = self._phrase is not None
        elif sign == b",":
            self._comma()
        elif sign == b":":
            self._colon()
        elif sign == b";":
            self.end_group()

    def _comma(self) -> None:
        if self._in_route():
            self._route += [*self._words, b","]
            self._words = []
        else:
            self._end_address()

    def _colon(self) -> None:
        if self._in_route():
            self._route += self._words
            self._words = []
        elif self._phrase is None and not self._in_group:
            self.addresses.append(Address(None, None, _join(self._words), None))
            self._begin_address()
            self._in_group = True

    def _in_route(self) -> bool:
        """Return True inside an obs-route of RFC 5322 section 4.4: <@a,@b:mailbox@host>."""
        return self._phrase is not None and not self._closed and self._words[:1] == [None]

    def end_group(self) -> None:
        self._end_address()
        if self._in_group:
            self.addresses.append(GROUP_END)
            self._in_group = False

    def _end_address(self) -> None:
        name = _join(self._phrase or []) or self._comment
        route = _join(self._route, b"") or None
        if None in self._words:
            at = len(self._words) - 1 - self._words[::-1].index(None)
            local, host = self._words[:at], self._words[at + 1 :]
            self.addresses.append(Address(name, route, _join(local, b""), _join(host, b"")))
        elif self._words or self._phrase:
            # An empty host rather than None, which would begin a group.
            self.addresses.append(Address(name, route, _join(self._words), b""))
        self._begin_address()


def _join(words: list[bytes | None], separator: bytes = b" ") -> bytes:
    joined: list[bytes] = []
    for before, word in zip([None, *words], words, strict=False):
        joined += (b"@",) if word is None else (b"" if before is None else separator, word)
    return b"".join(joined)


def _tokens(text: bytes) -> Iterator[tuple[str, bytes]]:
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        assert found is not None, "every octet begins a token"
        position = found.end()
        if found["special"] == b"(":
            start, position = position, _comment_end(text, position)
            yield "comment", _unquote(text[start : position - 1]).strip()
        elif found["quoted"] is not None:
            yield "word", _unquote(found["quoted"])
        elif found.lastgroup is not None:
            yield found.lastgroup, found[0]


def _comment_end(text: bytes, position: int) -> int:
    """Return the offset after the bracket that closes the comment, or one past the end of the text."""
    depth = 1
    for found in _IN_COMMENT.finditer(text, position):
        depth += (found[0] == b"(") - (found[0] == b")")
        if depth == 0:
            return found.end()
    return len(text) + 1


def _unquote(text: bytes) -> bytes:
    return _QUOTED_PAIR.sub(rb"\1", text)
