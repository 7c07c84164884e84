"""Searches, and what they find among the messages that a client knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

SUBJECTS = 3


@dataclass(eq=False)
class Slot:
    """A message as a client knows it, under a sequence number; None stands for what the client was not told.

    `since`: the HIGHESTMODSEQ that the client knew when it heard of a new message.
    """

    uid: int | None = None
    flags: frozenset[str] | None = None
    modseq: int | None = None
    size: int | None = None
    since: int = 0
    least_uid: int = 1

    @property
    def is_in_part(self) -> bool:
        """True if the client does not know all of it."""
        return None in {self.uid, self.flags, self.modseq, self.size}


@dataclass(frozen=True)
class Criterion:
    """A search key, and whether it matches a message with these flags and this size."""

    text: str
    matches: Callable[[frozenset[str], int], bool]


def body_of(number: int) -> str:
    """Return a message that differs in size from those of other numbers."""
    return f"Subject: s{(number + 21) % SUBJECTS}\r\n\r\n".ljust(number + 21, "x")


def _flag(text: str, flag: str, *, is_set: bool = True) -> Criterion:
    return Criterion(text, lambda flags, _: (flag.lower() in map(str.lower, flags)) is is_set)


CRITERIA = (
    Criterion("ALL", lambda _flags, _size: True),
    _flag("UNSEEN", "\\Seen", is_set=False),
    _flag("FLAGGED", "\\Flagged"),
    _flag("UNDELETED", "\\Deleted", is_set=False),
    _flag("KEYWORD k1", "k1"),
    Criterion("LARGER 30", lambda _, size: size > 30),
    Criterion("SUBJECT s1", lambda _, size: size % SUBJECTS == 1),
    Criterion("OR (SEEN SMALLER 40) NOT SUBJECT s0", lambda f, s: ("\\Seen" in f and s < 40) or s % SUBJECTS != 0),
)


def numbers_of(sequence_set: str) -> list[int]:
    """Return the numbers in the order in which they are written."""
    ends = [[int(end) for end in part.split(":")] for part in sequence_set.split(",") if part]
    return [number for end in ends for number in range(end[0], end[-1] + 1)]


def printed(numbers: Iterable[int]) -> str:
    """Return the numbers as a sequence set."""
    return ",".join(map(str, numbers))


@dataclass
class Context:
    """The results of a search that the server keeps up to date: slots, or UIDs (RFC 5267 section 4.3)."""

    criterion: Criterion
    by_uid: bool
    is_sorted: bool
    results: list[Slot | int] = field(default_factory=list)
    is_lost: bool = False  # the client does not know any more which messages they are

    def apply(self, line: str, slots: Sequence[Slot]) -> None:
        """Take in ADDTO and REMOVEFROM, literally."""
        if self.is_lost:
            return
        for name, pairs in re.findall(r"(ADDTO|REMOVEFROM) \(([^)]*)\)", line):
            words = pairs.split()
            for place, numbers in zip(map(int, words[::2]), map(numbers_of, words[1::2]), strict=True):
                named: list[Slot | int] = [*numbers] if self.by_uid else [slots[number - 1] for number in numbers]
                assert self.is_sorted == bool(place), line
                if name == "ADDTO":
                    assert not any(one in self.results for one in named), f"added twice: {line}"
                    at = place - 1 if place else len(self.results)
                    assert at <= len(self.results), line
                    self.results[at:at] = named
                elif place:
                    assert self.results[place - 1 : place - 1 + len(named)] == named, line
                    del self.results[place - 1 : place - 1 + len(named)]
                else:
                    assert all(one in self.results for one in named), f"removed what was not there: {line}"
                    self.results = [one for one in self.results if one not in named]

    def has(self, slot: Slot) -> bool:
        """Return True if the message is among the results."""
        return (slot.uid if self.by_uid else slot) in self.results

    def expected(self, slots: Sequence[Slot]) -> list[Slot | int]:
        """Return the results for what the client knows, all of which it must know."""
        found = []
        for slot in slots:
            assert slot.flags is not None
            assert slot.size is not None
            if self.criterion.matches(slot.flags, slot.size):
                found.append(slot)
        if self.is_sorted:
            found.sort(key=lambda slot: slot.size or 0)
        return [slot.uid or 0 for slot in found] if self.by_uid else [*found]
