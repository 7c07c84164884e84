"""The mail store in the core's process: `MailStore`, and what imports and Dovecot's dsync need besides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from protocol.values import UidSet
from replicator.mail.changed_users import ChangedUsers
from replicator.mail.compact_uids import CompactUids
from replicator.mail.guids_by_uid import GuidsByUid
from replicator.mail.last_changes import AnnotationChange, FlagChange, LastChange, TreeChanges
from replicator.mail.listing import Listing
from replicator.mail.mailstore.bodies import BodyReader
from replicator.mail.mailstore.mail_store import MailStore
from replicator.mail.mailstore.values import Folder
from replicator.mail.scratch import Scratch
from replicator.mail.view import MailboxView

ANY_DOVECOT = ""
"""In place of a Dovecot's name: the note of an import, which counts for the first sync with any."""


class CoreMailStore(MailStore, Protocol):
    """A `MailStore`, and what imports and Dovecot's dsync need besides: to keep what clients know of a mailbox.

    Design section 3, "Numbers of another server", has the rules.
    """

    async def raise_numbers(self, folder: Folder, uidnext: int, modseq: int) -> None:
        """Raise a folder's UIDNEXT and HIGHESTMODSEQ to at least these. UIDs that are left out are never used.

        HIGHESTMODSEQ is to be raised before mail and flags come: clients ask for the changes above it. Raises
        FolderNotFoundError, MailboxFullError; UnavailableError also while a neighbour runs a version that does not know
        raised numbers.
        """
        ...

    async def renumber(self, mailbox: MailboxView, wanted: Mapping[int, int]) -> None:
        """Give messages, by the UIDs that the view shows, other UIDs; each keeps its GUID, and has a new placement.

        A message whose new UID is below UIDNEXT gets the next one; the order of UIDs is that of the old ones. One that
        has another UID by then keeps that. Raises as `raise_numbers` does.
        """
        ...

    async def know_as(self, folder: Folder, guid: bytes) -> None:
        """Let Dovecots know a folder by a GUID of theirs, which stands for one folder of the user at a time.

        Raises FolderNotFoundError, MailboxFullError; UnavailableError as `raise_numbers` does.
        """
        ...

    async def unfinished_sync(self, folder: Folder) -> int | None:
        """Return the lowest last common UID of syncs that have begun to place a Dovecot's mails, and have not ended.

        Those with all Dovecots count, since one may come under another address. Return None if there are none.
        """
        ...

    async def note_unfinished_sync(self, folder: Folder, dovecot: str, common_uid: int | None) -> None:
        """Note the last common UID as a sync begins to place mails; None once it has ended.

        Raises FolderNotFoundError; UnavailableError as `raise_numbers` does.
        """
        ...

    async def note_purge(self, user: str, uidnext: int | None) -> None:
        """Note that all that a former user has is about to be removed, or has been: Dovecots are told none of it.

        `uidnext`: of INBOX, after all has gone; 1 if mail is left; None before. Raises UnavailableError.
        """
        ...

    async def delete_seen(self, folder: Folder, seen: Listing) -> None:
        """Delete a folder and these messages, as they were listed. With others, it stays until these are gone.

        Raises FolderNotFoundError.
        """
        ...

    def watch_users(self) -> ChangedUsers:
        """Watch which users' mail changes from now on, until the node ends."""
        ...

    def has_seen(self, entry: str) -> bool:
        """Return True if the entry with this name, `ORIGIN:SEQ`, is or was in this node's log."""
        ...

    async def users_after(self, user: str, most: int) -> Sequence[str]:
        """Return the next users with mail or folders here whose names come after this one, in their order."""
        ...

    async def tree_changes(self, user: str) -> TreeChanges:
        """Return the user's folders and subscriptions, and what users deleted of them, each with its last change."""
        ...

    async def folder_known_as(self, user: str, guid: bytes, mailbox_id: bytes) -> Folder | None:
        """Return the user's folder of this id, if clients see it, and Dovecots know it by this GUID.

        None also where that can only be told by all folders: `tree_changes` does.
        """
        ...

    async def last_change(self, folder: Folder) -> LastChange:
        """Return what `tree_changes` tells of the last change in a folder. Raises FolderNotFoundError."""
        ...

    async def annotation_changes(self, user: str, folder: Folder | None) -> Sequence[AnnotationChange]:
        """Return annotations as `annotations` does, removed ones included, each with its last change."""
        ...

    async def expunged(self, folder: Folder, scratch: Scratch | None = None) -> GuidsByUid:
        """Return the GUIDs of messages that this node remembers as expunged by users, and not by a purge, by UID.

        Raises DiskFullError, UnavailableError.
        """
        ...

    async def body_of(self, folder: Folder, guid: bytes) -> BodyReader | None:
        """Return the body of a message that the folder has, or had; None if this node keeps it no longer.

        Raises ContentUnavailableError.
        """
        ...

    async def flag_changes(self, folder: Folder, uids: UidSet, above: int) -> Mapping[int, Sequence[FlagChange]]:
        """Return each flag's last change, by UID, of those of these messages that have a MODSEQ above this one."""
        ...

    async def list_messages(
        self, folder: Folder, uids: UidSet | None = None, scratch: Scratch | None = None
    ) -> Listing:
        """Return all messages, or those of `uids`, as this node shows them now, without keeping the mailbox in memory.

        `scratch`: where a long listing is to be. Raises NotReadyError, as the next three do; DiskFullError,
        UnavailableError.
        """
        ...

    async def list_changed(
        self, folder: Folder, above_uid: int, above_modseq: int, scratch: Scratch | None = None
    ) -> Listing:
        """Return the messages above a UID, and those that have changed above a MODSEQ, as `list_messages` does."""
        ...

    async def part_of(self, folder: Folder, uids: UidSet) -> MailboxView:
        """Return a view of these messages alone, as this node shows them now. It does not change."""
        ...

    async def accounts_for(self, folder: Folder, uids: CompactUids, up_to: int) -> bool:
        """Return True if all messages up to a UID are among `uids`, and this node remembers the rest as expunged.

        `uids` are not above that UID.
        """
        ...

    async def has_guid(self, folder: Folder, begin: bytes) -> bool:
        """Return True if the folder has a message whose GUID begins so."""
        ...

    async def uids_of(self, folder: Folder, guids: Collection[bytes]) -> UidSet:
        """Return the UIDs of those of these messages that the mailbox has."""
        ...

    async def keep_uidvalidity(self, folder: Folder, uidvalidity: int | None) -> Folder:
        """Give a folder that never had mail the UIDVALIDITY of another server; with None, its own again. Return it.

        Raises FolderNotFoundError, InvalidNameError; FolderExistsError if the folder has had mail, or another folder of
        the user has had the UIDVALIDITY. Raises UnavailableError as `raise_numbers` does.
        """
        ...
