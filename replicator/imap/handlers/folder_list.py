r"""Folders and attributes that LIST and LSUB show (RFC 3501 sections 6.3.8 and 6.3.9). Pure functions.

A missing parent folder is listed all the same, marked `\Noselect`, so that clients which walk the tree level by level
find its children.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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

MAX_PATTERN = 1024  # characters: longer than any name


def list_entries(pattern: str, names: Iterable[str], *, children: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield (name, attributes) of the folders, and of their missing parents, that match the pattern.

    With `children`, an attribute says whether the folder has subfolders (RFC 3348).
    """
    real = set(names)
    parents = {parent for name in real for parent in _parents(name)}
    special = special_uses(real)
    for name in sorted(real | parents, key=lambda name: (name != INBOX, name)):
        if not (matches(pattern, name) or (name == INBOX and matches(pattern.upper(), name))):
            continue
        attributes = [] if name in real else [NOSELECT]
        if children:
            attributes.append("\\HasChildren" if name in parents else "\\HasNoChildren")
        if name in special:
            attributes.append(special[name])
        yield name, attributes


def special_uses(names: Iterable[str]) -> dict[str, str]:
    """Return the folders with a conventional name, each with its special use."""
    by_lower = {name.lower(): name for name in sorted(names, reverse=True)}
    found = {}
    for use, conventional in _SPECIAL_USES.items():
        name = next((by_lower[lower] for lower in conventional if lower in by_lower), None)
        if name is not None:
            found[name] = use
    return found


def matches(pattern: str, name: str) -> bool:
    """Return True if the pattern matches the name; `*` stands for anything, `%` for anything within one level.

    The matcher follows all readings of the pattern at once, as a set of positions in it, so that no pattern takes
    exponential time.
    """
    reached = _past_wildcards(pattern, {0})
    for character in name:
        stepped = set()
        for position in reached:
            if position == len(pattern):
                continue
            expected = pattern[position]
            if expected == "*" or (expected == "%" and character != SEPARATOR):
                stepped.add(position)
            elif expected == character:
                stepped.add(position + 1)
        reached = _past_wildcards(pattern, stepped)
    return len(pattern) in reached


def _past_wildcards(pattern: str, positions: set[int]) -> set[int]:
    for position in tuple(positions):
        following = position
        while following < len(pattern) and pattern[following] in "*%":
            following += 1
            positions.add(following)
    return positions


def _parents(name: str) -> Iterator[str]:
    levels = name.split(SEPARATOR)
    for depth in range(1, len(levels)):
        yield SEPARATOR.join(levels[:depth])
