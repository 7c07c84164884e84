r"""Folders and attributes that LIST and LSUB show (RFC 3501 sections 6.3.8 and 6.3.9). Pure functions.

A missing parent folder is listed all the same, marked `\Noselect`, so that clients which walk the tree level by level
find its children.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from replicator.mailstore import INBOX, SEPARATOR

NOSELECT = "\\Noselect"

_SPECIAL_USES: Mapping[str, tuple[str, ...]] = {
    "\\Archive": ("archive", "archives"),
    "\\Drafts": ("drafts",),
    "\\Junk": ("junk", "spam"),
    "\\Sent": ("sent", "sent messages", "sent items"),
    "\\Trash": ("trash", "deleted messages", "deleted items"),
}
"""Special uses of RFC 6154 section 2 with the folder names that clients give them; the first existing name wins."""

_LONGEST_CONVENTIONAL = max(len(name) for names in _SPECIAL_USES.values() for name in names)

WILDCARDS = "*%"
MAX_PATTERN = 1024  # characters: longer than any name


class Entry(NamedTuple):
    """A line of LIST or LSUB: a name that matches the pattern, and its attributes."""

    name: str
    attributes: list[str]


def list_entries(pattern: str, names: Sequence[str], *, children: bool) -> Iterator[Entry | None]:
    """Yield the folders, and their missing parents, that match the pattern. A missing parent precedes its subfolders.

    `names`: each once, and INBOX anywhere among the others, which are in their order: to sort many takes long.

    With `children`, an attribute says whether the folder has subfolders (RFC 3348). Yields None wherever work is done
    and nothing found, so that a caller who pauses now and then never does much at once.
    """
    real = set(names)
    parents: set[str] = set()
    for name in real:
        parents.update(_parents(name))
        yield None
    special = special_uses(real)
    yield None
    matching, matching_inbox = Pattern(pattern), Pattern(pattern.upper())
    shown: set[str] = set()
    for folder in chain((INBOX,), (name for name in names if name != INBOX)):
        for name in (*_parents(folder), folder):
            if name in shown or (name in real) != (name == folder):
                continue
            shown.add(name)
            if not (matching.matches(name) or (name == INBOX and matching_inbox.matches(name))):
                yield None
                continue
            attributes = [] if name in real else [NOSELECT]
            if children:
                attributes.append("\\HasChildren" if name in parents else "\\HasNoChildren")
            if name in special:
                attributes.append(special[name])
            yield Entry(name, attributes)


def special_uses(names: Iterable[str]) -> dict[str, str]:
    """Return the folders with a conventional name, each with its special use."""
    short = (name for name in names if len(name) <= _LONGEST_CONVENTIONAL)
    by_lower = {name.lower(): name for name in sorted(short, reverse=True)}
    found = {}
    for use, conventional in _SPECIAL_USES.items():
        name = next((by_lower[lower] for lower in conventional if lower in by_lower), None)
        if name is not None:
            found[name] = use
    return found


class Pattern:
    """A pattern: `*` stands for anything, `%` for anything within one level.

    All readings of the pattern are followed at once, as the bits of a number: bit n stands for a reading in which the
    first n plain characters have been met. A name therefore takes one step for each of its characters, whatever the
    pattern.
    """

    def __init__(self, pattern: str) -> None:
        self._next: dict[str, int] = {}  # by character: the readings that go on if it comes
        self._any = 0  # the readings that stand at a `*`
        self._within_level = 0  # those that stand at a `%` or a `*`
        position = 1
        for character in pattern:
            if character in WILDCARDS:
                self._any |= position if character == "*" else 0
                self._within_level |= position
            else:
                self._next[character] = self._next.get(character, 0) | position
                position <<= 1
        self._end = position

    def matches(self, name: str) -> bool:
        """Return True if the whole name matches."""
        reached = 1
        for character in name:
            waiting = self._any if character == SEPARATOR else self._within_level
            reached = ((reached & self._next.get(character, 0)) << 1) | (reached & waiting)
            if not reached:
                return False
        return bool(reached & self._end)


def _parents(name: str) -> Iterator[str]:
    levels = name.split(SEPARATOR)
    for depth in range(1, len(levels)):
        yield SEPARATOR.join(levels[:depth])
