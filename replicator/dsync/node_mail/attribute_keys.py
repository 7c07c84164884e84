"""Names of annotations (RFC 5464), and the keys of the attributes under which dsync tells them.

Dovecot tells an annotation of a mailbox without `/private/` or `/shared/`, and keeps those of the server as attributes
of INBOX, under a prefix of its own: here these are the annotations of the user's account.
"""

from __future__ import annotations

from typing import NamedTuple

from replicator.mail.annotations import SPECIAL_USE

PRIVATE = "/private/"
SHARED = "/shared/"
"""Beginnings of the names of annotations (RFC 5464 section 3.2)."""

DOVECOTS_OWN = "vendor/vendor.dovecot/"
OF_SERVER = f"{DOVECOTS_OWN}pvt/server/"
"""Beginning of the keys of the server's annotations, at INBOX."""
SIEVE = "sieve/"
"""Beginning of the keys of Sieve scripts, below `OF_SERVER`."""
CONFIGURED = ("/shared/admin", "/shared/comment")
"""Annotations of the server that Dovecot has from its configuration, and lets nobody change."""


class AnnotationName(NamedTuple):
    """A name, and whether it is one of the user's account rather than of the mailbox."""

    name: str
    of_account: bool = False


def key_of(name: str, *, of_account: bool) -> tuple[bool, str] | None:
    """Return whether an annotation is shared, and its key; None for one that is not told: see `name_of`."""
    shared, key = name.startswith(SHARED), name.removeprefix(SHARED).removeprefix(PRIVATE)
    key = OF_SERVER + key if of_account else key
    return (shared, key) if name_of(key, shared=shared, is_inbox=of_account) == (name, of_account) else None


def name_of(key: str, *, shared: bool, is_inbox: bool) -> AnnotationName | None:
    """Return the name of an attribute; None for uses of folders, Sieve scripts and what else is Dovecot's own."""
    scope = SHARED if shared else PRIVATE
    if not key.startswith(DOVECOTS_OWN):
        return AnnotationName(scope + key) if scope + key != SPECIAL_USE else None
    rest = key.removeprefix(OF_SERVER)
    if not is_inbox or rest == key or rest.startswith((DOVECOTS_OWN, SIEVE)):
        return None
    return AnnotationName(scope + rest, of_account=True) if scope + rest not in CONFIGURED else None
