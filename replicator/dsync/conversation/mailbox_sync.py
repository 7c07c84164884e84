"""One mailbox in both directions: what this side tells of its mails, and what it takes over from the master's.

Each side sends, in this order: annotations, changes, requests, mails, and the new state. This side waits for the
master's changes first, and changes nothing before it has sent what the master asked for. In a backup, the
destination sends requests and its new state only, and the source all but requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import TypeVar

import trio

from replicator.dsync.conversation.peer import Peer
from replicator.dsync.conversation.placement import Placement
from replicator.dsync.errors import DsyncError
from replicator.dsync.replica import ReplicaMailbox
from replicator.dsync.rules.attributes import attributes_to_take, attributes_to_tell
from replicator.dsync.rules.backup import plan_backup
from replicator.dsync.rules.mailbox import Known, Plan, plan_merge
from replicator.dsync.rules.stored_mail import FlagChanges, StoredMail
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
from replicator.errors import MailError

CHANGES_MAX = 1_000_000
"""Mails, with expunged ones, of one mailbox: the list is in memory."""

AT_ONCE = 500
"""Mails of which the event loop computes something at once: some milliseconds."""

ATTRIBUTES_MAX = 1_000
ATTRIBUTE_BYTES_MAX = 64 << 10
"""Annotations of a mailbox, which are in memory, and the octets of each: as many as a folder here can have."""

T = TypeVar("T")


class Direction(Enum):
    """The side or sides that take over changes."""

    BOTH = auto()
    HERE = auto()  # the master stays as it is
    BACKUP_HERE = auto()  # and this side becomes as the master is
    THERE = auto()


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
        self.failure: DsyncError | MailError | None = None  # why this side has not taken over all
        self._names: dict[str, str] = {}  # GUIDs as the master writes them, where that is in another way

    async def run(self, direction: Direction) -> bool:
        """Bring both sides to one state, and return True if one had to be changed. Raises DsyncError, MailError.

        Where that fails while mails come in, the conversation goes on, and `failure` tells why: the master understands
        an error only after its last mailbox.
        """
        known = await self._known()
        tells, takes = direction in {Direction.BOTH, Direction.THERE}, direction is not Direction.THERE
        plan, requests = Plan(uidnext=known.numbers.uidnext), list[MailRequest]()
        changes, attributes = list[MailChange](), list[Attribute]()
        if takes:
            attributes = await self._attributes()
            changes = await self._changes()
        own = await self._box.attributes()
        if tells:
            await self._tell_attributes(own)
            await self._tell_changes(known, changes)
        if takes:
            plan = await _computed(partial(self._plan, known, changes, direction), len(known.mails) + len(changes))
            await self._request(plan)
        if tells:
            requests = await self._peer.all(MailRequest, CHANGES_MAX)
            await self._send_mails(known.mails, requests)
        if takes:
            placement = Placement(self._peer, self._box, plan)
            try:
                await self._carry_out(plan, placement)
                for attribute in attributes_to_take(own, attributes, self._state):
                    await self._box.set_attribute(attribute)
            except (DsyncError, MailError) as error:
                self.failure = error
                await placement.pass_over_rest()
        await self._peer.send(await self._new_state(plan, direction))
        await self._peer.one(MailboxState)
        return bool(plan.expunged or plan.flags or plan.placed or requests)

    def _plan(self, known: Known, changes: Sequence[MailChange], direction: Direction) -> Plan:
        if direction is not Direction.BACKUP_HERE:
            return plan_merge(known, self._theirs, changes, self._names, self._state)
        return plan_backup(known, self._theirs, changes, self._state)

    async def _request(self, plan: Plan) -> None:
        for guid, change in plan.wanted.items():
            await self._peer.send(MailRequest(self._names.get(guid, guid), change.uid))
        await self._peer.end_list()

    async def _known(self) -> Known:
        since = self._state.last_common_modseq if self._state is not None else 0
        mails = [mail for mail in await self._box.mails() if mail.uid < self._own.uidnext]  # the rest has just come
        changed = await self._box.flag_changes(since)
        lasting = {  # a flag that was set and is gone is no news, nor is one that was cleared and is back
            mail.uid: FlagChanges(changed[mail.uid].added & mail.flags, changed[mail.uid].removed - mail.flags)
            for mail in mails
            if mail.uid in changed
        }
        return Known(self._own, mails, await self._box.expunged(since), lasting)

    # ---- telling

    async def _tell_attributes(self, own: Sequence[Attribute]) -> None:
        for attribute in attributes_to_tell(own, self._state):
            await self._peer.send(attribute)
        await self._peer.end_list()

    async def _tell_changes(self, known: Known, theirs: Sequence[MailChange]) -> None:
        r"""Tell this side's changes, and which mails are `\Recent` there: else Dovecot takes them for changed."""
        recent = {change.uid for change in theirs if change.recent}
        for change in await _computed(partial(changes_to_tell, known, self._state), len(known.mails)):
            await self._peer.send(replace(change, recent=True) if change.uid in recent else change)
        await self._peer.end_list()

    async def _send_mails(self, mails: Sequence[StoredMail], requests: Sequence[MailRequest]) -> None:
        """Send the requested mails, ascending by UID. One is sent once, however often it was requested."""
        wanted = {guid_of(request.guid): request for request in requests}
        for mail in mails:
            request = wanted.pop(mail.guid, None)
            if request is not None:
                text = await self._box.text(mail)
                await self._peer.send(
                    Mail(request.guid, mail.uid, mail.received_s, mail.saved_s, streams=text is not None)
                )
                if text is not None:
                    await self._peer.send_text(text)
        for request in wanted.values():
            await self._peer.send(Mail(request.guid, request.uid, streams=False))
        await self._peer.end_list()

    # ---- taking

    async def _attributes(self) -> list[Attribute]:
        """Return the master's annotations, without those whose values are too large for this side."""
        found = list[Attribute]()
        size_bytes = 0
        while (attribute := await self._peer.one_or_end(Attribute)) is not None:
            if attribute.streams:
                value = bytearray()
                async for piece in self._peer.text():
                    value += piece[: ATTRIBUTE_BYTES_MAX + 1 - len(value)]
                attribute = replace(attribute, value=value.decode(errors="surrogateescape"), streams=False)
            size_bytes += len(attribute.value or "")
            if len(attribute.value or "") <= ATTRIBUTE_BYTES_MAX:
                found.append(attribute)
            if len(found) > ATTRIBUTES_MAX or size_bytes > ATTRIBUTES_MAX * ATTRIBUTE_BYTES_MAX:
                raise DsyncError("the peer sent too many annotations of a mailbox")
        return found

    async def _changes(self) -> list[MailChange]:
        """Return the master's changes, with GUIDs as this side writes them."""
        changes = list[MailChange]()
        latest = 0
        async with aclosing(self._peer.each(MailChange, CHANGES_MAX)) as received:
            async for change in received:
                if change.uid <= latest:
                    raise DsyncError("the peer sent changes whose UIDs do not ascend")
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

    async def _carry_out(self, plan: Plan, placement: Placement) -> None:
        """Take over the master's changes while its mails come in."""
        box = self._box
        await box.raise_numbers(uidnext=1, highestmodseq=self._theirs.highestmodseq)
        if plan.expunged:
            await box.expunge(plan.expunged)
        if plan.flags:
            await box.set_flags(plan.flags)
        await placement.run()
        await box.raise_numbers(uidnext=plan.uidnext, highestmodseq=self._theirs.highestmodseq)

    async def _new_state(self, plan: Plan, direction: Direction) -> MailboxState:
        """Return up to where both sides are equal now: only up to the old mails if others have changed the mailbox."""
        after = await self._box.numbers()
        own = self._own
        if plan.own_uids or self.failure is not None:  # nothing is known to be equal, so the next sync compares all
            return MailboxState(own.mailbox_id, own.uidvalidity, 0, 0, after.messages)
        is_alone = after.uidnext == plan.uidnext
        common_modseq = own.highestmodseq if direction is Direction.THERE else self._theirs.highestmodseq
        return MailboxState(
            own.mailbox_id,
            own.uidvalidity,
            plan.uidnext - 1 if is_alone else own.uidnext - 1,
            # One less than is true: the master would not ask again for a mailbox in which it has changed nothing.
            max(common_modseq - 1, 0) if is_alone else own.highestmodseq,
            after.messages,
            changes_during_sync=not is_alone,
        )


async def _computed(work: Callable[[], T], mails: int) -> T:
    """Compute something about so many mails: in a thread, where that would hold up other tasks."""
    return work() if mails <= AT_ONCE else await trio.to_thread.run_sync(work)


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
