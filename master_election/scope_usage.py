"""Use of scopes by this node's clients, and the moves of mastership that it calls for (design section 5).

Mastership follows the people who use a mailbox, but two busy nodes must not toss it back and forth:

- A node asks for a scope only after its clients have changed it a few times in a row. After each refusal it waits twice
  as long before it asks again.
- A master gives away only scopes that its own clients have not changed for a while. So of two busy nodes the master
  stays, however often the other one asks.
- A scope that has just come stays for a while, twice as long each time that it comes back within a minute or so.

All times are seconds of one clock, which the caller reads.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from master_election.scopes import wider

ASK_AFTER = 3
"""Changes that make a node ask for a scope: one or two are not worth a round trip."""

IN_A_ROW_S = 10.0
"""Seconds between changes above which they are not in a row."""

QUIET_S = 2.0
"""Seconds without changes by its own clients after which a master gives a scope away."""

STAY_S, STAY_MAX_S = 5.0, 300.0
"""Seconds that a scope stays at a node to which it came: doubled each time that it comes back soon."""

RETRY_S, RETRY_MAX_S = 2.0, 120.0
"""Seconds that a node waits after a refusal: doubled each time."""

JOIN_AFTER_S = 60.0
"""Seconds without changes after which a scope that was split off rejoins the wider one."""

REMEMBERED_MAX = 100_000
"""Scopes whose usage is remembered, about 30 MiB; a forgotten scope counts as unused, so it may move."""


@dataclass(slots=True)
class _Usage:
    changes: int = 0  # in a row
    changed_at: float = float("-inf")
    ask_at: float = float("-inf")  # not before
    retry_s: float = RETRY_S
    came_at: float = float("-inf")
    stay_s: float = 0.0


class Usage:
    """Use of scopes by this node's own clients, and its consequences for moves.

    A change counts for the mailbox's scope and for the wider one of which it is part, if there is one.
    """

    def __init__(self) -> None:
        self._scopes: OrderedDict[str, _Usage] = OrderedDict()

    def changed(self, scope: str, now: float) -> None:
        """Record that a client of this node changes something in the mailbox of this scope."""
        for each in _levels(scope):
            usage = self._of(each)
            usage.changes = usage.changes + 1 if now - usage.changed_at < IN_A_ROW_S else 1
            usage.changed_at = now

    def wants(self, scope: str, now: float) -> bool:
        """Return True if this node should ask the scope's master for it."""
        usage = self._scopes.get(scope)
        return usage is not None and usage.changes >= ASK_AFTER and now >= usage.ask_at

    def refused(self, scope: str, now: float) -> None:
        """Record that the master keeps the scope: ask later."""
        usage = self._of(scope)
        usage.ask_at = now + usage.retry_s
        usage.retry_s = min(RETRY_MAX_S, usage.retry_s * 2)

    def sent_away(self, scope: str, now: float) -> None:
        """Record that an operator moved the scope to another node: do not ask for it back soon."""
        for each in _levels(scope):
            self._of(each).ask_at = now + STAY_MAX_S

    def came(self, scope: str, now: float) -> None:
        """Record that this node has become the scope's master by a move."""
        usage = self._of(scope)
        soon = now - usage.came_at < max(IN_A_ROW_S, 4 * usage.stay_s)
        usage.stay_s = min(STAY_MAX_S, usage.stay_s * 2) if soon else STAY_S
        usage.came_at, usage.retry_s = now, RETRY_S

    def may_go(self, scope: str, now: float) -> bool:
        """Return True if this node, the master of exactly this scope, should give it to a node that asks."""
        usage = self._scopes.get(scope)
        return usage is None or (now - usage.changed_at >= QUIET_S and now - usage.came_at >= usage.stay_s)

    def offer(self, scope: str, covering: str, now: float) -> str | None:
        """Return the scope to give to a node that asks for this mailbox: the covering one, this one alone, or None.

        A wider scope is split where it is in use, or would move too often.
        """
        if self.may_go(covering, now):
            return covering
        return scope if scope != covering and self.may_go(scope, now) else None

    def may_join(self, scope: str, now: float) -> bool:
        """Return True if a part that was split off has been unused long enough to rejoin the wider scope."""
        usage = self._scopes.get(scope)
        return usage is None or now - max(usage.changed_at, usage.came_at) >= JOIN_AFTER_S

    def _of(self, scope: str) -> _Usage:
        usage = self._scopes.setdefault(scope, _Usage())
        self._scopes.move_to_end(scope)
        if len(self._scopes) > REMEMBERED_MAX:
            self._scopes.popitem(last=False)
        return usage


def _levels(scope: str) -> tuple[str, ...]:
    around = wider(scope)
    return (scope,) if around is None else (scope, around)
