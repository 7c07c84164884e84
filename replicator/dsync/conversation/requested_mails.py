"""The mails that the peer asks for, and sending them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from functools import partial
from heapq import merge

import trio

from replicator.dsync.conversation.computing import computed, computed_each
from replicator.dsync.conversation.peer import Peer
from replicator.dsync.replica import ReplicaMailbox
from replicator.dsync.rules.mails.comparison import Told
from replicator.dsync.wire.items import Mail, MailRequest
from replicator.errors import ContentUnavailableError
from replicator.mail.compact_uids import CompactUids
from replicator.mail.dovecot_guids import guid_of
from replicator.mail.listing import NO_MESSAGES, ListedMessage, Listing


class RequestedMails:
    """The requests of one list. Nearly all ask for mails as they were told: of these, only UIDs are kept."""

    def __init__(self, peer: Peer, box: ReplicaMailbox, told: Told, mails: Listing) -> None:
        """`mails`: those that may be asked for, ascending by UID."""
        self._peer = peer
        self._box = box
        self._told = told
        self._mails = mails
        self._uids = CompactUids()
        self._others: dict[bytes, MailRequest] = {}  # by GUID

    def __bool__(self) -> bool:
        """Return True if some are left to be sent."""
        return bool(self._uids or self._others)

    async def receive(self, most: int) -> None:
        """Read the requests, which may be so many."""
        copied = {*self._told.sources.values()}
        async with aclosing(self._peer.parts(MailRequest, most)) as parts:
            async for part in parts:
                await computed(partial(self._take, part, copied), self._mails)

    def _take(self, requests: Iterable[MailRequest], copied: AbstractSet[bytes]) -> None:
        """Take requests. `copied`: GUIDs of mails that have copies."""
        for request in requests:
            is_copied = bool(copied) and guid_of(request.guid) in copied
            mail = None if is_copied else self._mails.find(request.uid)
            if mail is not None and request.guid == self._told.name_of(mail):
                self._uids.add(mail.uid)
            else:
                self._others[guid_of(request.guid)] = request

    async def send(self) -> None:
        """Send the mails, ascending by UID. One is sent once, however often it was requested."""
        mails, found = self._mails, NO_MESSAGES
        if self._others:
            named = (mail for mail in mails if self._guid(mail) in self._others)
            found = await trio.to_thread.run_sync(Listing.of, named, mails.scratch)
        name_of = self._told.name_of
        as_told = ((mail, name_of(mail)) for uid in self._uids if (mail := mails.find(uid)) is not None)
        both = merge(as_told, ((mail, None) for mail in found), key=lambda one: one[0].uid)
        async with aclosing(computed_each(both, mails)) as each:
            async for mail, name in each:
                if name is not None:
                    await self._send_named(mail, name)
                elif (request := self._others.pop(self._guid(mail), None)) is not None:
                    await self._send_named(mail, request.guid)
        for request in self._others.values():
            await self._peer.send(Mail(request.guid, request.uid, streams=False))
        await self._peer.end_list()

    def _guid(self, mail: ListedMessage) -> bytes:
        """Return the GUID by which the peer asks for a mail: for a copy, that of its source."""
        return self._told.sources.get(mail.guid, mail.guid)

    async def _send_named(self, mail: ListedMessage, name: str) -> None:
        """Send a mail. It is not told as expunged where it cannot be read: later syncs would expunge it here.

        Raises ContentUnavailableError, which names its UID.
        """
        try:
            await self._send_mail(mail, name)
        except ContentUnavailableError as error:
            raise ContentUnavailableError(f"UID {mail.uid}: {error}") from error

    async def _send_mail(self, mail: ListedMessage, name: str) -> None:
        """Send a mail, even if it has been expunged meanwhile; the next sync tells that.

        A Dovecot that does not get the last mail that it asks for deletes the files of those that it has saved before.
        """
        text = await self._box.text(mail)
        saved_ms = mail.received_ms if mail.saved_ms is None else mail.saved_ms
        dates_s = mail.received_ms // 1000, saved_ms // 1000
        async with aclosing(text):
            await self._peer.send(Mail(name, mail.uid, *dates_s))
            await self._peer.send_text(text)
