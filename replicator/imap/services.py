"""Services of the node that the IMAP door uses."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from protocol.framing import Frame
from protocol.units import KIB
from replicator.config import LimitsConfig
from replicator.imap.header_cache import HeaderCache
from replicator.imap.matching.message_reader import Parsing
from replicator.imap.wire.commands.command_parser import CommandParser
from replicator.imap.wire.commands.command_types import Tagged
from replicator.mail.mailstore import MESSAGE_BYTES_MAX, MailStore
from replicator.runtime.environment import wall_clock_ms
from replicator.runtime.metrics import ImapMetrics, RefusalMetrics
from replicator.runtime.places import Doorkeeper, Limit, PlaceLimits, Places
from replicator.runtime.sessions import Sessions
from replicator.users import Identity, Login, ScramAttempt, ScramKeys

LONG_COMMAND_BYTES = 2 * KIB
"""Longest text of a command that the event loop parses, which takes up to five milliseconds for each KiB."""


class Users(Protocol):
    """The users who may log in."""

    @property
    def has_masters(self) -> bool:
        """True if there are users who may act as others: then `as_user` says as whom one of them would."""
        ...

    async def verify(
        self, name: str, password: str, *, address: str | None = None, as_user: str | None = None
    ) -> Login | None:
        """Return the user's login if the password is right, else None. Slows guessing down by user and by address.

        Raises UsersUnavailableError while the users are unknown, UnavailableError if too many attempts are being
        delayed.
        """
        ...

    def has_scram(self, *, for_all: bool = False) -> bool:
        """Return True if somebody can log in by SCRAM; with `for_all`, if all users can."""
        ...

    def scram_keys(self, name: str, as_user: str | None = None) -> ScramKeys:
        """Return the keys of a user, or decoys for whoever cannot log in by SCRAM. Raises UsersUnavailableError."""
        ...

    def lacks_scram(self, name: str, as_user: str | None = None) -> bool:
        """Return True if this is the name of a user who cannot log in by SCRAM, which is not for clients to know."""
        ...

    def shuts_out(self, name: str, address: str | None, as_user: str | None = None) -> str | None:
        """Return why the user of this name may not log in from an IP address at all, which is not for clients to know.

        None: the user may, or there is none.
        """
        ...

    async def verify_scram(
        self, name: str, attempt: ScramAttempt, *, address: str | None = None, as_user: str | None = None
    ) -> Login | None:
        """Return the user's login if the attempt proves the password. Slows guessing down, and raises, as `verify`."""
        ...

    async def admit(self, name: str, identity: Identity | None, *, address: str | None = None) -> Login | None:
        """Return the login of the user of this name, if the identity is that user's. Delays, and raises, as `verify`.

        None for `identity` is a failed attempt.
        """
        ...

    def holds(self, login: Login) -> bool:
        """Return True if the user still may log in, with the same password or an identity in force."""
        ...


class Tokens(Protocol):
    """The access tokens of an identity provider."""

    @property
    def scopes(self) -> Sequence[str]:
        """The scopes that a token must have."""
        ...

    async def claimed_name(self, token: str) -> str | None:
        """Return the user's name in a token whose signature is not checked; None if it has none."""
        ...

    async def check(self, token: str) -> Identity:
        """Return the identity for which the token vouches.

        Raises TokenRefusedError, and UnavailableError while there are no keys. May wait for keys to be fetched.
        """
        ...


@dataclass(frozen=True, slots=True)
class ImapServices:
    """Services shared by all connections, created once.

    `sid` names the node in replies to clients; `tls` returns the context of STARTTLS, if there is one. `tokens`: the
    access tokens with which clients may log in, if there is a provider of them.
    """

    mail: MailStore
    users: Users
    sid: str
    tls: Callable[[], ssl.SSLContext | None] = lambda: None
    tokens: Tokens | None = None
    max_message_bytes: int = MESSAGE_BYTES_MAX
    name: str = "mail-replicator"
    version: str | None = None
    parser: CommandParser = field(default_factory=CommandParser)
    parsing: Parsing = field(default_factory=Parsing)
    metrics: ImapMetrics = field(default_factory=ImapMetrics)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    refusals: RefusalMetrics = field(default_factory=RefusalMetrics)
    headers: HeaderCache = field(default_factory=lambda: HeaderCache(LimitsConfig().imap_header_cache_bytes))
    clock_ms: Callable[[], int] = wall_clock_ms
    doorkeeper: Doorkeeper | None = None  # None: the limits hold for this door alone
    places: Doorkeeper = field(init=False)
    sessions: Sessions = field(default_factory=Sessions)

    async def parsed(self, frame: Frame, *, utf8: bool = False) -> Tagged:
        """Return the command of a frame; a long one is parsed in a thread. Raises as `CommandParser.parse`."""
        parse = partial(self.parser.parse, frame, utf8=utf8)
        return await self.parsing.apart(parse) if len(frame.text) > LONG_COMMAND_BYTES else parse()

    def __post_init__(self) -> None:
        """Make the door's places by its limits, unless somebody else gives them."""
        object.__setattr__(self, "places", self.doorkeeper or places_of(self.limits, self.refusals))


def places_of(limits: LimitsConfig, refusals: RefusalMetrics) -> Places:
    """Return the places of an IMAP door."""
    most = PlaceLimits(
        total=Limit(limits.imap_connections, "imap_connections"),
        strangers=Limit(limits.imap_unauthenticated, "imap_unauthenticated"),
        strangers_per_address=Limit(limits.imap_unauthenticated_per_address, "imap_unauthenticated_per_address"),
        strangers_on_loopback=Limit(limits.imap_unauthenticated_on_loopback, "imap_unauthenticated_on_loopback"),
        per_user=Limit(limits.imap_connections_per_user, "imap_connections_per_user"),
    )
    return Places(most, partial(refusals.refused, "imap"))
