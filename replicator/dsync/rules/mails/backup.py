"""Rules of a backup for one mailbox of this side, which becomes as the peer's is."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from replicator.dsync.rules.mails.comparison import Told
from replicator.dsync.rules.mails.new_mails import Placed
from replicator.dsync.rules.mails.plan import Known, Plan, change_flags
from replicator.dsync.wire.items import ChangeType, Mailbox, MailboxState, MailChange


def plan_backup(known: Known, theirs: Mailbox, told: Told, state: MailboxState | None) -> Plan:
    """Return what to do so that this side has the peer's mails alone.

    They have the peer's UIDs, unless this side has given those to other mails. `state`: what was equal before, if the
    master knows it.
    """
    changes = {change.uid: change for change in told.changes if change.type is not ChangeType.EXPUNGE}
    gone = told.lacking if state is None else {one.uid for one in told.changes if one.type is ChangeType.EXPUNGE}
    plan = Plan(uidnext=theirs.uidnext, common_uid=theirs.uidnext - 1)
    kept = set[int]()
    for mail in known.mails:
        change = changes.get(mail.uid)
        is_old = state is None or mail.uid <= told.common_uid
        if change is None and is_old and mail.uid not in gone:
            kept.add(mail.uid)
        elif change is not None and change.guid == mail.guid.hex():
            kept.add(mail.uid)
            change_flags(plan, mail, change.flags)
        else:
            plan.expunged.append(mail.uid)
    new = [change for uid, change in changes.items() if uid not in kept and change.type is ChangeType.SAVE]
    uidnext = known.numbers.uidnext
    if uidnext > theirs.uidnext or any(change.uid < uidnext for change in new):
        return _plan_by_guids(known, changes, {uid for uid in kept if uid <= told.common_uid and uid not in changes})
    guids = {mail.guid.hex() for mail in known.mails if mail.uid in kept}
    for change in new:
        _fetch(plan, change, change.uid, guids)
    return plan


def _plan_by_guids(known: Known, changes: Mapping[int, MailChange], common: AbstractSet[int]) -> Plan:
    """Return what to do where UIDs cannot become the peer's: its mails get the next UIDs here.

    `common`: UIDs of mails that both sides have had before, and have still, unchanged.
    """
    plan = Plan(uidnext=known.numbers.uidnext, own_uids=True)
    wanted = {change.guid: change for change in changes.values()}
    guids = set[str]()
    for mail in known.mails:
        change = None if mail.uid in common else wanted.get(mail.guid.hex())
        if change is not None:
            change_flags(plan, mail, change.flags)
        if change is not None or mail.uid in common:
            guids.add(mail.guid.hex())
        else:
            plan.expunged.append(mail.uid)
    for change in changes.values():
        if change.type is ChangeType.SAVE and _fetch(plan, change, plan.uidnext, guids):
            plan.uidnext += 1
    return plan


def _fetch(plan: Plan, change: MailChange, uid: int, guids: set[str]) -> bool:
    """Note that a mail of the peer's is to be saved with this UID; False if there is one with its GUID."""
    if change.guid in guids:
        return False
    guids.add(change.guid)
    plan.wanted[change.guid] = change.flags
    plan.placed.append(Placed(change.guid, uid, peers=change.uid))
    return True
