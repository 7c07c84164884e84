r"""Folders and attributes that LIST and LSUB show (RFC 3501 sections 6.3.8 and 6.3.9, RFC 5258). Pure functions.

A missing parent folder is listed all the same, marked `\Noselect` or `\NonExistent`, so that clients which walk the
tree level by level find its children.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from replicator.mail.mailstore import INBOX, SEPARATOR

NOSELECT = "\\Noselect"
NONEXISTENT = "\\NonExistent"  # RFC 5258 section 3; implies the former
SUBSCRIBED = "\\Subscribed"

WILDCARDS = "*%"
_BELOW_INBOX = INBOX + SEPARATOR
MAX_PATTERN = 1024  # characters of all patterns of a command: longer than any name


class Entry(NamedTuple):
    """A line of LIST or LSUB: a name that matches a pattern, and its attributes.

    `meets`: it is a folder that meets the selection criteria, not only a parent of one. `child_info`: a folder
    below it meets them (RFC 5258 section 3.5).
    """

    name: str
    attributes: list[str]
    meets: bool = True
    child_info: bool = False


@dataclass(frozen=True, slots=True)
class FolderSelection:
    """Lines that LIST shows for the folders that match a pattern (RFC 5258 section 3.1).

    `criteria`: sets of names; a folder has to be in each of them. If `recursive`, so do parents of such folders.
    `unknown`: names that LIST shows although no folder has them. `marked`: attributes of names.
    """

    criteria: Sequence[AbstractSet[str]] = ()
    recursive: bool = False
    unknown: Sequence[str] = ()
    marked: Sequence[Mapping[str, str]] = ()
    nonexistent: str = NOSELECT


def list_entries(
    patterns: Sequence[str], names: Sequence[str], selection: FolderSelection | None = None
) -> Iterator[Entry | None]:
    """Yield the folders, and their missing parents, that match a pattern. A missing parent precedes its subfolders.

    `names`: each once, and INBOX anywhere among the others, which are in their order: to sort many takes long.

    An attribute says whether the folder has subfolders (RFC 3348). Yields None wherever work is done and nothing found,
    so that a caller who pauses now and then never does much at once.
    """
    selection = selection or FolderSelection()
    real = set(names)
    parents: set[str] = set()
    above: set[str] = set()  # folders that meet the criteria
    for name in chain(names, selection.unknown):
        if name in real:
            parents.update(_parents(name))
        if selection.recursive and all(name in those for those in selection.criteria):
            above.update(_parents(name))
        yield None
    matching, matching_inbox = Pattern(*patterns), Pattern(*map(_inbox_in_capitals, patterns))
    for name in _with_missing_parents(names, selection.unknown):
        meets = all(name in those for those in selection.criteria)
        if not (meets or name in above) or not _matches(name, matching, matching_inbox):
            yield None
            continue
        attributes = [] if name in real else [selection.nonexistent]
        attributes.append("\\HasChildren" if name in parents else "\\HasNoChildren")
        attributes += [marks[name] for marks in selection.marked if name in marks]
        yield Entry(name, attributes, meets and name in real, name in above)


def lsub_entries(pattern: str, names: Sequence[str]) -> Iterator[Entry | None]:
    """Yield the subscriptions that match the pattern, and None as `list_entries` does.

    A parent that is not subscribed is shown only where `%` stops at it (RFC 3501 section 6.3.9).
    """
    subscribed = set(names)
    matching, matching_inbox = Pattern(pattern), Pattern(_inbox_in_capitals(pattern))
    for name in _with_missing_parents(names):
        is_shown = name in subscribed or "%" in pattern
        is_entry = is_shown and _matches(name, matching, matching_inbox)
        yield Entry(name, [] if name in subscribed else [NOSELECT]) if is_entry else None


def _with_missing_parents(names: Sequence[str], others: Sequence[str] = ()) -> Iterator[str]:
    """Yield INBOX if it is among the names, the other names, and before each of them its parents that are not."""
    known = {*names, *others}
    shown: set[str] = set()
    first = (INBOX,) if INBOX in known else ()
    for folder in chain(first, names, others):
        for name in (*_parents(folder), folder):
            if name not in shown and (name == folder or name not in known):
                shown.add(name)
                yield name


def _matches(name: str, matching: Pattern, matching_inbox: Pattern) -> bool:
    is_inbox = name == INBOX or name.startswith(_BELOW_INBOX)
    return matching.matches(name) or (is_inbox and matching_inbox.matches(name))


def _inbox_in_capitals(pattern: str) -> str:
    """Return the pattern with its first level as INBOX is written, of which clients may write any letter small."""
    begin, separator, rest = pattern.partition(SEPARATOR)
    return begin.upper() + separator + rest


class Pattern:
    """Patterns of which one has to match: `*` stands for anything, `%` for anything within one level.

    All readings of all patterns are followed at once, as the bits of a number: each pattern has a run of bits, and the
    n-th of them stands for a reading in which its first n plain characters have been met. A name therefore takes one
    step for each of its characters, whatever the patterns.
    """

    def __init__(self, *patterns: str) -> None:
        self._next: dict[str, int] = {}  # by character: the readings that go on if it comes
        self._any = 0  # the readings that stand at a `*`
        self._within_level = 0  # those that stand at a `%` or a `*`
        self._begin = self._end = 0
        position = 1
        for pattern in patterns:
            self._begin |= position
            for character in pattern:
                if character in WILDCARDS:
                    self._any |= position if character == "*" else 0
                    self._within_level |= position
                else:
                    self._next[character] = self._next.get(character, 0) | position
                    position <<= 1
            self._end |= position
            position <<= 1

    def matches(self, name: str) -> bool:
        """Return True if the whole name matches a pattern."""
        reached = self._begin
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
