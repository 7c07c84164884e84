"""Rules of a backup for one mailbox of this side, which becomes as the peer's is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from replicator.dsync.rules.mailbox import Known, Plan, change_flags
from replicator.dsync.rules.new_mails import Placed
from replicator.dsync.wire.items import ChangeType, Mailbox, MailboxState, MailChange


def plan_backup(known: Known, theirs: Mailbox, changes: Sequence[MailChange], state: MailboxState | None) -> Plan:
    """Return what to do, by the changes, ascending by UID, so that this side has the peer's mails alone.

    They have the peer's UIDs, unless this side has given those to other mails. `state`: what was equal before, if the
    master knows it.
    """
    told = {change.uid: change for change in changes if change.type is not ChangeType.EXPUNGE}
    gone = {change.uid for change in changes if change.type is ChangeType.EXPUNGE}
    common = 0 if state is None else state.last_common_uid
    plan = Plan(uidnext=theirs.uidnext, common_uid=theirs.uidnext - 1)
    kept = set[int]()
    for mail in known.mails:
        change = told.get(mail.uid)
        if change is None and mail.uid <= common and mail.uid not in gone:
            kept.add(mail.uid)
        elif change is not None and change.guid == mail.guid.hex():
            kept.add(mail.uid)
            change_flags(plan, mail, change.flags)
        else:
            plan.expunged.append(mail.uid)
    new = [change for uid, change in told.items() if uid not in kept and change.type is ChangeType.SAVE]
    uidnext = known.numbers.uidnext
    if uidnext > theirs.uidnext or any(change.uid < uidnext for change in new):
        return _plan_by_guids(known, told, {uid for uid in kept if uid <= common})
    guids = {mail.guid.hex() for mail in known.mails if mail.uid in kept}
    for change in new:
        _fetch(plan, change, change.uid, guids)
    return plan


def _plan_by_guids(known: Known, told: Mapping[int, MailChange], common: AbstractSet[int]) -> Plan:
    """Return what to do where UIDs cannot become the peer's: its mails get the next UIDs here.

    `common`: UIDs of mails that both sides have had before, and have still.
    """
    plan = Plan(uidnext=known.numbers.uidnext, own_uids=True)
    wanted = {change.guid: change for change in told.values()}
    guids = set[str]()
    for mail in known.mails:
        change = wanted.get(mail.guid.hex())
        if change is None and mail.uid not in common:
            plan.expunged.append(mail.uid)
            continue
        guids.add(mail.guid.hex())
        if change is not None:
            change_flags(plan, mail, change.flags)
    for change in told.values():
        if change.type is ChangeType.SAVE and _fetch(plan, change, plan.uidnext, guids):
            plan.uidnext += 1
    return plan


def _fetch(plan: Plan, change: MailChange, uid: int, guids: set[str]) -> bool:
    """Note that a mail of the peer's is to be saved with this UID; False if there is one with its GUID."""
    if change.guid in guids:
        return False
    guids.add(change.guid)
    plan.wanted[change.guid] = change
    plan.placed.append(Placed(change.guid, uid, peers=change.uid))
    return True
