"""Mails that come to a mailbox of this side, or get other UIDs there.

The peer sends mails in an order of its own. Here UIDs only grow, so a mail that comes before its turn waits.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

import trio

from replicator.dsync.conversation.held_texts import HeldTexts, Places
from replicator.dsync.conversation.peer import Peer
from replicator.dsync.errors import DsyncError
from replicator.dsync.replica import ReplicaMailbox, SavedAs
from replicator.dsync.rules.mails.comparison import Told
from replicator.dsync.rules.mails.placed_mails import Placed
from replicator.dsync.rules.mails.plan import Plan
from replicator.dsync.wire.items import Mail
from replicator.dsync.wire.reader import Mark
from replicator.mail.dovecot_guids import guid_of
from replicator.mail.mailstore import MESSAGE_BYTES_MAX

MOVES_AT_ONCE = 500
"""Mails that are moved together: the list of them is in memory."""


class _Held(NamedTuple):
    """A mail that waits, and where its text stands."""

    mail: Mail
    text: Places


class Placement:
    """The mails of a plan, saved and moved in the order of their new UIDs while they come in.

    Here, a mail that comes is named by its UID at the peer. `_copies`: UIDs of mails for which the peer sends one text,
    by the GUIDs of their sources.
    """

    def __init__(self, peer: Peer, box: ReplicaMailbox, plan: Plan, told: Told) -> None:
        """`plan` was made by what the peer has told."""
        self._peer = peer
        self._box = box
        self._placed, self._returned, self._changes = plan.placed, plan.returned, told.changes
        self._next = 0  # position of the first one that has not been saved or moved
        self._is_awaited = bytearray(len(told.changes))
        self._copies: dict[bytes, list[int]] = {}
        sources = {*told.sources.values()}
        for placed in plan.placed:
            if placed.comes and placed.peers is not None:
                self._is_awaited[self._changes.position(placed.peers)] = True
                source = told.sources.get(placed.guid, placed.guid)
                if source in sources:
                    self._copies.setdefault(source, []).append(placed.peers)
        self._held: dict[int, _Held] = {}
        self._gone = set[int]()
        self._texts = HeldTexts(box)
        self._is_over = False

    async def run(self) -> None:
        """Save and move all, until the end of the peer's mails. Raises DsyncError if one has not come."""
        await self._go_on()
        while (mail := await self._peer.one_or_end(Mail)) is not None:
            uids = await self._awaited_as(mail)
            if not uids:
                raise DsyncError("the peer sent a mail that it was not asked for")
            await self._take(uids, mail)
        self._is_over = True
        missing = self._is_awaited.count(True)
        if missing:
            raise DsyncError(f"the peer did not send {missing} of the mails that it was asked for")
        self._changes.clear()  # they take memory

    async def _awaited_as(self, mail: Mail) -> Sequence[int]:
        """Return the UIDs of a mail and its copies that are still to come."""
        guid = guid_of(mail.guid)
        uids = self._copies.get(guid)
        if uids is None:
            awaited = self._placed[self._next] if self._next < len(self._placed) else None
            if awaited is not None and awaited.peers is not None and awaited.guid == guid:
                return [awaited.peers]  # nearly always: Dovecot sends most mails in their order, without UIDs
            change = self._changes.find(mail.uid)
            if change is not None and change.guid == guid and self._awaits(mail.uid):
                return [mail.uid]
            uids = await trio.to_thread.run_sync(self._uids_of, guid)
        return [uid for uid in uids if self._awaits(uid)]

    def _awaits(self, uid: int) -> bool:
        return bool(self._is_awaited[self._changes.position(uid)])

    def _uids_of(self, guid: bytes) -> list[int]:
        """Return the UIDs of a mail that the peer sends without its UID, as one that was expunged meanwhile."""
        return [*self._changes.uids_of(guid)]

    async def pass_over_rest(self) -> None:
        """Read the rest of the peer's mails after an error, up to the end of their list."""
        while not self._is_over:
            self._is_over = await self._peer.next() is Mark.END_OF_LIST

    async def _take(self, uids: Sequence[int], mail: Mail) -> None:
        for uid in uids:
            self._is_awaited[self._changes.position(uid)] = False
        placed = self._placed[self._next]  # it awaits one that comes
        if not mail.streams:  # it was expunged meanwhile
            self._gone.update(uids)
        elif [placed.peers] == uids:
            self._next += 1
            await self._save(placed, mail, limited(self._peer.text()))
        else:
            held = _Held(mail, await self._texts.add(limited(self._peer.text())))
            self._held |= dict.fromkeys(uids, held)
        await self._go_on()

    async def _go_on(self) -> None:
        """Do what can be done before the next mail comes."""
        moves: dict[int, int] = {}
        while self._next < len(self._placed):
            placed = self._placed[self._next]
            held = self._held.pop(placed.peers or 0, None)
            if placed.own is not None:
                moves[placed.own] = placed.uid
                if len(moves) == MOVES_AT_ONCE:
                    await self._move(moves)
            elif held is not None:
                await self._move(moves)
                await self._save(placed, held.mail, self._texts.read(held.text))
            elif placed.peers not in self._gone:
                break
            self._next += 1
        await self._move(moves)

    @property
    def lacks_some(self) -> bool:
        """True if the peer had expunged some of the mails before it could send them."""
        return bool(self._gone)

    def has_placed(self, uid: int, guid: bytes) -> bool:
        """Return True if this mail was to get this UID."""
        placed = self._placed.find(uid)
        return placed is not None and placed.guid == guid

    async def _move(self, moves: dict[int, int]) -> None:
        if moves:
            await self._box.move(moves)
            moves.clear()

    async def _save(self, placed: Placed, mail: Mail, text: AsyncGenerator[bytes, None]) -> None:
        change = self._changes.by_uid(placed.peers or 0)
        flags = self._returned.get(change.uid, change.flags)
        saved = SavedAs(placed.uid, placed.guid, flags, mail.received_s, mail.saved_s)
        async with aclosing(text):
            await self._box.save(saved, text)


async def limited(text: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield a text. Raises DsyncError if it is too large for a mail here: the sync fails, and nobody loses the mail."""
    size_bytes = 0
    async with aclosing(text):
        async for piece in text:
            size_bytes += len(piece)
            if size_bytes > MESSAGE_BYTES_MAX:
                raise DsyncError(f"the peer sent a mail of more than {MESSAGE_BYTES_MAX} bytes")
            yield piece
