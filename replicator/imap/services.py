"""What the IMAP door needs from the node, and its limits."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from protocol.units import MIB
from replicator.imap.parser import CommandParser
from replicator.mailstore import MailStore
from replicator.metrics import ImapMetrics
from replicator.users import Login


class Users(Protocol):
    """Who may log in."""

    async def verify(self, name: str, password: str, *, address: str | None = None) -> Login | None:
        """Who is meant, if that is the user's password. Slows guessing down by user and by address.

        Raises UsersUnavailableError while nobody can know.
        """
        ...

    def holds(self, login: Login) -> bool:
        """Whether the user is still there, with the same password."""
        ...


@dataclass(slots=True)
class Connections:
    """How many are open, altogether and by user. A connection costs a task, a socket and a buffer."""

    limit: int = 1000
    limit_per_user: int = 50  # a person's few devices, each with a few connections
    _open: int = 0
    _by_user: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def admit(self) -> Iterator[bool]:
        """Count a connection for as long as the block runs; False, and not counted, if there are too many."""
        if self._open >= self.limit:
            yield False
            return
        self._open += 1
        try:
            yield True
        finally:
            self._open -= 1

    def log_in(self, user: str) -> bool:
        """Count a connection as the user's; False, and not counted, if the user has too many."""
        if self._by_user[user] >= self.limit_per_user:
            return False
        self._by_user[user] += 1
        return True

    def log_out(self, user: str) -> None:
        """The user's connection ends."""
        self._by_user[user] -= 1
        if not self._by_user[user]:
            del self._by_user[user]


@dataclass(frozen=True, slots=True)
class ImapServices:
    """Made once and shared by all connections. `sid` names the node in what clients are told."""

    mail: MailStore
    users: Users
    sid: str
    tls: ssl.SSLContext | None = None  # for STARTTLS
    max_message_bytes: int = 50 * MIB  # an APPEND is held in memory while it comes in
    name: str = "mail-replicator"
    version: str | None = None
    parser: CommandParser = field(default_factory=CommandParser)
    connections: Connections = field(default_factory=Connections)
    metrics: ImapMetrics = field(default_factory=ImapMetrics)
