"""What a backup does with one mailbox of this side, which becomes as the master's is.

Where this side has given UIDs to other mail, as in an INBOX that was in use, mails of the master's get other UIDs here.
The next backup finds them by their GUIDs.
"""

from __future__ import annotations

from collections.abc import Sequence

from replicator.dsync.replica import FlagChanges
from replicator.dsync.rules.flags import flag_difference
from replicator.dsync.rules.mailbox import Known, Plan
from replicator.dsync.rules.new_mails import Placed
from replicator.dsync.wire.items import ChangeType, Mailbox, MailboxState, MailChange


def plan_backup(
    known: Known, theirs: Mailbox, changes: Sequence[MailChange], state: MailboxState | None
) -> Plan | None:
    """Return what to do, by the changes, ascending by UID; None if only a comparison of all mails can tell.

    `state`: what was equal before, if the master knows it.
    """
    common = 0 if state is None else state.last_common_uid
    gone = {change.uid for change in changes if change.type is ChangeType.EXPUNGE}
    told = {change.guid: change for change in reversed(changes) if change.type is not ChangeType.EXPUNGE}
    plan = Plan(uidnext=max(known.numbers.uidnext, theirs.uidnext), common_uid=theirs.uidnext - 1)
    uids = dict[str, int]()
    for mail in known.mails:
        change = told.get(mail.guid.hex())
        if change is None and (mail.uid > common or mail.uid in gone):
            plan.expunged.append(mail.uid)
            continue
        if change is None:
            continue
        uids[change.guid] = mail.uid
        added, removed = flag_difference(mail.flags, change.flags)
        if added or removed:
            plan.flags[mail.uid] = FlagChanges(added, removed)
    for change in changes:
        if change.type is ChangeType.EXPUNGE or change is not told[change.guid]:
            continue
        uid = uids.get(change.guid)
        if uid is None and change.type is not ChangeType.SAVE:
            return None
        if uid is None:
            uid = change.uid
            if uid < known.numbers.uidnext:
                uid, plan.uidnext = plan.uidnext, plan.uidnext + 1
            plan.wanted[change.guid] = change
            plan.placed.append(Placed(change.guid, uid, peers=change.uid))
        if uid != change.uid:
            plan.common_uid = min(plan.common_uid, change.uid - 1)
    plan.placed.sort(key=lambda one: one.uid)
    if state is not None and plan.common_uid < common:
        return None
    return plan
