"""One mailbox in both directions: what this side tells of its mails, and what it takes over from the master's.

Each side sends, in this order: annotations, changes, requests, mails, and the new state. This side waits with its
requests for the master's changes, and changes nothing before it has sent what the master asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from replicator.dsync.conversation.peer import Peer
from replicator.dsync.errors import DsyncError
from replicator.dsync.replica import ReplicaMailbox, SavedAs, StoredMail
from replicator.dsync.rules.mailbox import Known, Plan, plan_merge
from replicator.dsync.rules.new_mails import Placed
from replicator.dsync.wire.guids import guid_of
from replicator.dsync.wire.items import (
    Attribute,
    ChangeType,
    Mail,
    Mailbox,
    MailboxState,
    MailChange,
    MailRequest,
)

CHANGES_MAX = 1_000_000
"""Mails, with expunged ones, of one mailbox: the list is in memory."""

ATTRIBUTES_MAX = 1_000
ATTRIBUTE_BYTES_MAX = 1 << 20


class MailboxSync:
    """The sync of one mailbox, after both sides have told its numbers."""

    def __init__(
        self, peer: Peer, box: ReplicaMailbox, own: Mailbox, theirs: Mailbox, state: MailboxState | None
    ) -> None:
        """`state`: what the master remembers of the last sync; None: nothing, so all mails are compared."""
        self._peer = peer
        self._box = box
        self._own = own
        self._theirs = theirs
        self._state = state
        self._names: dict[str, str] = {}  # GUIDs as the master writes them, where that is in another way

    async def run(self) -> bool:
        """Bring both sides to one state, and return True if one had to be changed. Raises DsyncError, MailError."""
        known = await self._known()
        await self._tell_attributes()
        await self._tell_changes(known)
        await self._take_attributes()
        changes = await self._changes()
        plan = plan_merge(known, self._theirs, changes, self._names, self._state)
        for guid, change in plan.wanted.items():
            await self._peer.send(MailRequest(self._names.get(guid, guid), change.uid))
        await self._peer.end_list()
        requests = await self._peer.all(MailRequest, CHANGES_MAX)
        await self._send_mails(known.mails, requests)
        await self._carry_out(plan)
        await self._peer.send(await self._new_state(plan))
        await self._peer.one(MailboxState)
        return bool(plan.expunged or plan.flags or plan.placed or requests)

    async def _known(self) -> Known:
        since = self._state.last_common_modseq if self._state is not None else 0
        box = self._box
        return Known(self._own, await box.mails(), await box.expunged(since), await box.flag_changes(since))

    # ---- telling

    async def _tell_attributes(self) -> None:
        await self._peer.end_list()

    async def _tell_changes(self, known: Known) -> None:
        for change in changes_to_tell(known, self._state):
            await self._peer.send(change)
        await self._peer.end_list()

    async def _send_mails(self, mails: Sequence[StoredMail], requests: Sequence[MailRequest]) -> None:
        """Send the requested mails, ascending by UID. One is sent once, however often it was requested."""
        wanted = {guid_of(request.guid): request for request in requests}
        for mail in mails:
            request = wanted.pop(mail.guid, None)
            if request is not None:
                await self._peer.send(Mail(request.guid, mail.uid, mail.received_s, mail.saved_s))
                await self._peer.send_text(self._box.text(mail))
        for request in wanted.values():
            await self._peer.send(Mail(request.guid, request.uid, streams=False))
        await self._peer.end_list()

    # ---- taking

    async def _take_attributes(self) -> None:
        number = 0
        while (attribute := await self._peer.one_or_end(Attribute)) is not None:
            number += 1
            if number > ATTRIBUTES_MAX:
                raise DsyncError(f"the peer sent more than {ATTRIBUTES_MAX} annotations of a mailbox")
            if attribute.streams:
                async for _ in self._peer.text():
                    pass

    async def _changes(self) -> list[MailChange]:
        """Return the master's changes, with GUIDs as this side writes them."""
        changes = list[MailChange]()
        latest = 0
        while (change := await self._peer.one_or_end(MailChange)) is not None:
            if change.uid <= latest or len(changes) >= CHANGES_MAX:
                raise DsyncError("the peer sent changes whose UIDs do not ascend, or too many")
            if change.type is not ChangeType.EXPUNGE and not change.guid:
                raise DsyncError("the peer sent a mail without a GUID")
            latest = change.uid
            changes.append(replace(change, guid=self._guid(change.guid)) if change.guid else change)
        return changes

    def _guid(self, name: str) -> str:
        guid = guid_of(name).hex()
        if guid != name:
            self._names[guid] = name
        return guid

    async def _carry_out(self, plan: Plan) -> None:
        """Take over the master's changes while its mails come in."""
        box = self._box
        await box.raise_numbers(uidnext=1, highestmodseq=self._theirs.highestmodseq)
        if plan.expunged:
            await box.expunge(plan.expunged)
        if plan.flags:
            await box.set_flags(plan.flags)
        await _Placement(self._peer, box, plan).run()
        await box.raise_numbers(uidnext=plan.uidnext, highestmodseq=self._theirs.highestmodseq)

    async def _new_state(self, plan: Plan) -> MailboxState:
        """Return up to where both sides are equal now: only up to the old mails if others have changed the mailbox."""
        after = await self._box.numbers()
        own = self._own
        is_alone = after.uidnext == plan.uidnext
        return MailboxState(
            own.mailbox_id,
            own.uidvalidity,
            plan.uidnext - 1 if is_alone else own.uidnext - 1,
            # One less than is true: the master would not ask again for a mailbox in which it has changed nothing.
            max(self._theirs.highestmodseq - 1, 0) if is_alone else own.highestmodseq,
            after.messages,
            changes_during_sync=not is_alone,
        )


class _Placement:
    """Mails that come or get other UIDs. The master sends them in its own order; they are saved by their new UIDs."""

    def __init__(self, peer: Peer, box: ReplicaMailbox, plan: Plan) -> None:
        self._peer = peer
        self._box = box
        self._plan = plan
        self._left = list(reversed(plan.placed))
        self._held: dict[str, tuple[Mail, bytes]] = {}

    async def run(self) -> None:
        """Save and move all, until the end of the master's mails. Raises DsyncError if one has not come."""
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
            await self._save(self._left.pop(), mail, self._peer.text())
        else:
            self._held[guid] = mail, b"".join([piece async for piece in self._peer.text()])
        await self._go_on()

    async def _go_on(self) -> None:
        """Do what can be done before the next mail comes."""
        moves: dict[int, int] = {}
        while self._left:
            placed = self._left[-1]
            if placed.own is not None:
                moves[placed.own] = placed.uid
            elif placed.guid in self._held:
                await self._move(moves)
                mail, text = self._held.pop(placed.guid)
                await self._save(placed, mail, _whole(text))
            else:
                break
            self._left.pop()
        await self._move(moves)

    async def _move(self, moves: dict[int, int]) -> None:
        if moves:
            await self._box.move(moves)
            moves.clear()

    async def _save(self, placed: Placed, mail: Mail, text: AsyncIterator[bytes]) -> None:
        flags = self._plan.wanted[placed.guid].flags
        await self._box.save(
            SavedAs(placed.uid, bytes.fromhex(placed.guid), flags, mail.received_s, mail.saved_s), text
        )


async def _whole(text: bytes) -> AsyncIterator[bytes]:
    yield text


def changes_to_tell(known: Known, state: MailboxState | None) -> list[MailChange]:
    """Return this side's changes, ascending by UID. With a state, only those since then."""
    changes = [
        MailChange(ChangeType.EXPUNGE, uid, guid.hex())
        for uid, guid in known.expunged.items()
        if state is None or uid <= state.last_common_uid
    ]
    for mail in known.mails:
        if state is None or mail.uid > state.last_common_uid:
            kind = ChangeType.SAVE
        elif mail.modseq > state.last_common_modseq:
            kind = ChangeType.FLAGS
        else:
            continue
        changed = known.flag_changes.get(mail.uid)
        changes.append(
            MailChange(
                kind,
                mail.uid,
                mail.guid.hex(),
                mail.modseq,
                mail.flags,
                changed.added if changed is not None else frozenset(),
                changed.removed if changed is not None else frozenset(),
            )
        )
    return sorted(changes, key=lambda change: change.uid)


def states_by_id(states: Sequence[MailboxState]) -> Mapping[bytes, MailboxState]:
    """Return the states by their mailboxes."""
    return {state.mailbox_id: state for state in states}
