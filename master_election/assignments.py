"""The root's record of which node masters which scope in its term (design section 5)."""

from __future__ import annotations

from master_election.scopes import wider
from protocol.commands import Master

MAX_SCOPES = 2**21
"""Scopes whose master a root remembers, about 500 MiB at worst. The root itself masters any further ones."""


class Assignments:
    """The masters that the root `sid` has named in one term. `masters`: scope -> SID."""

    def __init__(self, sid: str) -> None:
        self.sid = sid
        self.masters: dict[str, str] = {}

    def master(self, scope: str, candidate: str) -> Master:
        """Return the master of the scope. A part has the master of the wider scope until it has been split off."""
        if scope in self.masters:
            return Master(self.masters[scope])
        covering = wider(scope)
        return Master(self._assign(covering or scope, candidate), covering)

    def _assign(self, scope: str, candidate: str) -> str:
        master = self.masters.get(scope)
        if master is None:
            if len(self.masters) >= MAX_SCOPES:
                return self.sid
            master = self.masters[scope] = candidate
        return master

    def hand_over(self, scope: str, former: str, candidate: str) -> None:
        """Record a move. Ignore it if `former` is not the master known here: the root heard of another move first.

        A node that hands a part over to itself gives the part up, and it becomes part of the wider scope again. No move
        does that, not even one to the wider scope's master, which may be handing that scope over at this moment.
        """
        around = wider(scope)
        covering = None if around is None else self.masters.get(around)
        if (self.masters.get(scope) or covering or self.sid) != former:
            return
        if candidate == former:
            if around is not None:
                self.masters.pop(scope, None)
        elif scope in self.masters or len(self.masters) < MAX_SCOPES:
            self.masters[scope] = candidate
