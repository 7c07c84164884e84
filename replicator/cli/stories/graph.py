r"""A history drawn with characters: `*` is an entry, and lines lead down to its predecessors.

    *      a merge
    |\
    | *    an entry of another branch
    * |
    |/
    *      the entry where they forked

A line that ends has a predecessor that is not there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

Name = TypeVar("Name", bound=Hashable)


class Drawn(NamedTuple, Generic[Name]):
    """The part of a line before its entry; with `name` None, a line of its own between entries."""

    prefix: str
    name: Name | None


def drawn(history: Iterable[tuple[Name, Sequence[Name]]]) -> Iterator[Drawn[Name]]:
    """Yield the lines for entries, each of which comes with its predecessors among the later ones."""
    lanes: list[Name | None] = []  # the entry to which each line leads down; None: the lane is free
    above = -1  # lane of the entry on the line before: another one right below would seem to be its predecessor
    for name, predecessors in history:
        if name not in lanes:
            _take_free(lanes, name, above)
        at = above = lanes.index(name)
        while (other := _last(lanes, name)) != at:
            yield Drawn(_joining(lanes, at, other), None)
            lanes[other] = None
            _trim(lanes)
        yield Drawn("".join("* " if place == at else _bar(lane) for place, lane in enumerate(lanes)), name)
        first, *others = predecessors or (None,)
        lanes[at] = first
        for place, other_name in enumerate(others, at + 1):
            yield Drawn(_opening(lanes, place), None)
            lanes.insert(place, other_name)
        _trim(lanes)


def _bar(lane: object) -> str:
    return "  " if lane is None else "| "


def _take_free(lanes: list[Name | None], name: Name, above: int) -> None:
    lanes += [None, None]
    lanes[next(place for place, lane in enumerate(lanes) if lane is None and place != above)] = name
    _trim(lanes)


def _last(lanes: Sequence[Name | None], name: Name) -> int:
    return len(lanes) - 1 - lanes[::-1].index(name)


def _trim(lanes: list[Name | None]) -> None:
    while lanes and lanes[-1] is None:
        lanes.pop()


def _joining(lanes: Sequence[object], at: int, other: int) -> str:
    """Return the line on which the lane `other` joins the lane `at`, to its left."""
    chars = list("".join(map(_bar, lanes)))
    chars[2 * other] = " "
    chars[2 * other - 1] = "/"
    for place in range(2 * at + 1, 2 * other - 1):
        if chars[place] == " ":
            chars[place] = "_"
    return "".join(chars).rstrip()


def _opening(lanes: Sequence[object], place: int) -> str:
    """Return the line on which a lane opens at a place, and those from there on move to the right."""
    left = "".join(map(_bar, lanes[:place]))
    moved = "".join(" \\" if lane is not None else "  " for lane in lanes[place:])
    return f"{left[:-1]}\\{moved}".rstrip()
