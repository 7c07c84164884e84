"""One mailbox in both directions: what this side tells of its mails, and what it takes over from the peer's.

Each side sends, in this order: annotations, changes, requests, mails, and the new state. This side waits for the
master's changes first, and changes nothing before it has sent what the peer asked for. In a backup, the
destination sends requests and its new state only, and the source all but requests.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from heapq import merge
from operator import attrgetter

from replicator.dsync.conversation.computing import computed, computed_each
from replicator.dsync.conversation.direction import Direction
from replicator.dsync.conversation.peer import Peer
from replicator.dsync.conversation.placement import Placement
from replicator.dsync.conversation.requested_mails import RequestedMails
from replicator.dsync.errors import DsyncError
from replicator.dsync.replica import ReplicaMailbox
from replicator.dsync.rules.attributes import attributes_to_take, attributes_to_tell
from replicator.dsync.rules.mails.backup import plan_backup
from replicator.dsync.rules.mails.comparison import ChangesSince, Comparison, Told, concerned, disputed
from replicator.dsync.rules.mails.flags import FlagChanges, interned, lasting
from replicator.dsync.rules.mails.merging import flags_of_moved, plan_merge
from replicator.dsync.rules.mails.plan import Known, Plan
from replicator.dsync.rules.mails.telling import Account
from replicator.dsync.wire.fields import UID_MAX
from replicator.dsync.wire.items import (
    Attribute,
    ChangeType,
    Mailbox,
    MailboxState,
    MailChange,
    MailRequest,
)
from replicator.errors import MailError
from replicator.mail.compact_uids import CompactUids
from replicator.mail.guids_by_uid import GuidsByUid
from replicator.mail.listing import Listing

CHANGES_MAX = 1_000_000
"""Mails, with expunged ones, of one mailbox."""

ATTRIBUTES_MAX = 1_000
ATTRIBUTE_BYTES_MAX = 64 << 10
"""Annotations of a mailbox, which are in memory, and the octets of each: as many as a folder here can have."""


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
        self._told = Told()
        self._has_strangers = False
        self._is_unfinished = False  # as noted, though all is done here
        self._may_differ = False  # in UIDs: mails that were to get some were expunged before, on either side
        self.is_overtaken = False  # somebody else has changed the mailbox meanwhile, on either side

    async def run(self, direction: Direction) -> bool:
        """Bring both sides to one state, and return True if one had to be changed. Raises DsyncError, MailError.

        Where that fails while mails come in, the conversation goes on, and `failure` tells why: the master understands
        an error only after its last mailbox.
        """
        tells, takes = direction in {Direction.BOTH, Direction.THERE}, direction is not Direction.THERE
        plan, has_changed = Plan(uidnext=self._own.uidnext, common_uid=self._own.uidnext - 1), False
        if takes:
            await self._raise_modseq()
        mails, expunged = await self._mails(), await self._box.expunged(self._since)
        attributes = await self._attributes() if takes else []
        if takes:
            self._told = await self._received(mails, expunged)
        known = await self._known(mails, expunged, everything=not takes)
        mails = mails if self._state is None else known.mails
        own = await self._box.attributes()
        if takes:
            plan = await computed(partial(self._plan, known, direction), known.mails, self._told.changes)
            has_changed = bool(plan.expunged or plan.flags or plan.placed)
        else:
            plan.can_strand = self._is_unfinished = bool(known.mails)  # where the peer has them is not known
        await self._note_unfinished(known, plan)
        if tells:
            await self._tell_attributes(own)
            await self._tell_changes(known, mails)
        if takes:
            await self._request(plan)
        if tells:
            has_changed = await self._send_mails(mails) or has_changed
        if takes:
            await self._take_over(known, plan, attributes_to_take(own, attributes, self._state))
        state = await self._new_state(plan, direction)
        await self._peer.send(state)
        theirs = await self._peer.one(MailboxState)
        if self._is_unfinished:  # the peer, too, has placed all now
            await self._box.note_unfinished(None)
        self.is_overtaken = state.changes_during_sync or theirs.changes_during_sync
        common_uid = min(state.last_common_uid, theirs.last_common_uid)
        common_modseq = min(state.last_common_modseq, theirs.last_common_modseq) if tells else 0
        await self._box.synced(common_uid, common_modseq)
        return has_changed or state.changes_during_sync

    def _plan(self, known: Known, direction: Direction) -> Plan:
        """Return what to do. Raises DsyncError where the mails that get new UIDs may be more than there are UIDs."""
        if max(self._own.uidnext, self._theirs.uidnext) + len(known.mails) + len(self._told.changes) > UID_MAX:
            raise DsyncError("too few UIDs are left in the mailbox")
        if direction is not Direction.BACKUP_HERE:
            return plan_merge(known, self._theirs, self._told, self._state)
        return plan_backup(known, self._theirs, self._told, self._state)

    async def _note_unfinished(self, known: Known, plan: Plan) -> None:
        """Note that the sync has begun, where it matters, before the peer hears of mails: it may move some at once."""
        before = UID_MAX if known.unfinished is None else known.unfinished
        if plan.can_strand:
            await self._box.note_unfinished(min(self._told.common_uid, before))

    async def _request(self, plan: Plan) -> None:
        """Ask for mails: for one text where there are copies."""
        told, asked = self._told, set[str]()
        copied = {*told.sources.values()}
        coming = ((mail.peers, mail.guid) for mail in plan.placed if mail.comes and mail.peers is not None)
        requests = ((MailRequest(told.name_of_peers(uid, guid), uid), guid) for uid, guid in coming)
        async with aclosing(computed_each(requests, plan.placed)) as each:
            async for request, guid in each:
                if request.guid not in asked:
                    await self._peer.send(request)
                if told.sources.get(guid, guid) in copied:
                    asked.add(request.guid)
        await self._peer.end_list()

    # ---- knowing

    @property
    def _since(self) -> int:
        """The MODSEQ up to which both sides were equal; 0 if that is not known."""
        return self._state.last_common_modseq if self._state is not None else 0

    async def _mails(self) -> Listing:
        """Return the mails that have changed since the state, or else all."""
        if self._state is None:
            mails = await self._box.mails()
        else:
            mails = await self._box.changed(self._state.last_common_uid, self._state.last_common_modseq)
        latest = self._own.uidnext - 1  # those above have just come
        return await computed(lambda: mails[: mails.first_above(latest)], mails)

    async def _known(self, mails: Listing, expunged: GuidsByUid, *, everything: bool) -> Known:
        """Return what is known of the mails that the peer's changes concern, and of those that have changed.

        `everything`: of all, since the peer tells nothing.
        """
        told = self._told
        if self._state is not None:
            mails = await self._with_named(mails)
        elif not everything:
            mails = await computed(partial(concerned, mails, told), mails)
        await computed(partial(told.identify, mails, expunged), mails, told.changes)
        uids = await computed(partial(disputed, mails, told), mails, told.changes)
        changed = await self._box.flag_changes(self._since, uids)

        def news() -> Mapping[int, FlagChanges]:
            return interned((uid, lasting(changes, mails.by_uid(uid).flags)) for uid, changes in changed.items())

        unfinished = await self._box.unfinished()
        return Known(self._own, mails, expunged, await computed(news, changed), self._is_master, unfinished)

    async def _with_named(self, mails: Listing) -> Listing:
        """Return these mails, and those that the peer's changes name, ascending by UID."""
        told, uidnext = self._told, self._own.uidnext
        uids, guids = await computed(told.named, told.changes)
        named = await self._box.named(uids, guids)

        def joined() -> Listing:
            both = merge(mails, named[: named.first_above(uidnext - 1)], key=attrgetter("uid"))
            return Listing.of(both, self._box.scratch)

        return await computed(joined, mails, named)

    # ---- telling

    async def _tell_attributes(self, own: Sequence[Attribute]) -> None:
        await self._peer.send_list(attributes_to_tell(own, self._state))

    async def _tell_changes(self, known: Known, mails: Listing) -> None:
        """Tell this side's changes. `mails`: all, or with a state those that `known` has."""
        told, state = self._told, self._state
        moved = await computed(partial(flags_of_moved, known, told, state), known.mails, told.changes)
        changes = Account(known, told, state, moved).changes(mails)
        async with aclosing(computed_each(changes, mails)) as each:
            async for change in each:
                await self._peer.send(change)
        await self._peer.end_list()

    async def _send_mails(self, mails: Listing) -> bool:
        """Send the mails that the peer asks for, and return True if there are any."""
        requested = RequestedMails(self._peer, self._box, self._told, mails)
        await requested.receive(CHANGES_MAX)
        are_any = bool(requested)
        await requested.send()
        return are_any

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

    async def _received(self, mails: Listing, expunged: Mapping[int, bytes]) -> Told:
        """Return what the peer's changes tell. `mails`: as `_mails` returns them."""
        state = self._state
        if state is None:
            compared = partial(Comparison, mails, expunged, await self._box.unfinished())
            reading: Comparison | ChangesSince = await computed(compared, mails)
        else:
            reading = ChangesSince(state.last_common_uid, self._box.scratch)
        async with aclosing(self._changes()) as parts:
            async for part in parts:
                await computed(partial(reading.take_all, part), mails, reading.told.changes)
        return await computed(reading.finish, mails)

    async def _changes(self) -> AsyncGenerator[Sequence[MailChange], None]:
        """Yield the peer's changes as they come in, some at a time."""
        latest = 0
        async with aclosing(self._peer.parts(MailChange, CHANGES_MAX)) as parts:
            async for part in parts:
                for change in part:
                    if change.uid <= latest:
                        raise DsyncError("the peer sent changes whose UIDs do not ascend")
                    if change.type is not ChangeType.EXPUNGE and not change.guid:
                        raise DsyncError("the peer sent a mail without a GUID")
                    latest = change.uid
                yield part

    async def _raise_modseq(self) -> None:
        """Raise HIGHESTMODSEQ to the peer's: what changes here from now on lies above what both sides will agree on."""
        try:
            await self._box.raise_numbers(uidnext=1, highestmodseq=self._theirs.highestmodseq)
        except (DsyncError, MailError) as error:
            self.failure = error

    async def _take_over(self, known: Known, plan: Plan, attributes: Iterable[Attribute]) -> None:
        """Take over the peer's changes. Where that fails, the rest of its mails is passed over."""
        work = partial(Placement, self._peer, self._box, plan, self._told)
        placement = await computed(work, plan.placed)
        if self.failure is not None:
            await placement.pass_over_rest()
            return
        try:
            await self._carry_out(known, plan, placement)
            for attribute in attributes:
                await self._box.set_attribute(attribute)
        except (DsyncError, MailError) as error:
            self.failure = error
            await placement.pass_over_rest()

    async def _carry_out(self, known: Known, plan: Plan, placement: Placement) -> None:
        """Take over the peer's changes while its mails come in."""
        box = self._box
        if plan.expunged:
            await box.expunge(plan.expunged)
        if plan.flags:
            await box.change_flags(plan.flags)
        await placement.run()
        await box.raise_numbers(uidnext=plan.uidnext, highestmodseq=self._theirs.highestmodseq)
        self._has_strangers = await self._move_strangers(plan, placement)
        self._is_unfinished = plan.can_strand or known.unfinished is not None

    async def _move_strangers(self, plan: Plan, placement: Placement) -> bool:
        """Move mails that have come by other ways, or got other UIDs because of these, above those of the sync.

        The peer may have given their UIDs to mails that it has expunged. Return True if there are any.
        """
        if plan.uidnext <= self._own.uidnext:
            return False
        after = await self._box.above(self._own.uidnext - 1)

        def compared() -> tuple[bool, Sequence[int]]:
            """Return whether the peer may have given mails other UIDs, and the strangers' UIDs."""
            there = CompactUids.ascending(mail.uid for mail in after)
            are_missing = any(mail.uid not in there for mail in plan.placed if not mail.comes)
            if placement.lacks_some:  # the peer may have counted without them
                are_missing = are_missing or any(mail.uid != mail.peers for mail in plan.placed)
            new = (mail for mail in after if mail.uid < plan.uidnext)
            return are_missing, [mail.uid for mail in new if not placement.has_placed(mail.uid, mail.guid)]

        self._may_differ, strangers = await computed(compared, after, plan.placed)
        if strangers:
            uidnext = max((await self._box.numbers()).uidnext, plan.uidnext)
            await self._box.move({uid: uidnext + at for at, uid in enumerate(strangers)})
        return bool(strangers)

    async def _new_state(self, plan: Plan, direction: Direction) -> MailboxState:
        """Return up to where both sides are equal now: only up to the old mails if others have changed the mailbox."""
        after = await self._box.numbers()
        own = self._own
        if plan.own_uids or direction is Direction.HERE or self.failure is not None or self._may_differ:
            # Mails may have other UIDs at the peer, or be on one side only, so the next sync compares all.
            return MailboxState(own.mailbox_id, own.uidvalidity, 0, 0, after.messages)
        is_alone = after.uidnext == plan.uidnext and not self._has_strangers
        has_untold = plan.untold_flags and direction is Direction.BOTH
        if has_untold:  # the next sync tells the flags of all mails
            common_modseq = 0
        else:
            # What is changed meanwhile lies above that of its side as the sync began, whose count may be behind.
            theirs = own.highestmodseq if direction is Direction.THERE else self._theirs.highestmodseq
            common_modseq = self._told_modseq(min(own.highestmodseq, theirs))
        return MailboxState(
            own.mailbox_id,
            own.uidvalidity,
            plan.common_uid if is_alone else min(plan.common_uid, own.uidnext - 1),
            common_modseq,
            after.messages,
            changes_during_sync=has_untold or not is_alone,
        )

    def _told_modseq(self, common_modseq: int) -> int:
        """Return the common MODSEQ to tell: to a master, one less than is true.

        A Dovecot does not ask for a mailbox in which it has changed nothing itself. So it finds that it has.
        """
        return common_modseq if self._is_master else max(common_modseq - 1, 0)


def states_by_id(states: Sequence[MailboxState]) -> Mapping[bytes, MailboxState]:
    """Return the states by their mailboxes."""
    return {state.mailbox_id: state for state in states}
