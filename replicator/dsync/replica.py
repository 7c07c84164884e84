"""The mail of one user, as dsync needs it.

Mails have GUIDs of 16 bytes, which stay with them when they get other UIDs. Every change of a mailbox gets a MODSEQ
above all that the mailbox has had. Errors are those of `replicator.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from replicator.dsync.rules.given_names import GivenName
from replicator.dsync.rules.mails.flags import FlagChanges
from replicator.dsync.rules.tree import Step, Tree
from replicator.dsync.wire.items import Attribute, Mailbox, MailboxState
from replicator.mail.compact_uids import CompactUids
from replicator.mail.guids_by_uid import GuidsByUid
from replicator.mail.listing import ListedMessage, Listing
from replicator.mail.scratch import Scratch


@dataclass(frozen=True, slots=True)
class SavedAs:
    """Properties of a mail to be saved. `uid` is at or above UIDNEXT."""

    uid: int
    guid: bytes
    flags: frozenset[str]
    received_s: int
    saved_s: int


class ReplicaMailbox(Protocol):
    """One mailbox."""

    async def numbers(self) -> Mailbox:
        """Return the mailbox's numbers."""
        ...

    async def mails(self) -> Listing:
        """Return all mails, ascending by UID."""
        ...

    async def changed(self, above_uid: int, above_modseq: int) -> Listing:
        """Return the mails above a UID, and those that have changed above a MODSEQ, ascending by UID.

        Raises UnavailableError if `can_tell_since` is no longer true.
        """
        ...

    async def above(self, uid: int) -> Listing:
        """Return the mails above a UID, ascending by UID."""
        ...

    async def named(self, uids: CompactUids, guids: Collection[bytes]) -> Listing:
        """Return those mails with these UIDs or GUIDs that were not read yet, ascending by UID."""
        ...

    async def expunged(self, since: int) -> GuidsByUid:
        """Return the GUIDs of mails expunged since a common MODSEQ, or before, by UID, as far as they are known."""
        ...

    async def flag_changes(self, since: int, uids: Sequence[int]) -> Mapping[int, FlagChanges]:
        """Return by UID what users have changed of these mails above a MODSEQ, as far as it is known.

        Changes by a sync are not among them.
        """
        ...

    async def text(self, mail: ListedMessage) -> AsyncGenerator[bytes, None]:
        """Return the text of a mail that was read, in pieces, even if it has been expunged meanwhile."""
        ...

    async def check_room(self, mails: int, size_bytes: int) -> None:
        """Raise QuotaExceededError if the user has no room for so many more mails, of so many bytes."""
        ...

    @property
    def scratch(self) -> Scratch:
        """A file for what this sync would hold too much of in memory. Listings that are returned go on there."""
        ...

    async def attributes(self) -> Sequence[Attribute]:
        """Return all annotations, and those that were removed, as far as they are known."""
        ...

    async def set_attribute(self, attribute: Attribute) -> None:
        """Set or remove an annotation. One that this side cannot have is left out."""
        ...

    async def save(self, mail: SavedAs, text: AsyncIterator[bytes]) -> None:
        """Save a mail with this UID. Nothing is saved if the text raises an error."""
        ...

    async def move(self, uids: Mapping[int, int]) -> None:
        """Give mails other UIDs at or above UIDNEXT: values, ascending, for keys."""
        ...

    async def expunge(self, uids: Sequence[int]) -> None:
        """Expunge the mails that exist."""
        ...

    async def change_flags(self, changes: Mapping[FlagChanges, Sequence[int]]) -> None:
        """Set and clear flags of the mails that exist, values. Others stay as users have set them meanwhile."""
        ...

    async def can_tell_since(self, common_uid: int, common_modseq: int, /) -> bool:
        """Return True if changes since the sync with these numbers (`synced`) tell all that the peer has to know.

        They do not if the sync is not known, as it was with another node, which other changes have reached; if mails
        have got other UIDs since; or if there are copies (`rules.mails.copies`).
        """
        ...

    async def synced(self, common_uid: int, common_modseq: int, /) -> None:
        """Remember that the peer knows the mails up to this UID, and all that was known here as the sync began.

        With 0 for the MODSEQ, the peer may not know of earlier changes of flags, and the next sync tells them all.
        """
        ...

    async def unfinished(self) -> int | None:
        """Return the lowest last common UID of syncs that began to place mails, with any peer, and have not ended."""
        ...

    async def note_unfinished(self, common_uid: int | None) -> None:
        """Note the last common UID as a sync begins to place mails; None once both sides have placed all."""
        ...

    async def take_uidvalidity(self, uidvalidity: int) -> None:
        """Change the UIDVALIDITY of a mailbox that has never had mail."""
        ...

    async def raise_numbers(self, *, uidnext: int, highestmodseq: int) -> None:
        """Raise UIDNEXT and HIGHESTMODSEQ to these numbers, at least."""
        ...


class Replica(Protocol):
    """All mail of one user."""

    @property
    def user(self) -> str:
        """The user's name."""
        ...

    async def tree(self) -> Tree:
        """Return the folders, and what is known of deleted ones."""
        ...

    async def carry_out(self, step: Step) -> None:
        """Make a change in the tree."""
        ...

    @property
    def given_names(self) -> Mapping[bytes, GivenName]:
        """The names that earlier syncs have given to folders, by their mailboxes."""
        ...

    def note_given_names(self, names: Mapping[bytes, GivenName], /) -> None:
        """Remember names that this sync has given to folders."""
        ...

    def common_uid(self, mailbox_id: bytes, peer: str, /) -> int:
        """Return up to which UID the peer has seen the mailbox in the last sync; 0 if that is not known."""
        ...

    def seen_uid(self, mailbox_id: bytes, uidvalidity: int, peer: str, /) -> int:
        """Return up to which UID this side has seen the peer's mailbox before it was deleted here; 0: not known.

        `uidvalidity`: the peer's.
        """
        ...

    async def states(self, peer: str, /) -> Sequence[MailboxState]:
        """Return up to where mailboxes were equal after their last syncs with a peer, where changes since tell all."""
        ...

    async def unchanged(self, peer: str, /) -> AbstractSet[bytes]:
        """Return the mailboxes in which nothing has changed here since their last syncs with a peer."""
        ...

    def forget(self, peer: str, mailbox_id: bytes | None = None, /) -> None:
        """Forget the last sync of a mailbox with a peer; with None, of all mailboxes: the next one compares all."""
        ...

    def full_sync_age_s(self, dovecot: str, /) -> float:
        """Return how long ago the last sync ended that has compared all mails; infinity if that is not known.

        `dovecot`: its address, as the node's configuration names it.
        """
        ...

    def note_full_sync(self, dovecot: str, /) -> None:
        """Remember that a sync that has compared all mails ends now."""
        ...

    def held_up(self, mailbox_id: bytes, /) -> str | None:
        """Return why the mailbox is to be passed over, as the last sync has broken off in it; None if it is not."""
        ...

    def mailbox(self, mailbox_id: bytes, peer: str, /) -> AbstractAsyncContextManager[ReplicaMailbox | None]:
        """Hold a mailbox during its sync with a peer of this name; None if it is not here."""
        ...


OpenReplica = Callable[[str], AbstractAsyncContextManager[Replica]]
"""Opens the mail of a user for one sync."""
