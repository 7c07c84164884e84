"""Requests to change a user's folders, subscriptions and annotations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from protocol.commands import Annotate, Command, Create, Delete, Done, Rename, Reply, Subscribe
from replicator.replication.links.link import PeerLink
from replicator.replication.writes.requests.change_request import check_raises, saved
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.sequencing import folder_sequencer, sequencer
from replicator.store.log.sequencing.sequencer import NewMail
from resync.entry import pack_values, tree_id
from resync.node_annotations import OWN

NewId = Callable[[], bytes]
"""A source of new ids (`Environment.new_guid`)."""


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
        done = folder_sequencer.create_folder(tx, self.user, self.name, self.mailbox_id, spare_ids=spare, use=self.use)
        placed = None if self.first is None else sequencer.save_first(tx, self.mailbox_id, self.first)
        return Done(done) if placed is None else saved(placed)


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
        return Done(folder_sequencer.rename_folder(tx, self.user, self.mailbox_id, self.name, spare_ids=spare))


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
        return Done(folder_sequencer.delete_folder(tx, self.user, self.mailbox_id))


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
        return Done(folder_sequencer.subscribe(tx, self.user, self.name, subscribed=self.subscribed))


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

    def command(self, link: PeerLink) -> Command:
        """Return an ANNOTATE. Raises UnavailableError."""
        if any(name.startswith(OWN) for name, _ in self.values):
            check_raises(link)
        return Annotate(self.user, self.mailbox_id, pack_values(self.values))

    def run(self, tx: Transaction) -> Reply:
        """Number the change; the reply is Done."""
        return Done(folder_sequencer.annotate(tx, self.user, self.mailbox_id, self.values))
