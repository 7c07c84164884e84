"""The mails that a sync has read: it changes only what it has seen, and remembers what the peer knows then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

import trio

from protocol.values import UID_MAX, UidSet
from replicator.mail.compact_uids import CompactUids
from replicator.mail.dovecot_guids import COPY_MARK
from replicator.mail.listing import ListedMessage, Listing
from replicator.mail.mailstore import CoreMailStore, Folder
from replicator.mail.scratch import Scratch
from replicator.mail.view import MailboxView

AT_ONCE = 500
"""Mails that are read from the database together, to be changed: 350 KiB."""


def in_parts(uids: Sequence[int]) -> Iterator[UidSet]:
    """Yield these UIDs, some at a time."""
    for first in range(0, len(uids), AT_ONCE):
        yield UidSet.of(uids[first : first + AT_ONCE])


class ReadMails:
    """Mails of a folder as a sync has read them."""

    def __init__(self, mail: CoreMailStore, folder: Folder, scratch: Scratch) -> None:
        self._mail = mail
        self._scratch = scratch
        self._folder = folder
        self._read: list[Listing] = []

    async def all(self) -> Listing:
        """Return all mails."""
        return self._noted(await self._mail.list_messages(self._folder, scratch=self._scratch))

    async def changed(self, above_uid: int, above_modseq: int) -> Listing:
        """Return the mails above a UID, and those that have changed above a MODSEQ."""
        return self._noted(await self._mail.list_changed(self._folder, above_uid, above_modseq, self._scratch))

    async def above(self, uid: int) -> Listing:
        """Return the mails above a UID."""
        return self._noted(await self._mail.list_messages(self._folder, UidSet(((uid + 1, UID_MAX),)), self._scratch))

    async def named(self, uids: CompactUids) -> Listing:
        """Return those mails with these UIDs that were not read yet."""
        read = await self.uids()
        new = await trio.to_thread.run_sync(lambda: uids.without(read).as_uid_set())
        return self._noted(await self._mail.list_messages(self._folder, new, self._scratch))

    def _noted(self, mails: Listing) -> Listing:
        self._read.append(mails)
        return mails

    def forget(self) -> None:
        """Forget all mails that were read."""
        self._read.clear()

    async def find(self, uids: Iterable[int]) -> dict[int, ListedMessage]:
        """Return those of the mails with these UIDs that were read, by UID, each as it was read last."""

        def found() -> dict[int, ListedMessage]:
            return {uid: mail for uid in uids if (mail := self._find(uid)) is not None}

        return await trio.to_thread.run_sync(found)

    def _find(self, uid: int) -> ListedMessage | None:
        found = (mails.find(uid) for mails in reversed(self._read))
        return next((mail for mail in found if mail is not None), None)

    async def same(self, view: MailboxView) -> dict[int, ListedMessage]:
        """Return the mails whose UIDs name them in this view, too, as `find` does: merges may give UIDs to others."""
        read = await self.find(view.messages)
        return {uid: mail for uid, mail in read.items() if mail.guid == view.messages[uid].guid}

    async def uids(self) -> CompactUids:
        """Return the UIDs of all mails that were read."""
        read = [*self._read]

        def all_uids() -> CompactUids:
            return reduce(CompactUids.union, (mails.uids() for mails in read), CompactUids())

        return await trio.to_thread.run_sync(all_uids)

    async def have_copies(self) -> bool:
        """Return True if there are copies among the mails that were read."""
        read = [*self._read]
        return await trio.to_thread.run_sync(lambda: any(mails.has_guid(COPY_MARK) for mails in read))
