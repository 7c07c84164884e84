"""The mail store as every door has it, in the core's process or in one of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from protocol.values import UidSet
from replicator.mail.folder_watch import FolderSubscription
from replicator.mail.mailstore.bodies import BodyReader, BodySink
from replicator.mail.mailstore.derived_data import SearchTextSlice
from replicator.mail.mailstore.values import (
    CopiedMessages,
    Folder,
    FolderStatus,
    NewMessage,
    Quota,
    SavedMessage,
    StoreResult,
)
from replicator.mail.view import MailboxView, Message


class MailStore(Protocol):
    """The node's mail, as doors see it.

    Any method raises NotReadyError while this node lacks the cluster's state that it needs.
    """

    async def wait_ready(self) -> None:
        """Return if this node serves clients now or soon. Raises NotReadyError otherwise: log-ins are refused."""
        ...

    async def folders(self, user: str) -> Sequence[Folder]:
        """Return all folders of the user: INBOX first, the rest by name."""
        ...

    async def folder(self, user: str, name: str) -> Folder:
        """Return one folder, creating INBOX if needed. Raises FolderNotFoundError."""
        ...

    async def subscriptions(self, user: str) -> Sequence[str]:
        """Return the names that the user has subscribed to, in their order; the folders need not exist."""
        ...

    async def annotations(self, user: str, folder: Folder | None) -> Mapping[str, bytes]:
        """Return the annotations of a folder or, with None, of the user's account: values by names, in their order."""
        ...

    async def annotated(self, user: str, name: str) -> Mapping[bytes, bytes]:
        """Return the values of one annotation of all the user's folders that have it, by mailbox ids."""
        ...

    async def annotate(self, user: str, folder: Folder | None, values: Mapping[str, bytes | None]) -> None:
        """Set annotations of a folder or, with None, of the user's account; a value of None removes one.

        All are changed or none. Raises FolderNotFoundError, InvalidNameError, MailboxFullError.
        """
        ...

    async def create_folder(self, user: str, name: str, use: str | None = None) -> Folder:
        """Create a folder, with these special uses (RFC 6154), and its missing parents.

        Raises FolderExistsError, InvalidNameError, MailboxFullError.
        """
        ...

    async def rename_folder(self, user: str, old: str, new: str) -> None:
        """Rename a folder with all folders below it. INBOX itself stays, empty: its mail moves to the new name.

        Raises FolderNotFoundError, FolderExistsError, InvalidNameError.
        """
        ...

    async def delete_folder(self, user: str, name: str) -> None:
        """Delete the folder and its mail; folders below it stay. Raises FolderNotFoundError, InvalidNameError."""
        ...

    async def subscribe(self, user: str, name: str, *, subscribed: bool) -> None:
        """Set or clear a subscription. Raises InvalidNameError."""
        ...

    async def catch_up(self, user: str, name: str | None = None) -> bool:
        """Wait until this node shows what clients of the nodes in reach have heard OK for.

        That is: the user's folders, and the mail of the folder of this name, if there is one. Return False if it is not
        here after a short while.
        """
        ...

    async def watch_folders(self, user: str) -> FolderSubscription:
        """Watch the user's folders, subscriptions and counters of folders from now on. The caller closes it.

        No mailbox is loaded for that.
        """
        ...

    async def status(self, folder: Folder) -> FolderStatus:
        """Return the folder's counters without loading the mailbox."""
        ...

    async def count_recent(self, folder: Folder) -> int:
        r"""Return the number of messages that are `\Recent` at this node. That takes time for each of them."""
        ...

    async def quota(self, user: str) -> Quota:
        """Return usage and limits of the user's mail. Looks at all folders at the first call for a user only."""
        ...

    async def check_quota(self, user: str, messages: int, size_bytes: int) -> None:
        """Raise QuotaExceededError if the user has no room for messages that a client is about to send."""
        ...

    async def open_mailbox(self, folder: Folder) -> MailboxView:
        """Return the live view of a mailbox, kept in memory at least while it has subscribers or references."""
        ...

    async def claim_recent(self, view: MailboxView) -> int:
        r"""Return the UID at and above which messages are `\Recent` in this session, and in no later session.

        Each node counts on its own: RFC 9051 has dropped `\Recent`, and a cluster-wide guarantee is not worth a round
        trip.
        """
        ...

    def receive(self) -> AbstractAsyncContextManager[BodySink]:
        """Receive one body of any size. Whatever was not saved within the block is discarded on leaving it."""
        ...

    async def save(self, folder: Folder, message: NewMessage) -> SavedMessage:
        """Store one message.

        Raises FolderNotFoundError if the folder was deleted meanwhile, QuotaExceededError, and storage errors.
        """
        ...

    async def deliver(self, user: str, message: NewMessage) -> SavedMessage:
        """Store one message in the user's INBOX, creating INBOX if needed. Raises as `save`."""
        ...

    async def save_all(self, folder: Folder, messages: Sequence[NewMessage]) -> Sequence[SavedMessage]:
        """Store these messages in their order, all or none. Raises as `save`."""
        ...

    async def copy(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        """Copy the messages that exist, all or none. If there are none, the result has no pairs.

        Raises FolderNotFoundError, QuotaExceededError, and storage errors.
        """
        ...

    async def move(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        """Copy the messages, then expunge the copied ones (RFC 6851): an interruption leaves two copies, never none.

        No quota is in its way.
        """
        ...

    async def store_flags(
        self,
        mailbox: MailboxView,
        uids: UidSet,
        *,
        added: frozenset[str] = frozenset(),
        removed: frozenset[str] = frozenset(),
        unchanged_since: int | None = None,
    ) -> StoreResult:
        """Set and clear flags of the messages that exist."""
        ...

    async def expunge(self, mailbox: MailboxView, uids: UidSet) -> None:
        """Remove the messages that exist, whatever their flags."""
        ...

    async def read_body(self, message: Message) -> BodyReader:
        """Return the message's body, byte for byte as received. Raises ContentUnavailableError."""
        ...

    async def read_bodies(self, messages: Iterable[Message], max_bytes: int) -> Mapping[bytes, BodyReader]:
        """Return bodies of the first of these messages, by content hash, together at most so many octets.

        Each thread switch costs more than reading a small body, so small ones are read together. Those that are left
        out, such as large ones, are for `read_body`.
        """
        ...

    async def outlines(self, messages: Iterable[Message], version: int) -> Mapping[bytes, bytes]:
        """Return the outlines of this version that this node has for these messages, by content hash.

        A message without one must be read.
        """
        ...

    async def search_texts(self, messages: Sequence[Message]) -> SearchTextSlice:
        """Return the search texts that this node has for the first of these messages: for as many as fit in memory."""
        ...
