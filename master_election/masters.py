"""One node's knowledge of the masters in the present term, and the moves of scopes (design section 5).

An answer counts only in the term in which the question was asked. A node knows for the whole term which scopes it
masters itself; of the other masters it remembers those used lately, and asks again for the rest. While a scope changes
hands, no node masters it; `TRANSITIONS` shows how it enters and leaves that state. A scope that this node gave away is
remembered like any other one with a master elsewhere, so that requests follow the chain of former masters until the
root has told every node.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum

from master_election.scopes import wider

CACHED_MAX = 100_000
"""Masters elsewhere that are remembered, about 20 MiB; asking again costs one round trip to the root."""


class Standing(StrEnum):
    """State of a scope at this node."""

    UNKNOWN = "unknown"
    ELSEWHERE = "elsewhere"
    OURS = "ours"
    TAKING = "taking"  # its master was asked for it; changes wait
    GIVING = "giving"  # it goes to another node as soon as its numbered entries are on disk; changes wait


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
    GIVEN = "it is handed over"
    KEPT = "it cannot be handed over"
    NEW_TERM = "a new term"


TRANSITIONS: Mapping[tuple[Standing, Event], Standing] = {
    (Standing.UNKNOWN, Event.ROOT_NAMES_US): Standing.OURS,
    (Standing.UNKNOWN, Event.ROOT_NAMES_OTHER): Standing.ELSEWHERE,
    (Standing.UNKNOWN, Event.TAKEN): Standing.OURS,  # a part of the scope that was asked for
    (Standing.ELSEWHERE, Event.ROOT_NAMES_US): Standing.OURS,
    (Standing.ELSEWHERE, Event.ROOT_NAMES_OTHER): Standing.ELSEWHERE,
    (Standing.ELSEWHERE, Event.BOUNCED): Standing.UNKNOWN,
    (Standing.ELSEWHERE, Event.WANTED): Standing.TAKING,
    (Standing.ELSEWHERE, Event.TAKEN): Standing.OURS,
    (Standing.TAKING, Event.TAKEN): Standing.OURS,
    (Standing.TAKING, Event.PART_TAKEN): Standing.ELSEWHERE,
    (Standing.TAKING, Event.REFUSED): Standing.ELSEWHERE,
    (Standing.TAKING, Event.LOST): Standing.UNKNOWN,  # it may be ours: the root knows
    (Standing.OURS, Event.PROMISED): Standing.GIVING,
    (Standing.GIVING, Event.GIVEN): Standing.ELSEWHERE,
    (Standing.GIVING, Event.KEPT): Standing.OURS,
    **{(standing, Event.NEW_TERM): Standing.UNKNOWN for standing in Standing},
}
"""All transitions.

Other pairs change nothing: a root that names another node for our scope has not heard of the move yet.
"""


class Masters:
    """The masters of one term, as one node knows them.

    Callers ask with the scope of a mailbox. A wider scope covers it unless the root or a move says otherwise; below,
    the standing and the master of a scope mean those of the scope that covers it.
    """

    def __init__(self, sid: str, cached_max: int = CACHED_MAX) -> None:
        self.sid = sid
        self.term = 1
        self._cached_max = cached_max
        self._held: dict[str, Standing] = {}  # scopes that are OURS, TAKING or GIVING
        self._parts: set[str] = set()  # the scopes in `_held` that are part of a wider scope
        self._elsewhere: OrderedDict[str, str] = OrderedDict()  # scope -> master; while TAKING, the one that was asked
        self._covering: OrderedDict[str, tuple[str, int]] = OrderedDict()  # part -> its covering scope and `_came`
        self._came: Counter[str] = Counter()  # number of times that a wider scope has come to this node
        self._given: Counter[str] = Counter()  # number of times that a scope was given away
        self._taking: dict[str, str] = {}  # mailbox scopes that were asked for -> the scope that covered them then
        self._splitting: set[str] = set()  # parts that are promised while their wider scope stays ours
        self._untold: set[str] = set()  # scopes that were given away without the root having heard of it yet

    # ---- queries

    @property
    def own(self) -> AbstractSet[str]:
        """Scopes that this node masters."""
        return {scope for scope, standing in self._held.items() if standing is Standing.OURS}

    @property
    def own_parts(self) -> list[str]:
        """Scopes that this node masters and that were split off from a wider one."""
        return [scope for scope in self._parts if self._held[scope] is Standing.OURS]

    @property
    def own_count(self) -> int:
        """Number of scopes that this node masters, takes or gives."""
        return len(self._held)

    def covering(self, scope: str) -> str | None:
        """Return the scope itself or the wider one that covers it, or None if that is not known."""
        if wider(scope) is None:
            return scope
        if scope in self._covering:
            self._covering.move_to_end(scope)
        return self._known_covering(scope)

    def standing(self, scope: str) -> Standing:
        """Return the standing of the scope that covers this one."""
        return self._standing(self.covering(scope))

    def master(self, scope: str) -> str | None:
        """Return the scope's master, or None if it is not known here or the scope is changing hands."""
        covering = self.covering(scope)
        match self._standing(covering):
            case Standing.OURS:
                return self.sid
            case Standing.ELSEWHERE:
                assert covering is not None
                self._elsewhere.move_to_end(covering)
                return self._elsewhere[covering]
            case _:
                return None

    def is_ours(self, scope: str) -> bool:
        """Return True if this node masters the scope at this moment.

        Changes no state here, so any thread may call it.
        """
        covering = scope if wider(scope) is None else self._known_covering(scope)
        return covering is not None and self._held.get(covering) is Standing.OURS

    def is_moving(self, scope: str) -> bool:
        """Return True if changes must wait for the end of a move."""
        return self.standing(scope) in (Standing.TAKING, Standing.GIVING)

    def moves(self, scope: str) -> int:
        """Return how often the scope, or the wider one around it, has come or been given away.

        An answer of the root is out of date if this count has changed since the question.
        """
        around = wider(scope)
        return self._given[scope] + (0 if around is None else self._came[around] + self._given[around])

    # ---- events

    def begin(self, term: int) -> None:
        """Begin a new term: forget everything, and master nothing."""
        self.term = term
        self._held.clear()
        self._parts.clear()
        self._elsewhere.clear()
        self._covering.clear()
        self._came.clear()
        self._given.clear()
        self._taking.clear()
        self._splitting.clear()
        self._untold.clear()

    def learn(
        self, scope: str, master: str, asked_in: int, covering: str | None = None, moves: int | None = None
    ) -> bool:
        """Take in the root's answer to a WHO that was asked in the term `asked_in`.

        Return False if it is too late: ask again.

        `moves` is the count at the time of the question. If the wider scope has come here since then, the part may have
        been split off before that; a scope that was given away since then may still be named as ours. For scopes that
        this node holds, and for moves of which the root has not heard, this node's own knowledge takes precedence over
        the root's.
        """
        if asked_in != self.term:
            return False
        if scope in self._held:
            self._cover(scope, scope)
            return True
        if scope in self._untold:
            return True
        if moves not in (None, self.moves(scope)):
            return False
        covering = covering or scope
        happening = Event.ROOT_NAMES_US if master == self.sid else Event.ROOT_NAMES_OTHER
        if covering not in self._untold and self._step(covering, happening):
            if master == self.sid:
                self._comes(covering, scope)
            else:
                self._remember(covering, master)
        self._cover(scope, covering)
        return True

    def bounced(self, scope: str) -> None:
        """Forget the scope's master, which denied being it or cannot be reached; it is asked for again when needed."""
        covering = self.covering(scope)
        if covering in self._untold:
            return  # the root would name us
        if covering is not None and self._step(covering, Event.BOUNCED):
            self._elsewhere.pop(covering, None)
        if not self.is_moving(scope):
            self._covering.pop(scope, None)

    def want(self, scope: str) -> str | None:
        """Begin to take the scope.

        Return the master that has to be asked for it, or None if there is nothing to ask for.
        """
        covering = self.covering(scope)
        if covering is None or not self._step(covering, Event.WANTED):
            return None
        self._taking[scope] = covering
        return self._elsewhere[covering]

    def taken(self, scope: str, given: str, asked_in: int) -> bool:
        """Take over `given` (the covering scope, or this one alone) from its old master.

        Return False if it is too late.
        """
        if asked_in != self.term or (covering := self._taking.pop(scope, None)) is None:
            return False
        if given != covering:
            self._step(covering, Event.PART_TAKEN)
        self._step(given, Event.TAKEN)
        self._comes(given, scope)
        self._cover(scope, given)
        self._untold.discard(given)
        return True

    def not_taken(self, scope: str, asked_in: int, *, refused: bool) -> None:
        """End a request for the scope: the master keeps it (`refused`), or there was no answer."""
        if asked_in != self.term or (covering := self._taking.pop(scope, None)) is None:
            return
        self._step(covering, Event.REFUSED if refused else Event.LOST)
        if not refused:
            self._elsewhere.pop(covering, None)

    def promise(self, scope: str, part: str) -> bool:
        """Promise `part` (the covering scope, or this one alone) to another node. Return True if it was ours to give.

        A wider scope cannot go before the root has heard of every part that was split off from it: the root would not
        believe it afterwards.
        """
        covering = self.covering(scope)
        if covering is None or self._standing(covering) is not Standing.OURS:
            return False
        if any(wider(split) == part for split in self._splitting | self._untold):
            return False
        if part != covering:
            self._cover(scope, part)
            self._hold(part, Standing.OURS)
            self._splitting.add(part)
        return self._step(part, Event.PROMISED)

    def give(self, part: str, destination: str, asked_in: int) -> bool:
        """Hand over a promised part. Return False if the term has ended meanwhile, and all mastership with it."""
        if asked_in != self.term or not self._step(part, Event.GIVEN):
            return False
        self._given[part] += 1
        self._remember(part, destination)
        self._splitting.discard(part)
        self._untold.add(part)
        return True

    def told(self, part: str, asked_in: int) -> None:
        """Note that the root has heard that `part` was given away."""
        if asked_in == self.term:
            self._untold.discard(part)

    def keep(self, part: str, asked_in: int) -> None:
        """Keep a promised part that cannot be handed over.

        One that was to be split off stays part of the wider scope.
        """
        if asked_in != self.term or not self._step(part, Event.KEPT) or part not in self._splitting:
            return
        self._splitting.discard(part)
        self._held.pop(part)
        self._parts.discard(part)
        self._covering.pop(part, None)

    def join(self, scope: str, master: str, asked_in: int) -> bool:
        """Make a promised part belong to the wider scope again, whose master is `master`."""
        if not self.give(scope, master, asked_in):
            return False
        self.told(scope, asked_in)
        covering = wider(scope)
        assert covering is not None
        self._elsewhere.pop(scope)
        return self.learn(scope, master, asked_in, covering)

    # ---- the table

    def _known_covering(self, scope: str) -> str | None:
        covering, came = self._covering.get(scope, (None, 0))
        return covering if covering in (None, scope) or came == self._came[covering] else None

    def _comes(self, covering: str, scope: str) -> None:
        """Note that the covering scope is ours now. Only the root knows which other parts still belong to it."""
        self._elsewhere.pop(covering, None)
        if covering != scope:
            self._came[covering] += 1

    def _standing(self, scope: str | None) -> Standing:
        if scope is None:
            return Standing.UNKNOWN
        return self._held.get(scope) or (Standing.ELSEWHERE if scope in self._elsewhere else Standing.UNKNOWN)

    def _step(self, scope: str, happening: Event) -> bool:
        """Apply the transition and return True if there is one.

        A caller that makes a scope ELSEWHERE must remember its master, one that makes it UNKNOWN must forget the
        master.
        """
        after = TRANSITIONS.get((self._standing(scope), happening))
        if after in (Standing.OURS, Standing.TAKING, Standing.GIVING):
            self._hold(scope, after)
        elif after is not None:
            self._held.pop(scope, None)
            self._parts.discard(scope)
        return after is not None

    def _hold(self, scope: str, standing: Standing) -> None:
        self._held[scope] = standing
        if wider(scope) is not None:
            self._parts.add(scope)

    def _remember(self, scope: str, master: str) -> None:
        self._elsewhere[scope] = master
        self._elsewhere.move_to_end(scope)
        if len(self._elsewhere) > self._cached_max:
            oldest = next(one for one in self._elsewhere if one not in self._held)
            del self._elsewhere[oldest]

    def _cover(self, scope: str, covering: str) -> None:
        if wider(scope) is None:
            return
        self._covering[scope] = covering, self._came[covering]
        self._covering.move_to_end(scope)
        if len(self._covering) > self._cached_max:
            self._covering.popitem(last=False)
