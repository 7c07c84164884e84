"""The search for GUIDs that occur more than once, among many of which nearly all occur once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_PLACES = 8
"""Places for each GUID in a table: one in sixteen finds its place taken by another one, and is looked at again."""


def repeated(guids: Callable[[], Iterable[bytes]], most: int) -> set[bytes]:
    """Return those that occur more than once, in some 15 bytes of memory for each of all.

    `guids` returns all, anew each time; they are so many at most.
    """
    size = _PLACES * most + 1
    table, suspects = bytearray(size), set[bytes]()
    for guid in guids():
        place = hash(guid) % size
        if table[place]:
            suspects.add(guid)
        table[place] = 1
    once, several = set[bytes](), set[bytes]()
    for guid in guids() if suspects else ():
        if guid in suspects:
            (several if guid in once else once).add(guid)
    return several
