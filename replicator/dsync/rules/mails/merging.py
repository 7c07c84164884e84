"""Rules of a sync for one mailbox of this side, by the changes that the peer tells, and the mails that they concern."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence

from protocol.values import UID_MAX
from replicator.dsync.rules.mails.comparison import Guids, Told, in_both, shared_guids
from replicator.dsync.rules.mails.copies import repeated
from replicator.dsync.rules.mails.flags import FlagSide, flag_difference, merged_flags
from replicator.dsync.rules.mails.new_mails import Each, NewMail, NewUids
from replicator.dsync.rules.mails.peer_changes import PeerChange, SavedMail
from replicator.dsync.rules.mails.placed_mails import Placed, PlacedMails
from replicator.dsync.rules.mails.plan import NO_CHANGES, Known, Plan, can_strand_mail, change_flags
from replicator.dsync.wire.items import ChangeType, Mailbox, MailboxState
from replicator.mail.compact_uids import CompactUids
from replicator.mail.listing import ListedMessage


def plan_merge(known: Known, theirs: Mailbox, told: Told, state: MailboxState | None) -> Plan:
    """Return what to do, by what the peer has told. `state`: what was equal before, if the master knows it."""
    plan = Plan()
    if state is not None:
        absent, since = _absent(known, told), state.last_common_modseq
        taken = (uid for uid in absent if _takes(told.changes.by_uid(uid), known.mails.by_uid(uid), since))
        plan.expunged = array("I", taken)
    else:
        absent = array("I", told.lacking.up_to(told.common_uid))
        plan.expunged = absent
    _merge_common(plan, known, told, ChangeType.SAVE if state is None else ChangeType.FLAGS)
    for uid, flags in flags_of_moved(known, told, state).items():
        change_flags(plan, known.mails.by_uid(uid), flags)
    _place_new(plan, known, told, theirs.uidnext)
    _merge_returned(plan, known, told)
    _keep_unseen(plan, known, absent, told)
    plan.common_uid = min(plan.common_uid, max(theirs.uidnext - 1, _last_uid(plan, known, told)))
    plan.can_strand = plan.can_strand or can_strand_mail(plan.placed, known.numbers.uidnext)
    return plan


def _absent(known: Known, told: Told) -> array[int]:
    """Return the UIDs of own mails that the peer has had, and has expunged since the state."""
    gone = (change.uid for change in told.changes if change.type is ChangeType.EXPUNGE)
    return array("I", (uid for uid in gone if uid <= told.common_uid and known.mails.find(uid) is not None))


def _merge_common(plan: Plan, known: Known, told: Told, kind: ChangeType) -> None:
    """Note the flags that mails are to have that both sides have had before. `kind`: of the changes that tell them."""
    for change in told.changes:
        if change.uid > told.common_uid:
            return
        mail = known.mails.find(change.uid) if change.type is kind else None
        if mail is not None and _is_of(change, mail):
            _merge_flags(plan, change, mail, known)


def _place_new(plan: Plan, known: Known, told: Told, peer_uidnext: int) -> None:
    """Note where the mails come or move that one side has above the common UID."""
    changes = told.changes
    own = known.mails[known.mails.first_above(told.common_uid) :]

    def own_mail(mail: ListedMessage) -> NewMail:
        return NewMail(told.name_of(mail), mail.uid, mail.guid)

    def peers_mail(mail: SavedMail) -> NewMail:
        return NewMail(told.name_of_peers(mail.uid, mail.guid), mail.uid, mail.guid)

    new = NewUids(
        Each(own, own_mail),
        Each(changes.saves_above(told.common_uid), peers_mail),
        own_uidnext=known.numbers.uidnext,
        peer_uidnext=peer_uidnext,
    )
    first, kept, given = new.uidnext, PlacedMails(changes.scratch), PlacedMails(changes.scratch)
    has_unseen, has_others = False, False
    for mail in new:
        has_unseen = has_unseen or mail.peers is None
        has_others = has_others or (mail.peers is not None and not mail.own == mail.peers == mail.uid)
        if mail.own is not None and mail.peers is not None:
            _merge_new(plan, changes.by_uid(mail.peers), known.mails.by_uid(mail.own), known)
        if mail.own != mail.uid:
            (kept if mail.uid < first else given).add(mail)
    kept.sort()
    kept += given
    plan.placed, plan.uidnext, plan.common_uid = kept, new.uidnext, new.uidnext - 1
    plan.can_strand = has_unseen and has_others  # which the peer may give their UIDs before it gets the unseen ones
    _leave_out_copies(plan, known, told)


def _leave_out_copies(plan: Plan, known: Known, told: Told) -> None:
    """Leave out copies of which there are too many. Up to the first one, at least, both sides are equal."""
    placed, here = plan.placed, shared_guids(known.mails, told.changes)
    here.difference_update(known.mails.by_uid(uid).guid for uid in plan.expunged)
    several = repeated(lambda: (mail.guid for mail in placed if mail.comes), len(placed))
    if not here and not several:
        return
    plan.placed = PlacedMails(told.changes.scratch)
    for mail in placed:
        if mail.peers is None or not mail.comes or mail.guid not in here:
            plan.placed.add(mail)
            if mail.comes and mail.guid in several:
                here.add(mail.guid)
        else:
            plan.common_uid = min(plan.common_uid, mail.uid - 1, mail.peers - 1)


def _merge_new(plan: Plan, change: PeerChange, mail: ListedMessage, known: Known) -> None:
    """Note the flags of a mail that both sides have above the common UID. There, Dovecot looks at no flags."""
    wanted = _merged(change, mail, known)
    change_flags(plan, mail, wanted)
    plan.untold_flags = plan.untold_flags or bool(flag_difference(change.flags, wanted))


def _merge_returned(plan: Plan, known: Known, told: Told) -> None:
    """Note the flags of mails that the master has under other UIDs now, as a sync with another node made it."""
    coming = Guids(lambda: (one.guid for one in plan.placed if one.comes), len(plan.placed))
    shared = in_both(_guids(known, plan.expunged), coming)
    expunged = map(known.mails.by_uid, plan.expunged if shared else ())
    returned = {mail.guid: mail for mail in expunged if mail.guid in shared}
    for one in plan.placed if returned else ():
        mail = returned.get(one.guid)
        if mail is not None and one.comes and one.peers is not None:
            plan.returned[one.peers] = _merged(told.changes.by_uid(one.peers), mail, known)


def _keep_unseen(plan: Plan, known: Known, absent: Sequence[int], told: Told) -> None:
    """Move mails that the peer never saw under their UIDs above all others, where it looks for new ones.

    Those have UIDs of other mails that were expunged there; or the peer has them under another UID only, or a sync that
    has not ended left them there, so that they must not be expunged. `absent`: UIDs that the peer no longer has.
    """
    there = in_both(_guids(known, absent), Guids(told.changes.saved_guids, len(told.changes)))
    coming = {mail.guid for mail in plan.placed if mail.comes and mail.guid in there} if there else there
    expunged, safe_uid = CompactUids.ascending(plan.expunged), UID_MAX if known.unfinished is None else known.unfinished

    def is_unseen(uid: int) -> bool:
        if uid not in expunged:
            return True
        guid = known.mails.by_uid(uid).guid
        if uid <= safe_uid or guid in there:
            return guid in there and guid not in coming
        change = told.changes.find(uid)
        return change is None or change.guid != guid

    unseen = [*filter(is_unseen, absent)]
    plan.expunged = array("I", expunged.without(CompactUids.ascending(unseen)))
    for uid in unseen:
        plan.placed.add(Placed(known.mails.by_uid(uid).guid, plan.uidnext, own=uid))
        plan.uidnext += 1


def _last_uid(plan: Plan, known: Known, told: Told) -> int:
    """Return the highest UID that a mail has on both sides then, or has had.

    Those above it that only this side has given, to mails expunged since, the peer may give to a mail that it gets now.
    """
    of_own = known.mails[-1].uid if known.mails else 0
    return max(told.common_uid, of_own, plan.placed[len(plan.placed) - 1].uid if plan.placed else 0)


def _guids(known: Known, uids: Collection[int]) -> Guids:
    """Return the GUIDs of these mails of this side."""
    return Guids(lambda: (known.mails.by_uid(uid).guid for uid in uids), len(uids))


def flags_of_moved(known: Known, told: Told, state: MailboxState | None) -> Mapping[int, frozenset[str]]:
    """Return by UID what flags mails of this side are to have that the master knows by common UIDs that they had.

    Branches of this cluster that joined gave them others. The master copies them there with the flags that it is told.
    """
    if state is not None:
        return {}
    before = dict[bytes, PeerChange]()
    for change in told.changes:
        if change.type is not ChangeType.SAVE:
            continue
        if change.uid > told.common_uid:
            if not before:
                break
            before.pop(change.guid, None)
        elif known.mails.find(change.uid) is None:
            before[change.guid] = change
    moved = [mail for mail in known.mails if mail.uid > told.common_uid and mail.guid in before] if before else []
    return {mail.uid: _merged(before[mail.guid], mail, known) for mail in moved}


def _merge_flags(plan: Plan, change: PeerChange, mail: ListedMessage, known: Known) -> None:
    """Note the flags that a mail is to have, if it has others now."""
    change_flags(plan, mail, _merged(change, mail, known))


def _merged(change: PeerChange, mail: ListedMessage, known: Known) -> frozenset[str]:
    ours = known.flag_changes.get(mail.uid, NO_CHANGES)
    peer = FlagSide(change.flags, change.modseq, change.added, change.removed)
    own = FlagSide(mail.flags, mail.modseq, ours.added, ours.removed)
    master, remote = (own, peer) if known.is_master else (peer, own)
    return merged_flags(master, remote)


def _takes(expunge: PeerChange, mail: ListedMessage, since: int) -> bool:
    """Return True if this mail was expunged. Without a GUID, only one that was here by a MODSEQ is known to be it."""
    return expunge.guid == mail.guid or (not expunge.guid and mail.modseq <= since)


def _is_of(change: PeerChange, mail: ListedMessage) -> bool:
    return not change.guid or change.guid == mail.guid
