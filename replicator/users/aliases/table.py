"""A file of aliases, in the form that Postfix's postmap(1) reads and virtual(5) describes. No state.

A logical line is an address, white space, and the addresses in its place, with commas between them. A line that begins
with white space continues the one before it. Empty lines, and comments, which begin with `#` after any white space, do
not count, wherever they stand. The address `@domain` stands for all others of the domain, and a name without a
domain for that name in each. A target `@domain` is the name that was asked for, in that domain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from protocol.units import MIB
from replicator.users.names import folded

FILE_MAX_BYTES = MIB
"""Octets of the file: some 20,000 aliases."""

ADDRESS_MAX = 320
"""Characters of an address; none in mail is longer (RFC 5321 section 4.5.3.1)."""

_ADDRESS = re.compile(r'[^\s@,|/\\"<>:;()\[\]]*(?:@[^\s@,|/\\"<>:;()\[\]]+)?')


class AliasFileError(Exception):
    """The file cannot be used as it is. The text says why."""


class Alias(NamedTuple):
    """The addresses in place of one, folded, and the number of the line that says so."""

    targets: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class AliasTable:
    """The aliases of a file by their folded addresses; `problems` name file and line."""

    aliases: dict[str, Alias] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read_aliases(path: Path) -> AliasTable:
    """Read a whole file. Raises OSError, AliasFileError.

    A file is not whole that is empty, or whose last line has no end: somebody may be writing it.
    """
    with path.open("rb") as stream:
        data = stream.read(FILE_MAX_BYTES + 1)
    if len(data) > FILE_MAX_BYTES:
        raise AliasFileError(f"it has more than {FILE_MAX_BYTES} bytes")
    if not data.endswith(b"\n"):
        raise AliasFileError("it is empty, or its last line has no line end; it is used once the line end is there")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise AliasFileError("it is not UTF-8") from None
    aliases: dict[str, Alias] = {}
    problems = []
    for number, line in _logical_lines(text):
        try:
            name, alias = _parsed(line, number)
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
            continue
        first = aliases.setdefault(name, alias).line
        if first != number:
            problems.append(f"{path}:{number}: {name} is already in line {first}, which takes precedence")
    return AliasTable(aliases, tuple(problems))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the logical lines with their numbers, those of their first lines."""
    begun: list[str] = []
    first = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not line[0].isspace():
            if begun:
                yield first, " ".join(begun)
            begun, first = [], number
        elif not begun:
            first = number
        begun.append(line.strip())
    if begun:
        yield first, " ".join(begun)


def _parsed(line: str, number: int) -> tuple[str, Alias]:
    """Return an address and its alias. Raises ValueError."""
    name, *rest = line.split(None, 1)
    targets = [target.strip() for target in rest[0].split(",")] if rest else []
    if not targets or targets == [""]:
        raise ValueError(f"expected an address, a space, and the users in its place: {name}")
    wrong = next((one for one in (name, *targets) if not _is_address(one)), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is no address; commands, files and lists do not exist here")
    return folded(name), Alias(tuple(map(folded, targets)), number)


def _is_address(text: str) -> bool:
    return 1 <= len(text) <= ADDRESS_MAX and text.isprintable() and _ADDRESS.fullmatch(text) is not None
