"""Resolution of addresses and login names to users. Names are compared in lower case everywhere.

The whole name is tried first, then its local part alone, so that `Alice@Example.org` reaches a user `alice@example.org`
or else the user `alice`. Each is tried as it is, then without a `+detail` (RFC 5233): mail for
`alice+lists@example.org` goes to alice, unless there is a user named `alice+lists`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

import trio

DETAIL = "+"

USER_MAX_BYTES = 254
"""Octets of a name; no address is longer (RFC 5321 section 4.5.3.1.3, without its angle brackets)."""


class UserNames(Protocol):
    """Look-up of the users with mail on this node."""

    async def ask(self, name: str) -> str | None:
        """Return what `find` does, after asking whoever knows the users, if need be. Raises UsersUnavailableError."""
        ...

    def find(self, name: str) -> str | None:
        """Return the user of an address or a login name, or None. Never waits.

        Raises UsersUnavailableError while the users are unknown, and UserNotLearnedError if it takes `ask`.
        """
        ...


class KnownNames:
    """The names of these users, who are all that there are."""

    def __init__(self, users: Collection[str]) -> None:
        self._users = users

    async def ask(self, name: str) -> str | None:
        """See `UserNames`."""
        await trio.lowlevel.checkpoint()
        return self.find(name)

    def find(self, name: str) -> str | None:
        """See `UserNames`."""
        return next((user for user in candidates(name) if user in self._users), None)


def folded(name: str) -> str:
    """Return the one spelling under which a user is known, in the mail store too."""
    return name.lower()


def check_user_name(user: str) -> None:
    """Raise ValueError if this is not a valid user name."""
    if not 1 <= len(user.encode("utf-8", "surrogateescape")) <= USER_MAX_BYTES:
        raise ValueError(f"a user name must have 1 to {USER_MAX_BYTES} bytes")
    if user[0] == "#" or ":" in user or " " in user or not user.isprintable():
        raise ValueError(f"a user name must have no colon, space or control character and not begin with '#': {user!r}")


def candidates(name: str) -> Iterator[str]:
    """Yield the possible users of a name, folded, best first."""
    local, at, domain = folded(name).rpartition("@")
    if not at:
        local, domain = domain, ""
    base, detail, _ = local.partition(DETAIL)
    # `+detail` alone names no user.
    locals_ = (local, base) if detail and base else (local,)
    if at:
        yield from (f"{part}@{domain}" for part in locals_)
    yield from locals_
