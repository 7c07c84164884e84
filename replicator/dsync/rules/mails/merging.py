"""Rules of a sync for one mailbox of this side, by the changes that the peer tells, and the mails that they concern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter

from replicator.dsync.rules.mails.ascending import by_uid, first_above
from replicator.dsync.rules.mails.comparison import Told, shared_guids
from replicator.dsync.rules.mails.flags import FlagSide, flag_difference, merged_flags
from replicator.dsync.rules.mails.new_mails import Each, NewMail, NewUids, Placed
from replicator.dsync.rules.mails.plan import NO_CHANGES, Known, Plan, change_flags
from replicator.dsync.rules.mails.stored_mail import StoredMail
from replicator.dsync.wire.items import ChangeType, Mailbox, MailboxState, MailChange


def plan_merge(known: Known, theirs: Mailbox, told: Told, state: MailboxState | None) -> Plan:
    """Return what to do, by what the peer has told. `state`: what was equal before, if the master knows it."""
    plan = Plan()
    if state is not None:
        gone = [change for change in told.changes if change.type is ChangeType.EXPUNGE]
        expunges = {change.uid: change for change in gone if known.find(change.uid) is not None}
        absent = [uid for uid in expunges if uid <= told.common_uid]
        since = state.last_common_modseq
        plan.expunged = [uid for uid in absent if _takes(expunges[uid], known.mail(uid), since)]
    else:
        absent = [*told.lacking.up_to(told.common_uid)]
        plan.expunged = [*absent]
    _merge_common(plan, known, told, ChangeType.SAVE if state is None else ChangeType.FLAGS, {*absent})
    for uid, flags in flags_of_moved(known, told, state).items():
        change_flags(plan, known.mail(uid), flags)
    _place_new(plan, known, told, theirs.uidnext)
    _merge_returned(plan, known, told)
    _keep_unseen(plan, known, absent, told)
    return plan


def _merge_common(plan: Plan, known: Known, told: Told, kind: ChangeType, absent: AbstractSet[int]) -> None:
    """Note the flags that mails are to have that both sides have had before. `kind`: of the changes that tell them."""
    for change in told.changes:
        if change.uid > told.common_uid:
            return
        mail = known.find(change.uid) if change.type is kind and change.uid not in absent else None
        if mail is not None and _is_of(change, mail):
            _merge_flags(plan, change, mail, known)


def _place_new(plan: Plan, known: Known, told: Told, peer_uidnext: int) -> None:
    own = known.mails[first_above(known.mails, told.common_uid) :]
    peers = [one for one in told.changes if one.uid > told.common_uid and one.type is ChangeType.SAVE]
    new = NewUids(
        Each(own, lambda mail: NewMail(told.name(mail.guid.hex()), mail.uid, mail.guid.hex())),
        Each(peers, lambda change: NewMail(told.name(change.guid), change.uid, change.guid)),
        own_uidnext=known.numbers.uidnext,
        peer_uidnext=peer_uidnext,
    )
    for mail in new:
        if mail.own is not None and mail.peers is not None:
            _merge_new(plan, by_uid(peers, mail.peers), known.mail(mail.own), known)
        if mail.own != mail.uid:
            plan.placed.append(mail)
    plan.placed.sort(key=attrgetter("uid"))
    plan.uidnext, plan.common_uid = new.uidnext, new.uidnext - 1
    expunged = {*plan.expunged}
    here = shared_guids([mail for mail in known.mails if mail.uid not in expunged], peers)
    left_out = set[int]()  # UIDs at the peer
    for mail in plan.placed:
        if mail.own is None and mail.peers is not None:
            if mail.guid not in here and mail.guid not in plan.wanted:
                plan.wanted[mail.guid] = by_uid(peers, mail.peers).flags
            else:  # one copy of a mail too many: up to there, at least, both sides are equal
                plan.common_uid = min(plan.common_uid, mail.uid - 1, mail.peers - 1)
                left_out.add(mail.peers)
    if left_out:
        plan.placed = [mail for mail in plan.placed if mail.own is not None or mail.peers not in left_out]


def _merge_new(plan: Plan, change: MailChange, mail: StoredMail, known: Known) -> None:
    """Note the flags of a mail that both sides have above the common UID. There, Dovecot looks at no flags."""
    wanted = _merged(change, mail, known)
    change_flags(plan, mail, wanted)
    plan.untold_flags = plan.untold_flags or any(flag_difference(change.flags, wanted))


def _merge_returned(plan: Plan, known: Known, told: Told) -> None:
    """Note the flags of mails that the master has under other UIDs now, as a sync with another node made it."""
    expunged = {mail.guid.hex(): mail for mail in map(known.mail, plan.expunged)}
    for one in plan.placed if expunged else ():
        mail = expunged.get(one.guid)
        if mail is not None and one.own is None and one.peers is not None:
            plan.wanted[one.guid] = _merged(by_uid(told.changes, one.peers), mail, known)


def _keep_unseen(plan: Plan, known: Known, absent: Sequence[int], told: Told) -> None:
    """Move mails that the peer never saw under their UIDs above all others, where it looks for new ones.

    Those have UIDs of other mails that were expunged there; or the peer has them under another UID only, so that they
    must not be expunged. `absent`: UIDs that the peer no longer has.
    """
    expunged = {*plan.expunged}
    elsewhere = shared_guids([known.mail(uid) for uid in absent], told.saves()) - plan.wanted.keys()
    unseen = [uid for uid in absent if uid not in expunged or known.mail(uid).guid.hex() in elsewhere]
    plan.expunged = sorted(expunged.difference(unseen))
    for uid in unseen:
        plan.placed.append(Placed(known.mail(uid).guid.hex(), plan.uidnext, own=uid))
        plan.uidnext += 1


def flags_of_moved(known: Known, told: Told, state: MailboxState | None) -> Mapping[int, frozenset[str]]:
    """Return by UID what flags mails of this side are to have that the master knows by common UIDs that they had.

    Branches of this cluster that joined gave them others. The master copies them there with the flags that it is told.
    """
    if state is not None:
        return {}
    saves = told.saves()
    old = [change for change in saves if change.uid <= told.common_uid and known.find(change.uid) is None]
    before = {change.guid: change for change in old}
    for change in saves if before else ():
        if change.uid > told.common_uid:
            before.pop(change.guid, None)
    moved = [mail for mail in known.mails if mail.uid > told.common_uid and mail.guid.hex() in before] if before else []
    return {mail.uid: _merged(before[mail.guid.hex()], mail, known) for mail in moved}


def _merge_flags(plan: Plan, change: MailChange, mail: StoredMail, known: Known) -> None:
    """Note the flags that a mail is to have, if it has others now."""
    change_flags(plan, mail, _merged(change, mail, known))


def _merged(change: MailChange, mail: StoredMail, known: Known) -> frozenset[str]:
    ours = known.flag_changes.get(mail.uid, NO_CHANGES)
    peer = FlagSide(change.flags, change.modseq, change.added, change.removed)
    own = FlagSide(mail.flags, mail.modseq, ours.added, ours.removed)
    master, remote = (own, peer) if known.is_master else (peer, own)
    return merged_flags(master, remote)


def _takes(expunge: MailChange, mail: StoredMail, since: int) -> bool:
    """Return True if this mail was expunged. Without a GUID, only one that was here by a MODSEQ is known to be it."""
    return expunge.guid == mail.guid.hex() or (not expunge.guid and mail.modseq <= since)


def _is_of(change: MailChange, mail: StoredMail) -> bool:
    return not change.guid or change.guid == mail.guid.hex()
