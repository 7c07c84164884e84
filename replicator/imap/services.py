"""What the IMAP door needs from the node."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Protocol

from replicator.imap.limits import Connections
from replicator.imap.matching.message_reader import Parsing
from replicator.imap.wire.command_parser import CommandParser
from replicator.mailstore import MESSAGE_BYTES_MAX, MailStore
from replicator.metrics import ImapMetrics
from replicator.users import Login


class Users(Protocol):
    """Who may log in."""

    async def verify(self, name: str, password: str, *, address: str | None = None) -> Login | None:
        """Who is meant, if that is the user's password. Slows guessing down by user and by address.

        Raises UsersUnavailableError while nobody can know, UnavailableError if too many wait to be slowed down.
        """
        ...

    def holds(self, login: Login) -> bool:
        """Whether the user is still there, with the same password."""
        ...


@dataclass(frozen=True, slots=True)
class ImapServices:
    """Made once and shared by all connections. `sid` names the node in what clients are told."""

    mail: MailStore
    users: Users
    sid: str
    tls: ssl.SSLContext | None = None  # for STARTTLS
    max_message_bytes: int = MESSAGE_BYTES_MAX
    name: str = "mail-replicator"
    version: str | None = None
    parser: CommandParser = field(default_factory=CommandParser)
    connections: Connections = field(default_factory=Connections)
    parsing: Parsing = field(default_factory=Parsing)
    metrics: ImapMetrics = field(default_factory=ImapMetrics)
