"""One node's knowledge of the masters in the present term, and the moves of scopes (design section 5).

An answer counts only in the term in which the question was asked. A node knows for the whole term which scopes it
masters or has mastered itself; of the other masters it remembers those used lately, and asks again for the rest. While
a scope changes hands, no node masters it; the table in `scope_record` shows how it enters and leaves that state. A
scope that this node gave away is remembered like any other one with a master elsewhere, so that requests follow the
chain of former masters until the root has told every node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from master_election.scope_record import HELD, MOVING, Event, ScopeRecord, Standing
from master_election.scopes import wider

CACHED_MAX = 200_000
"""Scopes that are remembered although the root knows all about them, about 80 MiB.

Asking again costs one round trip to the root.
"""


class KnownMasters:
    """The masters of one term, as one node knows them.

    Callers ask with the scope of a mailbox. A wider scope covers it unless the root or a move says otherwise; below,
    the standing and the master of a scope mean those of the scope that covers it. `move_ended` is called whenever
    changes that wait for the end of a move may go on, `stepped` with each event that has changed a scope's record.
    """

    def __init__(
        self,
        sid: str,
        *,
        move_ended: Callable[[], None] = lambda: None,
        stepped: Callable[[str, Event], None] = lambda _scope, _event: None,
        cached_max: int = CACHED_MAX,
    ) -> None:
        self.sid = sid
        self.term = 1
        self.own_count = 0  # scopes that this node masters, takes or gives
        self._move_ended = move_ended
        self._stepped = stepped
        self._cached_max = cached_max
        # Each record is in one of these two; to a thread that looks while it passes from one to the other, it is not
        # ours. The first one is bounded by the mailboxes that this node has mastered or asked for in this term.
        self._kept: dict[str, ScopeRecord] = {}
        self._cached: OrderedDict[str, ScopeRecord] = OrderedDict()  # the least recently used one first
        self._own_parts: set[str] = set()  # of the kept ones, those that are OURS and part of a wider scope
        self._unheard: set[str] = set()  # scopes that are split off, or were given away, and the root has yet to hear

    # ---- queries

    @property
    def own(self) -> AbstractSet[str]:
        """Scopes that this node masters."""
        return {scope for scope, record in self._kept.items() if record.standing is Standing.OURS}

    @property
    def own_parts(self) -> list[str]:
        """Scopes that this node masters and that were split off from a wider one."""
        return list(self._own_parts)

    def covering(self, scope: str) -> str | None:
        """Return the scope itself or the wider one that covers it, or None if that is not known."""
        self._use(scope)
        return self._known_covering(scope)

    def standing(self, scope: str) -> Standing:
        """Return the standing of the scope that covers this one."""
        return self._record(self.covering(scope)).standing

    def master(self, scope: str) -> str | None:
        """Return the scope's master, or None if it is not known here or the scope is changing hands."""
        covering = self.covering(scope)
        record = self._record(covering)
        match record.standing:
            case Standing.OURS:
                return self.sid
            case Standing.ELSEWHERE:
                self._use(covering)
                return record.master
            case _:
                return None

    def is_ours(self, scope: str) -> bool:
        """Return True if this node masters the scope at this moment.

        Changes no state here, so any thread may call it.
        """
        return self._record(self._known_covering(scope)).standing is Standing.OURS

    def is_moving(self, scope: str) -> bool:
        """Return True if changes must wait for the end of a move."""
        return self.standing(scope) in MOVING

    def moves(self, scope: str) -> int:
        """Return a count that rises when the scope, or the wider one around it, comes or stops being promised.

        An answer of the root is out of date if this count has changed since the question.
        """
        return self.promises(scope) + self._record(wider(scope)).came

    def promises(self, scope: str) -> int:
        """Return how often the scope, or the wider one around it, has been promised to another node.

        What was compared before a promise ended must be compared again when the scope is ours.
        """
        return self._record(scope).promises + self._record(wider(scope)).promises

    # ---- events

    def begin(self, term: int) -> None:
        """Begin a new term: forget everything, and master nothing."""
        self.term = term
        self.own_count = 0
        self._kept.clear()
        self._cached.clear()
        self._own_parts.clear()
        self._unheard.clear()
        self._move_ended()

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
        if self._record(scope).is_held:
            self._cover(scope, scope)
            return True
        if scope in self._unheard:
            return True
        if moves not in (None, self.moves(scope)):
            return False
        covering = covering or scope
        if covering not in self._unheard:
            if master != self.sid:
                self._step(covering, Event.ROOT_NAMES_OTHER, master)
            elif self._step(covering, Event.ROOT_NAMES_US):
                self._comes(covering, scope)
        self._cover(scope, covering)
        return True

    def bounced(self, scope: str) -> None:
        """Forget the scope's master, which denied being it or cannot be reached; it is asked for again when needed."""
        covering = self.covering(scope)
        if covering in self._unheard:
            return  # the root would name us
        if covering is not None:
            self._step(covering, Event.BOUNCED)
        if not self.is_moving(scope):
            self._cover(scope, None)

    def want(self, scope: str) -> str | None:
        """Begin to take the scope.

        Return the master that has to be asked for it, or None if there is nothing to ask for. A scope is asked for once
        at a time, even if the root has told of a split meanwhile: an answer does not say to which question it belongs.
        """
        covering = self.covering(scope)
        if covering is None or self._record(scope).asked is not None or not self._step(covering, Event.WANTED):
            return None
        self._ask(scope, covering)
        return self._record(covering).master

    def taken(self, scope: str, given: str, asked_in: int) -> bool:
        """Take over `given` (the scope that was asked for, or this one alone, or the wider one) from its old master.

        Return False if it is too late.
        """
        covering = self._record(scope).asked
        if asked_in != self.term or covering is None:
            return False
        self._ask(scope, None)
        if given != covering:
            self._step(covering, Event.PART_TAKEN if given == scope else Event.JOINED)
        self._step(given, Event.TAKEN)
        self._comes(given, scope)
        self._cover(scope, given)
        self._unheard.discard(given)
        return True

    def not_taken(self, scope: str, asked_in: int, *, refused: bool) -> None:
        """End a request for the scope: the master keeps it (`refused`), or there was no answer."""
        covering = self._record(scope).asked
        if asked_in != self.term or covering is None:
            return
        self._ask(scope, None)
        self._step(covering, Event.REFUSED if refused else Event.LOST)

    def promise(self, scope: str, part: str) -> bool:
        """Promise `part` (the covering scope, or this one alone) to another node. Return True if it was ours to give.

        A wider scope cannot go before the root has heard of every part that was split off from it: the root would not
        believe it afterwards.
        """
        covering = self.covering(scope)
        if self._record(covering).standing is not Standing.OURS:
            return False
        if any(wider(each) == part for each in self._unheard):
            return False
        if part == covering:
            return self._step(part, Event.PROMISED)
        self._cover(scope, part)
        self._unheard.add(part)
        return self._step(part, Event.SPLIT)

    def give(self, part: str, destination: str, asked_in: int) -> bool:
        """Hand over a promised part. Return False if the term has ended meanwhile, and all mastership with it."""
        if asked_in != self.term or not self._step(part, Event.GIVEN, destination):
            return False
        self._unheard.add(part)
        return True

    def told(self, part: str, asked_in: int) -> None:
        """Note that the root has heard that `part` was given away."""
        if asked_in == self.term and self._record(part).standing is not Standing.SPLITTING:
            self._unheard.discard(part)

    def keep(self, part: str, asked_in: int) -> None:
        """Keep a promised part that cannot be handed over.

        One that was to be split off stays part of the wider scope.
        """
        if asked_in != self.term or not self._step(part, Event.KEPT):
            return
        if self._record(part).standing is Standing.UNKNOWN:
            self._unheard.discard(part)
            self._cover(part, None)

    def join(self, scope: str, master: str, asked_in: int) -> bool:
        """Make a promised part belong to the wider scope again, whose master is `master`."""
        covering = wider(scope)
        if asked_in != self.term or covering is None or not self._step(scope, Event.JOINED):
            return False
        self._unheard.discard(scope)
        return self.learn(scope, master, asked_in, covering)

    # ---- records

    def _record(self, scope: str | None) -> ScopeRecord:
        """Return the scope's record, or an empty one, which `_file` takes in if anything is written there."""
        if scope is None:
            return ScopeRecord()
        return self._kept.get(scope) or self._cached.get(scope) or ScopeRecord()

    def _known_covering(self, scope: str) -> str | None:
        if wider(scope) is None:
            return scope
        covering, came = self._record(scope).covering or (None, 0)
        return covering if covering in (None, scope) or came == self._record(covering).came else None

    def _step(self, scope: str, happening: Event, master: str | None = None) -> bool:
        record = self._record(scope)
        before = record.standing
        if not record.step(happening, master):
            return False
        self.own_count += (record.standing in HELD) - (before in HELD)
        if record.standing is Standing.OURS and wider(scope) is not None:
            self._own_parts.add(scope)
        else:
            self._own_parts.discard(scope)
        self._file(scope, record)
        self._stepped(scope, happening)
        if before in MOVING and record.standing not in MOVING:
            self._move_ended()
        return True

    def _comes(self, covering: str, scope: str) -> None:
        """Note that the covering scope is ours now. Only the root knows which other parts still belong to it."""
        if covering != scope:
            record = self._record(covering)
            record.came += 1
            self._file(covering, record)

    def _ask(self, scope: str, covering: str | None) -> None:
        """Note the scope that is asked for on behalf of this one; None after the answer."""
        record = self._record(scope)
        record.asked = covering
        self._file(scope, record)

    def _cover(self, scope: str, covering: str | None) -> None:
        """Note the scope that covers this one; None: only the root knows. A scope held here covers itself."""
        if wider(scope) is None:
            return
        record = self._record(scope)
        if covering is not None and record.is_held:
            covering = scope
        if covering not in (None, scope):
            record.step(Event.JOINED)
        record.covering = None if covering is None else (covering, self._record(covering).came)
        self._file(scope, record)

    def _file(self, scope: str, record: ScopeRecord) -> None:
        """Put the record where it belongs, as the most recently used one."""
        if record.must_stay:
            self._kept[scope] = record
            self._cached.pop(scope, None)
            return
        if not record.is_empty:
            self._cached[scope] = record
            self._cached.move_to_end(scope)
            if len(self._cached) > self._cached_max:
                self._cached.popitem(last=False)
        elif scope in self._cached:
            del self._cached[scope]
        self._kept.pop(scope, None)

    def _use(self, scope: str | None) -> None:
        if scope is not None and scope in self._cached:
            self._cached.move_to_end(scope)
