"""Rules of a backup for one mailbox of this side, which becomes as the peer's is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet

from replicator.dsync.rules.mails.comparison import Told, shared_guids
from replicator.dsync.rules.mails.copies import repeated
from replicator.dsync.rules.mails.peer_changes import PeerChange, PeerChanges
from replicator.dsync.rules.mails.placed_mails import Placed, PlacedMails
from replicator.dsync.rules.mails.plan import Known, Plan, can_strand_mail, change_flags
from replicator.dsync.wire.items import ChangeType, Mailbox, MailboxState


def plan_backup(known: Known, theirs: Mailbox, told: Told, state: MailboxState | None) -> Plan:
    """Return what to do so that this side has the peer's mails alone.

    They have the peer's UIDs, unless this side has given those to other mails. `state`: what was equal before, if the
    master knows it.
    """
    changes = told.changes
    placed = PlacedMails(changes.scratch)
    plan = Plan(uidnext=theirs.uidnext, common_uid=theirs.uidnext - 1, placed=placed)
    kept = set[int]()
    for mail in known.mails:
        change = changes.find(mail.uid)
        is_gone = mail.uid in told.lacking or (change is not None and change.type is ChangeType.EXPUNGE)
        is_old = state is None or mail.uid <= told.common_uid
        if change is None and is_old and not is_gone:
            kept.add(mail.uid)
        elif change is not None and not is_gone and change.guid == mail.guid:
            kept.add(mail.uid)
            change_flags(plan, mail, change.flags)
        else:
            plan.expunged.append(mail.uid)

    def new() -> Iterator[PeerChange]:
        return (change for change in changes if change.type is ChangeType.SAVE and change.uid not in kept)

    uidnext, lowest = known.numbers.uidnext, next(new(), None)
    if uidnext > theirs.uidnext or (lowest is not None and lowest.uid < uidnext):
        return _plan_by_guids(
            known, changes, {uid for uid in kept if uid <= told.common_uid and changes.find(uid) is None}
        )
    guids = {mail.guid for mail in known.mails if mail.uid in kept}
    for change in _with_other_guids(new, len(changes), guids):
        plan.placed.add(Placed(change.guid, change.uid, peers=change.uid))
    plan.can_strand = can_strand_mail(plan.placed, uidnext)
    return plan


def _plan_by_guids(known: Known, changes: PeerChanges, common: AbstractSet[int]) -> Plan:
    """Return what to do where UIDs cannot become the peer's: its mails get the next UIDs here.

    `common`: UIDs of mails that both sides have had before, and have still, unchanged.
    """
    plan = Plan(uidnext=known.numbers.uidnext, own_uids=True, placed=PlacedMails(changes.scratch))
    shared = shared_guids(known.mails, changes)
    there = {one.guid: one for one in changes if one.guid in shared and one.type is not ChangeType.EXPUNGE}
    guids = set[bytes]()
    for mail in known.mails:
        change = None if mail.uid in common else there.get(mail.guid)
        if change is not None:
            change_flags(plan, mail, change.flags)
        if change is not None or mail.uid in common:
            guids.add(mail.guid)
        else:
            plan.expunged.append(mail.uid)

    def new() -> Iterator[PeerChange]:
        return (change for change in changes if change.type is ChangeType.SAVE)

    for change in _with_other_guids(new, len(changes), guids):
        plan.placed.add(Placed(change.guid, plan.uidnext, peers=change.uid))
        plan.uidnext += 1
    return plan


def _with_other_guids(mails: Callable[[], Iterator[PeerChange]], most: int, guids: set[bytes]) -> Iterator[PeerChange]:
    """Yield the peer's mails, so many at most, but for those with these GUIDs; of those with one GUID, the first."""
    several = repeated(lambda: (mail.guid for mail in mails()), most)
    for mail in mails():
        if mail.guid not in guids:
            yield mail
        if mail.guid in several:
            guids.add(mail.guid)
