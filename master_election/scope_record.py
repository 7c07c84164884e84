"""A node's knowledge of one scope in the present term, and the table of its changes (design section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Standing(StrEnum):
    """State of a scope at this node."""

    UNKNOWN = "unknown"
    ELSEWHERE = "elsewhere"
    OURS = "ours"
    TAKING = "taking"  # its master was asked for it; changes wait
    GIVING = "giving"  # it goes to another node as soon as its numbered entries are on disk; changes wait
    SPLITTING = "splitting"  # the same for a part of a wider scope, which stays ours


class Event(StrEnum):
    """Event that changes a scope's standing."""

    ROOT_NAMES_US = "the root names us"
    ROOT_NAMES_OTHER = "the root names another"
    BOUNCED = "its master says that it is not"
    WANTED = "we ask for it"
    TAKEN = "it is handed to us"
    REFUSED = "its master keeps it"
    PART_TAKEN = "only a part is handed to us"
    LOST = "no answer"
    PROMISED = "another may have it"
    SPLIT = "another may have this part"
    GIVEN = "it is handed over"
    KEPT = "it cannot be handed over"
    JOINED = "it belongs to the wider scope"


TRANSITIONS: Mapping[tuple[Standing, Event], Standing] = {
    (Standing.UNKNOWN, Event.ROOT_NAMES_US): Standing.OURS,
    (Standing.UNKNOWN, Event.ROOT_NAMES_OTHER): Standing.ELSEWHERE,
    (Standing.UNKNOWN, Event.TAKEN): Standing.OURS,  # a part of the scope that was asked for, or a wider one
    (Standing.UNKNOWN, Event.SPLIT): Standing.SPLITTING,
    (Standing.ELSEWHERE, Event.ROOT_NAMES_US): Standing.OURS,
    (Standing.ELSEWHERE, Event.ROOT_NAMES_OTHER): Standing.ELSEWHERE,
    (Standing.ELSEWHERE, Event.BOUNCED): Standing.UNKNOWN,
    (Standing.ELSEWHERE, Event.WANTED): Standing.TAKING,
    (Standing.ELSEWHERE, Event.TAKEN): Standing.OURS,  # a wider scope than the one that was asked for
    (Standing.ELSEWHERE, Event.JOINED): Standing.UNKNOWN,
    (Standing.TAKING, Event.TAKEN): Standing.OURS,
    (Standing.TAKING, Event.PART_TAKEN): Standing.ELSEWHERE,
    (Standing.TAKING, Event.REFUSED): Standing.ELSEWHERE,
    (Standing.TAKING, Event.LOST): Standing.UNKNOWN,  # it may be ours: the root knows
    (Standing.TAKING, Event.JOINED): Standing.UNKNOWN,  # it was handed to us as part of the wider scope
    (Standing.OURS, Event.PROMISED): Standing.GIVING,
    (Standing.GIVING, Event.GIVEN): Standing.ELSEWHERE,
    (Standing.GIVING, Event.KEPT): Standing.OURS,
    (Standing.GIVING, Event.JOINED): Standing.UNKNOWN,
    (Standing.SPLITTING, Event.GIVEN): Standing.ELSEWHERE,
    (Standing.SPLITTING, Event.KEPT): Standing.UNKNOWN,
}
"""All transitions.

Other pairs change nothing: a root that names another node for our scope has not heard of the move yet.
"""

HELD = frozenset({Standing.OURS, Standing.TAKING, Standing.GIVING, Standing.SPLITTING})
"""Standings of which this node knows more than the root."""

MOVING = HELD - {Standing.OURS}
"""Standings in which changes wait for the end of a move."""


@dataclass(slots=True)
class ScopeRecord:
    """A node's knowledge of one scope in the present term.

    A scope without a record is UNKNOWN. A part that a wider scope covers is UNKNOWN too: its master is that of the
    wider one.
    """

    standing: Standing = Standing.UNKNOWN
    master: str | None = None  # of a scope that is ELSEWHERE; while TAKING, the one that was asked
    covering: tuple[str, int] | None = None  # of a part: the scope that covers it, and how often that had come by then
    asked: str | None = None  # the scope that covered this one when it was asked for, until the answer
    came: int = 0  # times that it came to this node as the wider scope of a mailbox
    promises: int = 0  # promises of it that have ended, kept or not

    def step(self, happening: Event, master: str | None = None) -> bool:
        """Apply the transition and return True if there is one. `master` is the new one, if the event names it."""
        after = TRANSITIONS.get((self.standing, happening))
        if after is None:
            return False
        if self.standing in (Standing.GIVING, Standing.SPLITTING):
            self.promises += 1
        if after not in (Standing.ELSEWHERE, Standing.TAKING):
            self.master = None
        elif master is not None:
            self.master = master
        self.standing = after
        return True

    @property
    def is_held(self) -> bool:
        """True if this node masters, takes or gives the scope."""
        return self.standing in HELD

    @property
    def must_stay(self) -> bool:
        """True if the root could not restore what this record says.

        The counts must never start again within a term: an outdated answer would pass for a new one.
        """
        return self.is_held or self.asked is not None or bool(self.came or self.promises)

    @property
    def is_empty(self) -> bool:
        """True if the record can be dropped without loss."""
        return not (self.must_stay or self.covering is not None or self.standing is Standing.ELSEWHERE)
