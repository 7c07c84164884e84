"""The difference of two versions of a file: one stretch of whole lines, found without reading each line."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Stretch(NamedTuple):
    """Whole lines, with their ends, and the new ones in their place."""

    old: list[bytes]
    new: list[bytes]


def stretch_between(old: bytes, new: bytes) -> Stretch:
    """Return the one stretch in which two files differ, both of which end with a line end."""
    shorter = min(len(old), len(new))
    alike = _alike(shorter, lambda begin, end: old[begin:end] == new[begin:end])
    start = old.rfind(b"\n", 0, alike) + 1

    def same_before(begin: int, end: int) -> bool:
        """Return True if these octets are the same, counted from the ends of the files."""
        return old[len(old) - end : len(old) - begin] == new[len(new) - end : len(new) - begin]

    tail = _alike(shorter - start, same_before)
    begins = ((text, len(text) - tail) for text in (old, new))
    if not all(at == start or text[at - 1 : at] == b"\n" for text, at in begins):
        tail = len(old) - 1 - old.index(b"\n", len(old) - tail)
    return Stretch(*(text[start : len(text) - tail].splitlines(keepends=True) for text in (old, new)))


def _alike(octets: int, are_same: Callable[[int, int], bool]) -> int:
    """Return how many of these octets are the same, up to the first that is not."""
    found = 0
    while found < octets:
        middle = (found + octets + 1) // 2
        if are_same(found, middle):
            found = middle
        else:
            octets = middle - 1
    return found
