"""Whose name an address or a login is. Names are compared in lower case everywhere.

The whole name is tried first, then its local part alone, so that `Alice@Example.org` reaches a user
`alice@example.org` and else the user `alice`. Each is tried as it is, then without a `+detail` (RFC 5233): mail for
`alice+lists@example.org` goes to alice, unless there is a user who is really called `alice+lists`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

DETAIL = "+"


class UserNames(Protocol):
    """Who has mail here."""

    def find(self, name: str) -> str | None:
        """The user whom an address or a login name means; None: nobody. Never waits.

        Raises UsersUnavailableError while nobody can know.
        """
        ...


def folded(name: str) -> str:
    """The one spelling under which a user is known, to the mail store too."""
    return name.lower()


def candidates(name: str) -> Iterator[str]:
    """The users who may be meant, folded, best first."""
    local, at, domain = folded(name).rpartition("@")
    if not at:
        local, domain = domain, ""
    base, detail, _ = local.partition(DETAIL)
    # `+detail` alone names nobody.
    locals_ = (local, base) if detail and base else (local,)
    if at:
        yield from (f"{part}@{domain}" for part in locals_)
    yield from locals_
