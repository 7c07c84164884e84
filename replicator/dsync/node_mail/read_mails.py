"""The mails that a sync has read: it changes only what it has seen, and remembers what the peer knows then."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import trio

from protocol.values import UidSet
from replicator.dsync.rules.ascending import find
from replicator.mail.view import MailboxView, Message

AT_ONCE = 500
"""Mails that the event loop looks at in one go: less than a millisecond."""


class ReadMails:
    """Mails as a sync has read them, with references to what the view has anyway."""

    def __init__(self) -> None:
        self._read: list[Sequence[Message]] = []  # each ascending by UID

    async def all(self, view: MailboxView) -> Sequence[Message]:
        """Return all mails, ascending by UID."""
        messages = view.snapshot()
        self._read.append(await trio.to_thread.run_sync(sorted, messages))
        return self._read[-1]

    async def changed(self, view: MailboxView, above_uid: int, above_modseq: int) -> Sequence[Message]:
        """Return the mails above a UID, and those that have changed above a MODSEQ, ascending by UID."""
        self._read.append(await changed(view, above_uid, above_modseq))
        return self._read[-1]

    async def named(self, view: MailboxView, uids: UidSet) -> Sequence[Message]:
        """Return those mails with these UIDs that were not read yet, ascending by UID."""
        found = list[Message]()
        for number, uid in enumerate(uids):
            if uid in view.messages and self.guid(uid) is None:
                found.append(view.messages[uid])
            if number % AT_ONCE == AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
        self._read.append(found)
        return found

    def guid(self, uid: int) -> bytes | None:
        """Return the GUID that a mail with this UID had as it was read last; None if none was read."""
        found = (find(messages, uid) for messages in reversed(self._read))
        return next((message.guid for message in found if message is not None), None)

    def is_same(self, view: MailboxView, uid: int) -> bool:
        """Return True if the UID names the mail that it has named before: a merge may give it to another one."""
        message = view.messages.get(uid)
        return message is not None and message.guid == self.guid(uid)

    async def uids(self) -> UidSet:
        """Return the UIDs of all mails that were read."""
        read = [*self._read]

        def each() -> UidSet:
            some = (UidSet.ascending(message.uid for message in messages) for messages in read)
            return reduce(UidSet.union, some, UidSet())

        return await trio.to_thread.run_sync(each)


async def changed(view: MailboxView, above_uid: int, above_modseq: int) -> Sequence[Message]:
    """Return the mails above a UID, and those that have changed above a MODSEQ, ascending by UID.

    Where these are many, or the view does not remember them, all mails are looked at, in a thread.
    """
    latest = view.changed_above(above_modseq)
    new = len(view.messages) - view.messages.bisect_right(above_uid)
    if latest is not None and new <= AT_ONCE:
        uids = {uid for uid in latest if uid in view.messages and view.messages[uid].modseq > above_modseq}
        return [view.messages[uid] for uid in sorted({*uids, *view.messages.irange(above_uid + 1)})]
    messages = view.snapshot()
    return await trio.to_thread.run_sync(
        lambda: sorted(one for one in messages if one.uid > above_uid or one.modseq > above_modseq)
    )
