"""Mails that come to a mailbox of this side, or get other UIDs there.

The peer sends mails in an order of its own. Here UIDs only grow, so a mail that comes before its turn waits.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, closing
from typing import NamedTuple

from replicator.dsync.conversation.held_texts import HeldTexts
from replicator.dsync.conversation.peer import Peer
from replicator.dsync.errors import DsyncError
from replicator.dsync.replica import ReplicaMailbox, SavedAs
from replicator.dsync.rules.mails.new_mails import Placed
from replicator.dsync.rules.mails.plan import Plan
from replicator.dsync.wire.guids import guid_of
from replicator.dsync.wire.items import Mail
from replicator.dsync.wire.reader import Mark
from replicator.mail.mailstore import MESSAGE_BYTES_MAX


class _Held(NamedTuple):
    """A mail that waits, and where its text stands."""

    mail: Mail
    text: range


class Placement:
    """The mails of a plan, saved and moved in the order of their new UIDs while they come in.

    What is done leaves the plan: that of a large mailbox takes much memory.
    """

    def __init__(self, peer: Peer, box: ReplicaMailbox, plan: Plan, sources: Mapping[str, str]) -> None:
        """`sources`: GUIDs of the mails of which others are copies: the peer sends one text for all of them."""
        self._peer = peer
        self._box = box
        self._uids = array("I", (placed.uid for placed in plan.placed))
        self._guids = b"".join(bytes.fromhex(placed.guid) for placed in plan.placed)
        self._left = plan.placed
        self._left.reverse()
        self._wanted = plan.wanted
        self._held: dict[str, _Held] = {}
        self._instances: dict[str, list[str]] = {}
        for guid in self._wanted.keys() & {*sources, *sources.values()}:
            self._instances.setdefault(sources.get(guid, guid), []).append(guid)
        self._texts = HeldTexts(box)
        self._gone = set[str]()
        self._is_over = False

    async def run(self) -> None:
        """Save and move all, until the end of the peer's mails. Raises DsyncError if one has not come."""
        with closing(self._texts):
            await self._go_on()
            while (mail := await self._peer.one_or_end(Mail)) is not None:
                instances = self._instances_of(guid_of(mail.guid).hex())
                if not instances:
                    raise DsyncError("the peer sent a mail that it was not asked for")
                await self._take(instances, mail)
            self._is_over = True
        missing = len(self._wanted) - len(self._held) - len(self._gone)
        if missing:
            raise DsyncError(f"the peer did not send {missing} of the mails that it was asked for")

    def _instances_of(self, guid: str) -> Sequence[str]:
        """Return the GUIDs here of a mail and its copies that are still to come."""
        instances = self._instances.get(guid, (guid,))
        return [one for one in instances if one in self._wanted and one not in self._held and one not in self._gone]

    def __len__(self) -> int:
        return len(self._uids)

    def has_placed(self, uid: int, guid: bytes) -> bool:
        """Return True if this mail was to get this UID."""
        at = bisect_left(self._uids, uid)
        return self._uids[at : at + 1] == array("I", [uid]) and self._guids.startswith(guid, at * len(guid))

    async def pass_over_rest(self) -> None:
        """Read the rest of the peer's mails after an error, up to the end of their list."""
        while not self._is_over:
            self._is_over = await self._peer.next() is Mark.END_OF_LIST

    async def _take(self, instances: Sequence[str], mail: Mail) -> None:
        if not mail.streams:  # it was expunged meanwhile
            self._gone.update(instances)
        elif self._left and [self._left[-1].guid] == instances:
            await self._save(self._left.pop(), mail, limited(self._peer.text()))
        else:
            await self._hold(instances, mail)
        await self._go_on()

    async def _hold(self, instances: Sequence[str], mail: Mail) -> None:
        held = _Held(mail, await self._texts.add(limited(self._peer.text())))
        self._held |= dict.fromkeys(instances, held)

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
                await self._save(placed, held.mail, self._texts.read(held.text))
            elif placed.guid not in self._gone:
                break
            self._left.pop()
        await self._move(moves)

    async def _move(self, moves: dict[int, int]) -> None:
        if moves:
            await self._box.move(moves)
            moves.clear()

    async def _save(self, placed: Placed, mail: Mail, text: AsyncGenerator[bytes, None]) -> None:
        flags = self._wanted.pop(placed.guid)
        saved = SavedAs(placed.uid, bytes.fromhex(placed.guid), flags, mail.received_s, mail.saved_s)
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
