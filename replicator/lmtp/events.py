"""Events of an LMTP connection, for its server: messages as they come, with their envelopes, and what else is to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from replicator.lmtp.replies import Reply
from replicator.lmtp.syntax import Address
from replicator.users.names import candidates


@dataclass(frozen=True, slots=True)
class Recipient:
    """Address of an accepted RCPT, and the users whom it reaches: one at least."""

    address: Address
    users: tuple[str, ...]

    @property
    def is_alias(self) -> bool:
        """True if the address is not the user's own."""
        return len(self.users) > 1 or self.users[0] not in candidates(self.address.name)


@dataclass(frozen=True, slots=True)
class Envelope:
    """Sender and recipients of a transaction, the latter in the order of the accepted RCPTs, repeats included."""

    client: str
    sender: Address | None = None
    recipients: tuple[Recipient, ...] = ()
    utf8: bool = False
    secure: bool = False  # it comes under TLS

    @property
    def users(self) -> tuple[str, ...]:
        """The recipients' users, in the same order, each once."""
        return tuple(dict.fromkeys(user for recipient in self.recipients for user in recipient.users))


@dataclass(frozen=True, slots=True)
class Rejection:
    """A refused RCPT, for the log. `argument` is the client's text."""

    sender: Address | None
    argument: str
    reply: Reply


@dataclass(frozen=True, slots=True)
class MessageBegun:
    """DATA was accepted: a message begins."""

    envelope: Envelope


@dataclass(frozen=True, slots=True)
class MessageData:
    """The next octets of the message, dots unstuffed. The pieces together are empty or end with CRLF."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MessageEnded:
    """The message is complete: deliver it, and call `LmtpMachine.delivered`."""


@dataclass(frozen=True, slots=True)
class MessageDropped:
    """The message is too large: its rest is skipped, and it is refused at its end."""


@dataclass(frozen=True, slots=True)
class TlsAccepted:
    """STARTTLS was accepted: send the output, begin TLS, and call `LmtpMachine.tls_began`."""


@dataclass(frozen=True, slots=True)
class UserAsked:
    """A recipient whom `find_users` does not know yet: ask, call `LmtpMachine.tell`, and advance again."""

    name: str


Event = MessageBegun | MessageData | MessageEnded | MessageDropped | TlsAccepted | UserAsked
