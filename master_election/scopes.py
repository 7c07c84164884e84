"""Scopes: groups of mailboxes with one master, set by `mastership.scope` in the configuration (design section 5).

A scope is a string that nodes pass around. Under `dynamic` the scope of a mailbox also names the wider one of which it
is part, `mailbox:ID of user:NAME`: it has the master of the wider one until it is split off.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum

_MAILBOX = "mailbox:"
_OF = " of "
_USER = "user:"


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
            return f"{_USER}{user}"
        case ScopePolicy.DOMAIN:
            return f"domain:{user.rpartition('@')[2].lower() if '@' in user else ''}"
        case ScopePolicy.GLOBAL:
            return "global"
        case ScopePolicy.DYNAMIC:
            return f"{_MAILBOX}{mailbox_id.hex()}{_OF}{_USER}{user}"


def wider(scope: str) -> str | None:
    """Return the wider scope of which this one is part, or None if it does not split and join."""
    if not scope.startswith(_MAILBOX):
        return None
    return scope.partition(_OF)[2] or None


def mailbox_of(scope: str) -> bytes | None:
    """Return the id of the mailbox or folder tree whose scope this is; None: it may have several."""
    if not scope.startswith(_MAILBOX):
        return None
    with suppress(ValueError):  # a faulty peer may have named it
        return bytes.fromhex(scope.removeprefix(_MAILBOX).partition(_OF)[0])
    return None


def user_of(scope: str) -> str | None:
    """Return the user all of whose mailboxes this scope may have; None: it is one mailbox's, or of several users."""
    return scope.removeprefix(_USER) if scope.startswith(_USER) else None
