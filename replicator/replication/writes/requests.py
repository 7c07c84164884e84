"""Clients' changes as requests that run at this node or are sent to another one.

A request can be sent as a command, if another node is the master, or run as a job of the writer, if this node is: both
give the same reply. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from protocol.commands import (
    Annotate,
    Command,
    Copy,
    Create,
    Delete,
    Done,
    Expunge,
    NewMessage,
    Parts,
    Rename,
    Reply,
    Save,
    SaveAll,
    Saved,
    Store,
    Stored,
    Subscribe,
    Text,
)
from protocol.stream_codec import ProtocolError
from protocol.units import MIB
from protocol.values import Dot, UidSet
from replicator.errors import MailError
from replicator.mail.mailstore import SLOWEST_BYTES_S
from replicator.replication import timing
from replicator.replication.links.entry_codec import message_of, values_of
from replicator.replication.links.link import PeerLink
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.entry_validation import NUMBER_MAX, are_annotations
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log import sequencer
from replicator.store.log.sequencer import CopySource, NewMail, Placed
from resync.entry import pack_values, tree_id

SAVE_ALL_MAX = 64
"""Most messages of one SAVE-ALL: as many literals as a frame may have."""

SAVE_ALL_BYTES = MIB
"""Most octets of its messages together: they are hashed and compressed in a few milliseconds of a thread."""

NewId = Callable[[], bytes]
"""A source of new ids (`Environment.new_guid`)."""


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


def dots_of(reply: Reply) -> tuple[Dot, ...]:
    """Return the dots of the entries on which a reply rests."""
    match reply:
        case Saved(dots=dots):
            return dots
        case Stored(dot=Dot() as dot) | Done(dot=Dot() as dot):
            return (dot,)
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """Request to store a message. Its GUID makes repeating safe."""

    key: MailboxKey
    guid: bytes
    received_ms: int
    flags: tuple[str, ...]
    stored: StoredBody = field(repr=False, compare=False)
    can_repeat: bool = True

    def command(self, link: PeerLink) -> Command:
        """Return a SAVE without UID."""
        message = message_of(self.stored)
        return Save((link.number(self.key),), self.received_ms, self.guid, self.flags, message)

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Saved."""
        placed = sequencer.save(
            tx, self.key, self.stored, guid=self.guid, received_ms=self.received_ms, flags=self.flags
        )
        return _saved(placed)


def _saved(placed: Placed) -> Saved:
    return Saved(placed.uids, tuple(dict.fromkeys(dot for dot in (*placed.brought_by, placed.dot) if dot)))


@dataclass(frozen=True, slots=True)
class SaveAllRequest:
    """Request to store messages without attachments in one entry, in this order: at most `SAVE_ALL_MAX`."""

    key: MailboxKey
    messages: tuple[NewMail, ...]
    can_repeat: bool = True

    def command(self, link: PeerLink) -> Command:
        """Return a SAVE-ALL."""
        return SaveAll(link.number(self.key), tuple(map(_new_message, self.messages)))

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Saved."""
        return _saved(sequencer.save_all(tx, self.key, self.messages))


def save_request(key: MailboxKey, messages: Sequence[NewMail]) -> SaveRequest | SaveAllRequest:
    """Return the request to store messages by one entry: a single one, or several without attachments."""
    if len(messages) > 1:
        return SaveAllRequest(key, tuple(messages))
    (one,) = messages
    return SaveRequest(key, one.guid, one.received_ms, one.flags, one.stored)


def _new_message(one: NewMail) -> NewMessage:
    message = message_of(one.stored)
    assert isinstance(message, Text), "a message without attachments"
    return NewMessage(one.received_ms, one.guid, one.flags, message)


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


def _tree(user: str) -> MailboxKey:
    return MailboxKey(user, tree_id(user), 0)


def _ids(new_id: NewId) -> Iterator[bytes]:
    while True:
        yield new_id()


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """Request to create a folder and its missing parents.

    `first` is put into the folder in the transaction that creates it: no other node can have numbered anything there.
    If another node creates it, or if it is there already, the message is left out.
    """

    user: str
    name: str
    mailbox_id: bytes
    new_id: NewId = field(compare=False)
    use: str | None = None
    first: NewMail | None = field(default=None, repr=False, compare=False)
    can_repeat: bool = True

    @property
    def key(self) -> MailboxKey:
        """The user's tree."""
        return _tree(self.user)

    def command(self, link: PeerLink) -> Command:  # noqa: ARG002 - trees have no number
        """Return a CREATE; the master gives the UIDVALIDITY."""
        return Create(self.user, self.name, self.mailbox_id, uidvalidity=0, use=self.use)

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Done, or Saved if the first message is there, too."""
        spare = _ids(self.new_id)
        done = sequencer.create_folder(tx, self.user, self.name, self.mailbox_id, spare_ids=spare, use=self.use)
        placed = None if self.first is None else sequencer.save_first(tx, self.mailbox_id, self.first)
        return Done(done) if placed is None else _saved(placed)


@dataclass(frozen=True, slots=True)
class RenameRequest:
    """Request to rename a folder with all folders below it."""

    user: str
    mailbox_id: bytes
    name: str
    new_id: NewId = field(compare=False)
    can_repeat: bool = True

    @property
    def key(self) -> MailboxKey:
        """The user's tree."""
        return _tree(self.user)

    def command(self, link: PeerLink) -> Command:  # noqa: ARG002 - trees have no number
        """Return a RENAME."""
        return Rename(self.user, self.mailbox_id, self.name)

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Done."""
        spare = _ids(self.new_id)
        return Done(sequencer.rename_folder(tx, self.user, self.mailbox_id, self.name, spare_ids=spare))


@dataclass(frozen=True, slots=True)
class DeleteRequest:
    """Request to remove a folder from the tree."""

    user: str
    mailbox_id: bytes
    can_repeat: bool = True

    @property
    def key(self) -> MailboxKey:
        """The user's tree."""
        return _tree(self.user)

    def command(self, link: PeerLink) -> Command:  # noqa: ARG002 - trees have no number
        """Return a DELETE."""
        return Delete(self.user, self.mailbox_id)

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Done."""
        return Done(sequencer.delete_folder(tx, self.user, self.mailbox_id))


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """Request to set or clear a subscription."""

    user: str
    name: str
    subscribed: bool
    can_repeat: bool = True

    @property
    def key(self) -> MailboxKey:
        """The user's tree."""
        return _tree(self.user)

    def command(self, link: PeerLink) -> Command:  # noqa: ARG002 - trees have no number
        """Return a SUBSCRIBE."""
        return Subscribe(self.user, self.name, self.subscribed)

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Done."""
        return Done(sequencer.subscribe(tx, self.user, self.name, subscribed=self.subscribed))


@dataclass(frozen=True, slots=True)
class AnnotateRequest:
    """Request to set or remove annotations of a folder, or with `NOWHERE` of the account."""

    user: str
    mailbox_id: bytes
    values: tuple[tuple[str, bytes | None], ...]
    can_repeat: bool = True

    @property
    def key(self) -> MailboxKey:
        """The user's tree."""
        return _tree(self.user)

    def command(self, link: PeerLink) -> Command:  # noqa: ARG002 - trees have no number
        """Return an ANNOTATE."""
        return Annotate(self.user, self.mailbox_id, pack_values(self.values))

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Done."""
        return Done(sequencer.annotate(tx, self.user, self.mailbox_id, self.values))


def _mailbox(link: PeerLink, number: int) -> MailboxKey:
    found = link.key_of(number)
    if found.uidvalidity == 0:
        raise ProtocolError(f"mailbox number {number} is a folder tree, which cannot hold mail")
    return found


def saves_from(link: PeerLink, save: Save, stored: StoredBody) -> list[ChangeRequest]:
    """Return the requests of a peer's SAVE, whose message this node has as `stored`. Raises ProtocolError."""
    _check_received(save)
    return [
        SaveRequest(_mailbox(link, number), save.guid, save.received_ms, save.flags, stored)
        for number in save.mailboxes
    ]


def save_all_from(link: PeerLink, save_all: SaveAll, stored: Sequence[StoredBody]) -> SaveAllRequest:
    """Return the request of a peer's SAVE-ALL, whose messages this node has as `stored`. Raises ProtocolError."""
    size_bytes = sum(one.size_bytes for one in stored)
    if size_bytes > SAVE_ALL_BYTES:
        raise ProtocolError(f"a SAVE-ALL brings {size_bytes} bytes; the limit is {SAVE_ALL_BYTES}")
    if len({message.guid for message in save_all.messages}) < len(save_all.messages):
        raise ProtocolError("a SAVE-ALL has two messages with the same GUID")
    for message in save_all.messages:
        _check_received(message)
    messages = (
        NewMail(message.guid, message.received_ms, message.flags, one)
        for message, one in zip(save_all.messages, stored, strict=True)
    )
    return SaveAllRequest(_mailbox(link, save_all.mailbox), tuple(messages))


def _check_received(save: Save | NewMessage) -> None:
    if abs(save.received_ms) >= NUMBER_MAX:
        raise ProtocolError(f"a message has an impossible time of receipt: {save.received_ms} ms from the epoch")


def from_command(link: PeerLink, command: Command, new_id: NewId) -> list[ChangeRequest]:
    """Return the changes that any other command of a peer requests; none if it is no change.

    Raises ProtocolError for a wrong mailbox number, and for a COPY with more or fewer GUIDs than UIDs.
    """
    key = partial(_mailbox, link)
    match command:
        case Copy():
            if len(command.guids) != len(command.source_uids):
                raise ProtocolError("a COPY must give one GUID for each UID")
            source, destination = key(command.source), key(command.destination)
            spare = command.guids if command.once else tuple(new_id() for _ in command.guids)
            return [CopyRequest(source, destination, command.source_uids, command.guids, spare)]
        case Expunge():
            return [ExpungeRequest(key(command.mailbox), command.uids, command.head)]
        case Store():
            return [
                StoreRequest(
                    key(command.mailbox), command.uids, command.head, command.added, command.removed,
                    command.unchanged_since,
                )
            ]  # fmt: skip
        case Create():
            return [CreateRequest(command.user, command.name, command.mailbox_id, new_id, command.use)]
        case Rename():
            return [RenameRequest(command.user, command.mailbox_id, command.name, new_id)]
        case Delete():
            return [DeleteRequest(command.user, command.mailbox_id)]
        case Subscribe():
            return [SubscribeRequest(command.user, command.name, command.subscribed)]
        case Annotate():
            values = values_of(command)
            if not are_annotations(values):
                raise ProtocolError("an ANNOTATE has an impossible name or value")
            return [AnnotateRequest(command.user, command.mailbox_id, values)]
        case _:
            return []
