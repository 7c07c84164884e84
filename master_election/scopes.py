"""Scopes: groups of mailboxes with one master, set by `mastership.scope` in the configuration (design section 5).

A scope is a string that nodes pass around. Under `dynamic` the scope of a mailbox also names the wider one of which it
is part, `mailbox:ID of user:NAME`: it has the master of the wider one until it is split off.
"""

from __future__ import annotations

from enum import StrEnum

_MAILBOX = "mailbox:"
_OF = " of "


class ScopePolicy(StrEnum):
    """Size of a scope: `mastership.scope` in the configuration."""

    MAILBOX = "mailbox"
    USER = "user"
    DOMAIN = "domain"
    GLOBAL = "global"
    DYNAMIC = "dynamic"


def scope_of(policy: ScopePolicy, user: str, mailbox_id: bytes) -> str:
    """Return the scope of a mailbox, or of a folder tree, which is a mailbox with an id like any other.

    A domain is the part after the last `@`, case-insensitive (RFC 5321 section 2.4); users without one share the empty
    domain.
    """
    match policy:
        case ScopePolicy.MAILBOX:
            return f"{_MAILBOX}{mailbox_id.hex()}"
        case ScopePolicy.USER:
            return f"user:{user}"
        case ScopePolicy.DOMAIN:
            return f"domain:{user.rpartition('@')[2].lower() if '@' in user else ''}"
        case ScopePolicy.GLOBAL:
            return "global"
        case ScopePolicy.DYNAMIC:
            return f"{_MAILBOX}{mailbox_id.hex()}{_OF}user:{user}"


def wider(scope: str) -> str | None:
    """Return the wider scope of which this one is part, or None if it does not split and join."""
    if not scope.startswith(_MAILBOX):
        return None
    return scope.partition(_OF)[2] or None
