"""One mailbox in both directions: what this side tells of its mails, and what it takes over from the peer's.

Each side sends, in this order: annotations, changes, requests, mails, and the new state. This side waits for the
master's changes first, and changes nothing before it has sent what the peer asked for. In a backup, the
destination sends requests and its new state only, and the source all but requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeVar

import trio

from replicator.dsync.conversation.direction import Direction
from replicator.dsync.conversation.peer import Peer
from replicator.dsync.conversation.placement import Placement
from replicator.dsync.errors import DsyncError
from replicator.dsync.replica import ReplicaMailbox
from replicator.dsync.rules.attributes import attributes_to_take, attributes_to_tell
from replicator.dsync.rules.backup import plan_backup
from replicator.dsync.rules.copies import with_own_guids
from replicator.dsync.rules.mailbox import Known, Plan, flags_of_moved, plan_merge
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

MOVE_S = 10.0
"""Seconds in which mail that came meanwhile is moved, even where the sync breaks off."""

ATTRIBUTES_MAX = 1_000
ATTRIBUTE_BYTES_MAX = 64 << 10
"""Annotations of a mailbox, which are in memory, and the octets of each: as many as a folder here can have."""

T = TypeVar("T")


class MailboxSync:
    """The sync of one mailbox, after both sides have told its numbers."""

    def __init__(
        self,
        peer: Peer,
        box: ReplicaMailbox,
        own: Mailbox,
        theirs: Mailbox,
        state: MailboxState | None,
        *,
        is_master: bool = False,
    ) -> None:
        """`state`: what the master remembers of the last sync; None: nothing, so all mails are compared.

        `is_master`: this side has begun the sync.
        """
        self._peer = peer
        self._box = box
        self._own = own
        self._theirs = theirs
        self._state = state
        self._is_master = is_master
        self.failure: DsyncError | MailError | None = None  # why this side has not taken over all
        self._names: dict[str, str] = {}  # GUIDs as the peer writes them, where that is in another way
        self._sources: dict[str, str] = {}  # GUIDs of mails, by those of their copies
        self._has_strangers = False
        self._lacks_moved = False  # mails that were to get other UIDs were expunged before
        self.is_overtaken = False  # somebody else has changed the mailbox meanwhile, on either side

    async def run(self, direction: Direction) -> bool:
        """Bring both sides to one state, and return True if one had to be changed. Raises DsyncError, MailError.

        Where that fails while mails come in, the conversation goes on, and `failure` tells why: the master understands
        an error only after its last mailbox.
        """
        known = await self._known()
        tells, takes = direction in {Direction.BOTH, Direction.THERE}, direction is not Direction.THERE
        plan, requests = Plan(uidnext=known.numbers.uidnext, common_uid=known.numbers.uidnext - 1), list[MailRequest]()
        changes, attributes = list[MailChange](), list[Attribute]()
        if takes:
            attributes = await self._attributes()
            changes = await self._changes()
            changes = await _computed(partial(self._with_own_guids, known, changes), len(changes))
        own = await self._box.attributes()
        if tells:
            await self._tell_attributes(own)
            moved = await _computed(partial(flags_of_moved, known, changes, self._state), len(known.mails))
            await self._tell_changes(known, changes, moved)
        if takes:
            plan = await _computed(partial(self._plan, known, changes, direction), len(known.mails) + len(changes))
            await self._request(plan)
        if tells:
            requests = await self._peer.all(MailRequest, CHANGES_MAX)
            await self._send_mails(known.mails, requests)
        if takes:
            placement = Placement(self._peer, self._box, plan, self._sources)
            try:
                await self._carry_out(plan, placement)
                for attribute in attributes_to_take(own, attributes, self._state):
                    await self._box.set_attribute(attribute)
            except (DsyncError, MailError) as error:
                self.failure = error
                await placement.pass_over_rest()
        state = await self._new_state(plan, direction)
        await self._peer.send(state)
        theirs = await self._peer.one(MailboxState)
        self.is_overtaken = state.changes_during_sync or theirs.changes_during_sync
        common_uid = min(state.last_common_uid, theirs.last_common_uid)
        common_modseq = min(state.last_common_modseq, theirs.last_common_modseq) if tells else 0
        await self._box.synced(common_uid, common_modseq)
        return bool(plan.expunged or plan.flags or plan.placed or requests or state.changes_during_sync)

    def _plan(self, known: Known, changes: Sequence[MailChange], direction: Direction) -> Plan:
        if direction is not Direction.BACKUP_HERE:
            return plan_merge(known, self._theirs, changes, self._names, self._state)
        return plan_backup(known, self._theirs, changes, self._state)

    async def _request(self, plan: Plan) -> None:
        wanted = {self._names.get(guid, guid): change.uid for guid, change in plan.wanted.items()}
        for name, uid in wanted.items():
            await self._peer.send(MailRequest(name, uid))
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
        return Known(self._own, mails, await self._box.expunged(since), lasting, self._is_master)

    # ---- telling

    async def _tell_attributes(self, own: Sequence[Attribute]) -> None:
        for attribute in attributes_to_tell(own, self._state):
            await self._peer.send(attribute)
        await self._peer.end_list()

    async def _tell_changes(
        self, known: Known, theirs: Sequence[MailChange], flags: Mapping[int, frozenset[str]]
    ) -> None:
        r"""Tell this side's changes, and which mails are `\Recent` there: else Dovecot takes them for changed.

        `flags`: those that mails are to have, by UID, where these are others.
        """
        recent = {change.uid for change in theirs if change.recent}
        for change in await _computed(partial(changes_to_tell, known, self._state), len(known.mails)):
            is_recent, name = change.uid in recent, self._told_name(change)
            if is_recent or name != change.guid or change.uid in flags:
                told = flags.get(change.uid, change.flags)
                await self._peer.send(replace(change, guid=name, flags=told, recent=is_recent))
            else:
                await self._peer.send(change)
        await self._peer.end_list()

    def _told_name(self, change: MailChange) -> str:
        """Return the GUID as the peer writes it, if it has told: else it would take the mail for another one."""
        if change.type is ChangeType.EXPUNGE:
            return self._sources.get(change.guid, change.guid)
        return self._names.get(change.guid, change.guid)

    async def _send_mails(self, mails: Sequence[StoredMail], requests: Sequence[MailRequest]) -> None:
        """Send the requested mails, ascending by UID. One is sent once, however often it was requested."""
        wanted = {guid_of(request.guid): request for request in requests}
        for mail in mails:
            source = self._sources.get(mail.guid.hex())
            request = wanted.pop(mail.guid if source is None else bytes.fromhex(source), None)
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
        """Return the peer's annotations, without those whose values are too large for this side."""
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
        """Return the peer's changes, with GUIDs as this side writes them."""
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

    def _with_own_guids(self, known: Known, changes: Sequence[MailChange]) -> list[MailChange]:
        own = {uid: guid.hex() for uid, guid in known.expunged.items()} | {
            mail.uid: mail.guid.hex() for mail in known.mails
        }
        gone = {change.uid for change in changes if change.type is ChangeType.EXPUNGE}
        common = 0 if self._state is None else self._state.last_common_uid
        kept = {mail.guid.hex() for mail in known.mails if mail.uid <= common and mail.uid not in gone}
        changes, self._sources = with_own_guids(changes, own, kept)
        self._names |= {guid: self._names.get(source, source) for guid, source in self._sources.items()}
        return changes

    async def _carry_out(self, plan: Plan, placement: Placement) -> None:
        """Take over the peer's changes while its mails come in."""
        box = self._box
        await box.raise_numbers(uidnext=1, highestmodseq=self._theirs.highestmodseq)
        if plan.expunged:
            await box.expunge(plan.expunged)
        if plan.flags:
            await box.change_flags(plan.flags)
        try:
            await placement.run()
            await box.raise_numbers(uidnext=plan.uidnext, highestmodseq=self._theirs.highestmodseq)
        finally:
            with trio.move_on_after(MOVE_S, shield=True):
                self._has_strangers = await self._move_strangers(plan)

    async def _move_strangers(self, plan: Plan) -> bool:
        """Move mails that have come by other ways, or got other UIDs because of these, above those of the sync.

        The peer may have given their UIDs to mails that it has expunged. Return True if there are any.
        """
        if plan.uidnext <= self._own.uidnext:
            return False
        expected = {placed.uid: placed.guid for placed in plan.placed}
        new = [mail for mail in await self._box.mails() if self._own.uidnext <= mail.uid < plan.uidnext]
        there = {mail.uid for mail in new}
        self._lacks_moved = any(placed.own is not None and placed.uid not in there for placed in plan.placed)
        strangers = [mail.uid for mail in new if expected.get(mail.uid) != mail.guid.hex()]
        if strangers:
            uidnext = max((await self._box.numbers()).uidnext, plan.uidnext)
            await self._box.move({uid: uidnext + at for at, uid in enumerate(strangers)})
        return bool(strangers)

    async def _new_state(self, plan: Plan, direction: Direction) -> MailboxState:
        """Return up to where both sides are equal now: only up to the old mails if others have changed the mailbox."""
        after = await self._box.numbers()
        own = self._own
        if plan.own_uids or direction is Direction.HERE or self.failure is not None or self._lacks_moved:
            # Mails may have other UIDs at the peer, or be on one side only, so the next sync compares all.
            return MailboxState(own.mailbox_id, own.uidvalidity, 0, 0, after.messages)
        is_alone = after.uidnext == plan.uidnext and not self._has_strangers
        common_modseq = own.highestmodseq if direction is Direction.THERE else self._theirs.highestmodseq
        return MailboxState(
            own.mailbox_id,
            own.uidvalidity,
            plan.common_uid if is_alone else min(plan.common_uid, own.uidnext - 1),
            self._told_modseq(common_modseq) if is_alone else own.highestmodseq,
            after.messages,
            changes_during_sync=not is_alone,
        )

    def _told_modseq(self, common_modseq: int) -> int:
        """Return the common MODSEQ to tell: to a master, one less than is true.

        A Dovecot does not ask for a mailbox in which it has changed nothing itself. So it finds that it has.
        """
        return common_modseq if self._is_master else max(common_modseq - 1, 0)


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
