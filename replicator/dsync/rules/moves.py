"""Moves of folders: in which order they are renamed and created, so that each gets its name in one sync.

A folder moves with all below it, and the parents that a new name lacks are created with it, with ids of their own
(IMAP's CREATE and RENAME, RFC 3501 sections 6.3.3 and 6.3.5). So a name is settled after all names above it. A folder
that is there, and is to be elsewhere, goes there first. Where the way there leads back, as when two swap their names,
it steps aside: a folder is moved twice at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

Name: TypeAlias = tuple[str, ...]
"""Levels of a folder's name."""

RENAMES_MAX = 500
"""Renames of one sync, or some more, as those of one cycle of names belong together. For each, a node reads all of the
user's folders, which takes 10 ms and more for each 1,000 of them, and the peer waits for ten minutes."""

LEVELS_MAX = 32
"""Levels of a name to which a way is sought. A folder at a node has no more: a deeper name is refused there."""

ASIDE_CHARACTERS_MAX = 50
"""Characters that a folder keeps of its name where it steps aside, so that the name is not too long with a number."""

PENDING_MAX = 200
"""Names that may wait for each other. One more folder steps aside then, so that Python's stack is never full."""


@dataclass(frozen=True, slots=True)
class Move:
    """A mailbox that gets a name, with all below it. `old`: None if it is created."""

    mailbox_id: bytes
    old: Name | None
    new: Name


def moves(
    now: Mapping[bytes, Name], wanted: Mapping[Name, bytes], used: Iterable[Name]
) -> tuple[list[Move], Sequence[Name]]:
    """Return the moves after which each name that is wanted has its mailbox, in their order, and names left for later.

    After `RENAMES_MAX` renames the moves end as soon as no folder is on its way: each has its old name or its new one.
    `now`: the names that mailboxes have; each is wanted at a name, too. `used`: names that folders have, besides.
    """
    way = _Way(now, wanted, used)
    most = RENAMES_MAX
    ordered = sorted(wanted, key=lambda one: (len(one), one))
    for number, name in enumerate(ordered, 1):
        if len(name) <= LEVELS_MAX:
            way.settle(name)
        elif way.name_of(wanted[name]) != name:
            way.moves.append(Move(wanted[name], way.name_of(wanted[name]), name))
        if way.renames >= most:
            most += RENAMES_MAX  # to look whether all folders are somewhere takes long
            if all(way.name_of(one) in {old, way.target[one]} for one, old in now.items()):
                return way.moves, [name for name in ordered[number:] if way.name_of(wanted[name]) != name]
    return way.moves, ()


@dataclass(eq=False, slots=True)
class _Place:
    """A name, relative to the one above, with the mailbox that is there, if any."""

    level: str
    above: _Place | None = None
    mailbox_id: bytes | None = None
    below: dict[str, _Place] = field(default_factory=dict)

    def name(self) -> Name:
        levels = list[str]()
        place = self
        while place.above is not None:
            levels.append(place.level)
            place = place.above
        return tuple(reversed(levels))


class _Way:
    """The way to the wanted names. Each step is taken here as the folders' server will take it."""

    def __init__(self, now: Mapping[bytes, Name], wanted: Mapping[Name, bytes], used: Iterable[Name]) -> None:
        """See `moves`."""
        self.moves = list[Move]()
        self.renames = 0
        self._wanted = wanted
        self.target = {one: name for name, one in wanted.items()}
        self._tops = {name[0] for names in (now.values(), wanted, used) for name in names}
        self._numbers = count(1)
        self._root = _Place("")
        self._places = dict[bytes, _Place]()
        for one, name in now.items():
            self._occupy(name, one)
        self._settled = set[Name]()
        self._pending = set[Name]()

    def name_of(self, mailbox_id: bytes) -> Name | None:
        """Return the name that a mailbox has by now."""
        return self._places[mailbox_id].name() if mailbox_id in self._places else None

    def settle(self, name: Name) -> bool:
        """Let the mailbox that is to have this name have it, and no other one. Return False if that has to wait."""
        if name in self._settled:
            return True
        if name in self._pending or len(self._pending) >= PENDING_MAX:
            return False
        self._pending.add(name)
        is_settled = len(name) == 1 or self.settle(name[:-1])
        if is_settled:
            self._clear(name)
            self._fill(name)
        self._pending.remove(name)
        return is_settled

    def _clear(self, name: Name) -> None:
        """Let a mailbox go that is not to have this name."""
        one = self._mailbox_at(name)
        if one is None or one == self._wanted.get(name):
            return
        is_gone = len(self.target[one]) <= LEVELS_MAX and self.settle(self.target[one])
        if not is_gone and self._mailbox_at(name) == one:
            self._step_aside(one)

    def _fill(self, name: Name) -> None:
        one = self._wanted.get(name)
        if one is None:
            return
        self._settled.add(name)
        if one not in self._places:
            self.moves.append(Move(one, None, name))
            self._occupy(name, one)
        elif self._mailbox_at(name) != one:
            self._move(one, name)

    def _step_aside(self, one: bytes) -> None:
        """Give a mailbox a name of one level that no folder has: none above it will move then."""
        level = self._places[one].level[:ASIDE_CHARACTERS_MAX]
        top = next(new for number in self._numbers if (new := f"{level}-{number}") not in self._tops)
        self._tops.add(top)
        self._move(one, (top,))

    def _move(self, one: bytes, new: Name) -> None:
        place, there = self._places[one], self._find(new)
        for other in [] if there is None else [*_in_both(place, there, place)]:
            self._step_aside(other)
        self.moves.append(Move(one, place.name(), new))
        self.renames += 1
        assert place.above is not None
        del place.above.below[place.level]
        self._put(place, self._made(new[:-1]), new[-1])

    def _put(self, place: _Place, above: _Place, level: str) -> None:
        """Put a place, with all below it, to a name. What is below that name stays there."""
        there = above.below.get(level)
        if there is None:
            place.level, place.above = level, above
            above.below[level] = place
            return
        if place.mailbox_id is not None:
            there.mailbox_id = place.mailbox_id
            self._places[place.mailbox_id] = there
        for part, other in place.below.items():
            self._put(other, there, part)

    def _occupy(self, name: Name, mailbox_id: bytes) -> None:
        place = self._places[mailbox_id] = self._made(name)
        place.mailbox_id = mailbox_id

    def _made(self, name: Name) -> _Place:
        place = self._root
        for level in name:
            place = place.below.setdefault(level, _Place(level, place))
        return place

    def _find(self, name: Name) -> _Place | None:
        place: _Place | None = self._root
        for level in name:
            place = None if place is None else place.below.get(level)
        return place

    def _mailbox_at(self, name: Name) -> bytes | None:
        place = self._find(name)
        return None if place is None else place.mailbox_id


def _in_both(place: _Place, there: _Place, moving: _Place) -> Iterator[bytes]:
    """Yield the mailboxes below a place that would get names of others below another one, as `moving` goes there."""
    small, large = sorted((place.below, there.below), key=len)
    for level in sorted(level for level in small if level in large):
        own, other = place.below[level], there.below[level]
        if other is moving:
            continue
        if own.mailbox_id is not None and other.mailbox_id is not None:
            yield own.mailbox_id
        else:
            yield from _in_both(own, other, moving)
