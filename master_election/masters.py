"""What one node knows of masters in the present term, and which scope a mailbox belongs to (design section 5).

An answer counts only in the term in which the question was asked. What this node masters itself it knows for the
whole term; of the others it remembers those used lately, and asks again for the rest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from enum import StrEnum

CACHED_MAX = 100_000
"""Masters elsewhere that are remembered, about 20 MiB; asking again costs one round trip to the root."""


class ScopePolicy(StrEnum):
    """What has one master together: `mastership.scope` in the configuration."""

    MAILBOX = "mailbox"
    USER = "user"
    DOMAIN = "domain"
    GLOBAL = "global"


def scope_of(policy: ScopePolicy, user: str, mailbox_id: bytes) -> str:
    """The scope of a mailbox, or of a folder tree, which is a mailbox with an id like any other.

    A domain is what follows the last `@`, in any case of letters (RFC 5321 section 2.4); users without one share
    the empty domain.
    """
    match policy:
        case ScopePolicy.MAILBOX:
            return f"mailbox:{mailbox_id.hex()}"
        case ScopePolicy.USER:
            return f"user:{user}"
        case ScopePolicy.DOMAIN:
            return f"domain:{user.rpartition('@')[2].lower() if '@' in user else ''}"
        case ScopePolicy.GLOBAL:
            return "global"


class Masters:
    """Scope -> SID in one term, at one node."""

    def __init__(self, sid: str, cached_max: int = CACHED_MAX) -> None:
        self.sid = sid
        self.term = 1
        self._cached_max = cached_max
        self._own: set[str] = set()
        self._cached: OrderedDict[str, str] = OrderedDict()

    @property
    def own(self) -> AbstractSet[str]:
        """Scopes that this node masters."""
        return self._own

    def begin(self, term: int) -> None:
        """A new term: nothing is known, nothing is ours."""
        self.term = term
        self._own.clear()
        self._cached.clear()

    def learn(self, scope: str, master: str, asked_in: int) -> bool:
        """The root answered a WHO that was asked in the term `asked_in`. False: too late, ask again."""
        if asked_in != self.term:
            return False
        self._own.discard(scope)
        self._cached.pop(scope, None)
        if master == self.sid:
            self._own.add(scope)
            return True
        self._cached[scope] = master
        if len(self._cached) > self._cached_max:
            self._cached.popitem(last=False)
        return True

    def master(self, scope: str) -> str | None:
        """The scope's master; None: not known here."""
        if scope in self._own:
            return self.sid
        if scope in self._cached:
            self._cached.move_to_end(scope)
        return self._cached.get(scope)

    def forget(self, scope: str) -> None:
        """Ask again when it is next needed: the master said that it is not."""
        self._own.discard(scope)
        self._cached.pop(scope, None)
