"""Requests to store, copy, expunge and flag messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.commands import (
    Command,
    Copy,
    Done,
    Expunge,
    NewMessage,
    Parts,
    Raise,
    Renumber,
    Reply,
    Save,
    SaveAll,
    Saved,
    Store,
    Stored,
    Text,
)
from protocol.units import MIB
from protocol.values import Dot, UidSet
from replicator.mail.mailstore import SLOWEST_BYTES_S
from replicator.replication import timing
from replicator.replication.links.entry_codec import message_of
from replicator.replication.links.link import PeerLink
from replicator.replication.writes.requests.change_request import ChangeRequest, NotHereYetError, check_raises, saved
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.sequencing import sequencer
from replicator.store.log.sequencing.sequencer import CopySource, NewMail, NewUid

SAVE_ALL_MAX = 64
"""Most messages of one SAVE-ALL: as many literals as a frame may have."""

SAVE_ALL_BYTES = MIB
"""Most octets of its messages together: they are hashed and compressed in a few milliseconds of a thread."""


def transfer_s(message: Text | Parts | None) -> float:
    """Return the extra seconds that a change may take to transfer its message's attachments, even on slow lines."""
    return min(timing.TRANSFER_MAX_S, message.size / SLOWEST_BYTES_S) if isinstance(message, Parts) else 0.0


def parts_of(operation: ChangeRequest) -> Parts | None:
    """Return the large message that a SAVE brings, if it brings one."""
    return operation.stored.parts if isinstance(operation, SaveRequest) else None


def _check_head(tx: Transaction, key: MailboxKey, head: Dot | None) -> None:
    """Check that the mailbox has seen the head to which a request's UIDs refer.

    On a branch that has not seen the head, the UIDs may name other messages. Raises NotHereYetError then: the entry is
    on its way, or the branches are about to be joined.
    """
    chain = tx.chain(key.mailbox_id)
    if head is not None and (chain is None or not chain.has_seen(head)):
        raise NotHereYetError


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """Request to store a message. Its GUID makes repeating safe."""

    key: MailboxKey
    guid: bytes
    received_ms: int
    flags: tuple[str, ...]
    stored: StoredBody = field(repr=False, compare=False)
    uid: int | None = None
    can_repeat: bool = True

    def command(self, link: PeerLink) -> Command:
        """Return a SAVE without an entry. Raises UnavailableError."""
        message = message_of(self.stored)
        if self.uid is not None:
            check_raises(link)
        return Save((link.number(self.key),), self.received_ms, self.guid, self.flags, message, self.uid)

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Saved."""
        placed = sequencer.save(
            tx, self.key, self.stored, guid=self.guid, received_ms=self.received_ms, flags=self.flags, uid=self.uid
        )
        return saved(placed)


@dataclass(frozen=True, slots=True)
class SaveAllRequest:
    """Request to store messages without attachments in one entry, in this order: at most `SAVE_ALL_MAX`."""

    key: MailboxKey
    messages: tuple[NewMail, ...]
    can_repeat: bool = True

    def command(self, link: PeerLink) -> Command:
        """Return a SAVE-ALL. Raises UnavailableError."""
        if any(one.uid is not None for one in self.messages):
            check_raises(link)
        return SaveAll(link.number(self.key), tuple(map(_new_message, self.messages)))

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Saved."""
        return saved(sequencer.save_all(tx, self.key, self.messages))


def save_request(key: MailboxKey, messages: Sequence[NewMail]) -> SaveRequest | SaveAllRequest:
    """Return the request to store messages by one entry: a single one, or several without attachments."""
    if len(messages) > 1:
        return SaveAllRequest(key, tuple(messages))
    (one,) = messages
    return SaveRequest(key, one.guid, one.received_ms, one.flags, one.stored, one.uid)


def _new_message(one: NewMail) -> NewMessage:
    message = message_of(one.stored)
    assert isinstance(message, Text), "a message without attachments"
    return NewMessage(one.received_ms, one.guid, one.flags, message, one.uid)


@dataclass(frozen=True, slots=True)
class RaiseRequest:
    """Request to raise UIDNEXT and HIGHESTMODSEQ to at least those of the same mailbox at another server."""

    key: MailboxKey
    uidnext: int
    modseq: int
    can_repeat: bool = True

    def command(self, link: PeerLink) -> Command:
        """Return a RAISE. Raises UnavailableError."""
        check_raises(link)
        return Raise(link.number(self.key), self.uidnext, self.modseq)

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Done."""
        return Done(sequencer.raise_numbers(tx, self.key, self.uidnext, self.modseq))


@dataclass(frozen=True, slots=True)
class RenumberRequest:
    """Request to give messages, each named by its UID and its GUID, other UIDs, all in one entry."""

    key: MailboxKey
    uids: UidSet
    guids: tuple[bytes, ...]
    wanted: tuple[int, ...]
    can_repeat: bool = True

    def command(self, link: PeerLink) -> Command:
        """Return a RENUMBER. Raises UnavailableError."""
        check_raises(link)
        return Renumber(link.number(self.key), self.uids, self.guids, self.wanted)

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Saved."""
        wanted = (NewUid(*each) for each in zip(self.uids, self.guids, self.wanted, strict=True))
        return saved(sequencer.renumber(tx, self.key, wanted))


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """Request to copy messages between mailboxes of one user: all of them, in one entry.

    `spare_guids` are for copies that may not keep the GUIDs of their sources. If they equal `guids`, messages that are
    already in the destination are not copied again.
    """

    source: MailboxKey
    key: MailboxKey
    uids: UidSet
    guids: tuple[bytes, ...]
    spare_guids: tuple[bytes, ...] = field(compare=False)

    @property
    def can_repeat(self) -> bool:
        """See `ChangeRequest`."""
        return self.spare_guids == self.guids

    def command(self, link: PeerLink) -> Command:
        """Return a COPY without UID."""
        source, destination = link.number(self.source), link.number(self.key)
        return Copy(source, destination, self.uids, self.guids, received_ms=0, flags=(), once=self.can_repeat)

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Saved."""
        wanted = [CopySource(*each) for each in zip(self.uids, self.guids, self.spare_guids, strict=True)]
        placed = sequencer.copy(tx, self.source.mailbox_id, wanted, self.key)
        if placed is None:
            raise NotHereYetError
        return Saved(placed.uids, (placed.dot,) if placed.dot else ())


@dataclass(frozen=True, slots=True)
class ExpungeRequest:
    """Request to remove messages. The reply names the UIDs that no longer name messages (see `uid_retry`)."""

    key: MailboxKey
    uids: UidSet
    head: Dot | None
    can_repeat: bool = True

    def command(self, link: PeerLink) -> Command:
        """Return an EXPUNGE."""
        return Expunge(link.number(self.key), self.uids, self.head)

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Stored."""
        _check_head(tx, self.key, self.head)
        absent = sequencer.absent(tx, self.key, self.uids)
        dot = sequencer.expunge(tx, self.key, self.uids)
        chain = tx.chain(self.key.mailbox_id)
        return Stored(absent, chain.highestmodseq if chain else 0, dot)


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """Request to change flags. Under UNCHANGEDSINCE, a repeated request would be refused for its own earlier changes.

    The reply names the UIDs that UNCHANGEDSINCE refuses, and those that no longer name messages (see `uid_retry`).
    """

    key: MailboxKey
    uids: UidSet
    head: Dot | None
    added: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged_since: int | None = None

    @property
    def can_repeat(self) -> bool:
        """See `ChangeRequest`."""
        return self.unchanged_since is None

    def command(self, link: PeerLink) -> Command:
        """Return a STORE without MODSEQ."""
        number = link.number(self.key)
        return Store(number, self.uids, self.added, self.removed, self.unchanged_since, self.head)

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Stored."""
        _check_head(tx, self.key, self.head)
        absent = sequencer.absent(tx, self.key, self.uids)
        done = sequencer.store(
            tx, self.key, self.uids, added=self.added, removed=self.removed, unchanged_since=self.unchanged_since
        )
        return Stored(UidSet.of_ranges((*done.refused.ranges, *absent.ranges)), done.modseq, done.dot)
