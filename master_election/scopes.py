"""What has one master together: `mastership.scope` in the configuration (design section 5).

A scope is a string that nodes pass around. Under `dynamic` a mailbox's scope names the wider one that it is part of,
`mailbox:ID of user:NAME`: it has the master of the wider one until it has been split off.
"""

from __future__ import annotations

from enum import StrEnum

_MAILBOX = "mailbox:"
_OF = " of "


class ScopePolicy(StrEnum):
    """What has one master together: `mastership.scope` in the configuration."""

    MAILBOX = "mailbox"
    USER = "user"
    DOMAIN = "domain"
    GLOBAL = "global"
    DYNAMIC = "dynamic"


def scope_of(policy: ScopePolicy, user: str, mailbox_id: bytes) -> str:
    """The scope of a mailbox, or of a folder tree, which is a mailbox with an id like any other.

    A domain is what follows the last `@`, in any case of letters (RFC 5321 section 2.4); users without one share
    the empty domain.
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
    """The scope that this one is part of, if it is one that splits and joins."""
    if not scope.startswith(_MAILBOX):
        return None
    return scope.partition(_OF)[2] or None
