"""Mails that come to a mailbox of this side, or get other UIDs there.

The master sends mails in an order of its own. Here UIDs only grow, so a mail that comes before its turn waits: in
memory, or if there are many, in a temporary file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from os import SEEK_END
from tempfile import SpooledTemporaryFile
from typing import NamedTuple

import trio

from replicator.dsync.conversation.peer import Peer
from replicator.dsync.errors import DsyncError
from replicator.dsync.replica import ReplicaMailbox, SavedAs
from replicator.dsync.rules.mailbox import Plan
from replicator.dsync.rules.new_mails import Placed
from replicator.dsync.wire.guids import guid_of
from replicator.dsync.wire.items import Mail
from replicator.mail.mailstore import MESSAGE_BYTES_MAX

HELD_BYTES = 4 << 20
"""Bytes of waiting mails that are in memory; more are in a file."""

PIECE_BYTES = 64 << 10


class _Held(NamedTuple):
    """A mail that waits, and where in the file its text is."""

    mail: Mail
    start: int
    end: int


class Placement:
    """The mails of a plan, saved and moved in the order of their new UIDs while they come in."""

    def __init__(self, peer: Peer, box: ReplicaMailbox, plan: Plan) -> None:
        self._peer = peer
        self._box = box
        self._plan = plan
        self._left = list(reversed(plan.placed))
        self._held: dict[str, _Held] = {}

    async def run(self) -> None:
        """Save and move all, until the end of the master's mails. Raises DsyncError if one has not come."""
        with closing(SpooledTemporaryFile(max_size=HELD_BYTES)) as file:
            self._file = file
            await self._go_on()
            asked = set(self._plan.wanted)
            while (mail := await self._peer.one_or_end(Mail)) is not None:
                guid = guid_of(mail.guid).hex()
                if guid not in asked:
                    raise DsyncError("the peer sent a mail that it was not asked for")
                asked.remove(guid)
                await self._take(guid, mail)
        if asked:
            raise DsyncError(f"the peer did not send {len(asked)} of the mails that it was asked for")

    async def _take(self, guid: str, mail: Mail) -> None:
        if not mail.streams:  # it was expunged meanwhile
            self._left = [one for one in self._left if one.guid != guid]
        elif self._left and self._left[-1].guid == guid:
            await self._save(self._left.pop(), mail, limited(self._peer.text()))
        else:
            await self._hold(guid, mail)
        await self._go_on()

    async def _hold(self, guid: str, mail: Mail) -> None:
        start = end = self._file.seek(0, SEEK_END)
        async for piece in limited(self._peer.text()):
            end += await trio.to_thread.run_sync(self._file.write, piece)
        self._held[guid] = _Held(mail, start, end)

    async def _go_on(self) -> None:
        """Do what can be done before the next mail comes."""
        moves: dict[int, int] = {}
        while self._left:
            placed = self._left[-1]
            if placed.own is not None:
                moves[placed.own] = placed.uid
            elif placed.guid in self._held:
                await self._move(moves)
                held = self._held.pop(placed.guid)
                await self._save(placed, held.mail, self._text(held))
            else:
                break
            self._left.pop()
        await self._move(moves)

    async def _text(self, held: _Held) -> AsyncIterator[bytes]:
        for at in range(held.start, held.end, PIECE_BYTES):
            self._file.seek(at)
            yield await trio.to_thread.run_sync(self._file.read, min(PIECE_BYTES, held.end - at))

    async def _move(self, moves: dict[int, int]) -> None:
        if moves:
            await self._box.move(moves)
            moves.clear()

    async def _save(self, placed: Placed, mail: Mail, text: AsyncIterator[bytes]) -> None:
        flags = self._plan.wanted[placed.guid].flags
        await self._box.save(
            SavedAs(placed.uid, bytes.fromhex(placed.guid), flags, mail.received_s, mail.saved_s), text
        )


async def limited(text: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a text. Raises DsyncError if it is too large for a mail here: the sync fails, and nobody loses the mail."""
    size_bytes = 0
    async for piece in text:
        size_bytes += len(piece)
        if size_bytes > MESSAGE_BYTES_MAX:
            raise DsyncError(f"the peer sent a mail of more than {MESSAGE_BYTES_MAX} bytes")
        yield piece
