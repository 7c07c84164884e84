"""What a backup does with one mailbox of this side, which becomes as the master's is."""

from __future__ import annotations

from collections.abc import Sequence

from replicator.dsync.rules.mailbox import Known, Plan
from replicator.dsync.rules.new_mails import Placed
from replicator.dsync.wire.items import ChangeType, Mailbox, MailboxState, MailChange


def plan_backup(
    known: Known, theirs: Mailbox, changes: Sequence[MailChange], state: MailboxState | None
) -> Plan | None:
    """Return what to do, by the changes, ascending by UID; None if this side has given the UIDs to other mails.

    `state`: what was equal before, if the master knows it.
    """
    common = 0 if state is None else state.last_common_uid
    told = {change.uid: change for change in changes if change.type is not ChangeType.EXPUNGE}
    gone = {change.uid for change in changes if change.type is ChangeType.EXPUNGE}
    plan = Plan(uidnext=theirs.uidnext)
    if known.numbers.uidnext > theirs.uidnext:
        return None
    kept = set[int]()
    for mail in known.mails:
        change = told.get(mail.uid)
        if change is None and (mail.uid > common or mail.uid in gone):
            plan.expunged.append(mail.uid)
            continue
        kept.add(mail.uid)
        if change is not None and change.guid not in ("", mail.guid.hex()):
            return None
        if change is not None and change.flags != mail.flags:
            plan.flags[mail.uid] = change.flags
    guids = {mail.guid.hex() for mail in known.mails if mail.uid in kept}
    for uid, change in told.items():
        if uid in kept or change.type is not ChangeType.SAVE or change.guid in guids:
            continue
        if uid < known.numbers.uidnext:
            return None
        guids.add(change.guid)
        plan.wanted[change.guid] = change
        plan.placed.append(Placed(change.guid, uid, peers=uid))
    return plan
