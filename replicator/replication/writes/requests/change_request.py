"""The common part of all change requests, and the contents of their replies."""

from __future__ import annotations

from typing import Protocol

from protocol.commands import Command, Done, Reply, Saved, Stored
from protocol.values import Dot
from replicator.errors import MailError, UnavailableError
from replicator.replication.links.handshake import RAISE
from replicator.replication.links.link import PeerLink
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.sequencing.sequencer import Placed


class NotHereYetError(MailError):
    """The request's head or message is not at this node: it is on its way, on another branch, or was expunged."""


class ChangeRequest(Protocol):
    """One change to one mailbox or tree. Compares equal to the request that another node reads from `command`."""

    @property
    def key(self) -> MailboxKey:
        """The mailbox or tree that is changed."""
        ...

    @property
    def can_repeat(self) -> bool:
        """True if the request can be repeated without further effect when its outcome is unknown."""
        ...

    def command(self, link: PeerLink) -> Command:
        """Return the command for this link, with the link's mailbox numbers."""
        ...

    def run(self, tx: Transaction) -> Reply:
        """Number the change. Raises MailError, NotHereYetError."""
        ...


def check_raises(link: PeerLink) -> None:
    """Raise UnavailableError if the node at the other end does not know raised numbers."""
    if RAISE not in link.hello.capabilities:
        raise UnavailableError(f"{link.sid} runs an earlier version, which cannot keep UIDs; upgrade it first")


def dots_of(reply: Reply) -> tuple[Dot, ...]:
    """Return the dots of the entries on which a reply rests."""
    match reply:
        case Saved(dots=dots):
            return dots
        case Stored(dot=Dot() as dot) | Done(dot=Dot() as dot):
            return (dot,)
        case _:
            return ()


def saved(placed: Placed) -> Saved:
    """Return the reply to messages that the sequencer has placed, with the entries on which it rests."""
    return Saved(placed.uids, tuple(dict.fromkeys(dot for dot in (*placed.brought_by, placed.dot) if dot)))
