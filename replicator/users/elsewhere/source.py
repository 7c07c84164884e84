"""A source of users elsewhere, such as an LDAP server: what it is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from replicator.users.words.quota_limits import OwnLimits

SHOWN_MAX = 500


def shown(text: str) -> str:
    """Return a text of a source as operators may see it: control characters are escaped, and its end may be cut off."""
    cut = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut)


class SourceError(Exception):
    """Lack of a usable answer. The text says why, for operators, without a final stop; it may quote the source."""

    def __init__(self, text: str) -> None:
        super().__init__(shown(text))


class EntryError(SourceError):
    """Lack of a usable answer about one user. The source answers about others."""


class BusyError(SourceError):
    """Lack of an answer because too many others are waited for. The source has not been asked."""


@dataclass(frozen=True, slots=True)
class Found:
    """A user whom the source knows. `entry`: the source's own name of the user, such as a DN.

    `limits`: quotas that the source sets for this user. `fault`: what is wrong with other quotas there, for operators.
    """

    user: str
    entry: str
    disabled: bool = False
    limits: OwnLimits = field(default_factory=dict)
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer about a password. `text`: what the source said, for operators."""

    is_right: bool
    text: str


class UserSource(Protocol):
    """A server that knows users. A call ends within the source's own deadline; `LookUps` bounds how many there are."""

    @property
    def name(self) -> str:
        """The source, for messages: its kind and its address."""
        ...

    async def look_up(self, name: str) -> Found | None:
        """Return the user of exactly this name, which is in lower case; None: there is none. Raises SourceError."""
        ...

    async def check(self, found: Found | None, password: str, address: str | None) -> Verdict:
        """Return whether the password is right. None for `found`: the server is asked about somebody who is not there.

        `password`: not empty, and without surrogates and NUL. `address`: the client's IP address. Raises SourceError.
        """
        ...

    async def rehearse(self) -> None:
        """Ask about somebody who is not there. Raises SourceError."""
        ...

    def close(self) -> None:
        """Close the connections that have nothing to do, and keep none from now on."""
        ...
