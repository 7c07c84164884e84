"""Rules of a sync for one mailbox of this side, by all mails of this side and the changes that the peer tells."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from replicator.dsync.rules.common import last_common_uid
from replicator.dsync.rules.flags import FlagSide, flag_difference, merged_flags
from replicator.dsync.rules.new_mails import NewMail, Placed, place
from replicator.dsync.rules.stored_mail import FlagChanges, StoredMail
from replicator.dsync.wire.items import ChangeType, Mailbox, MailboxState, MailChange

NO_CHANGES = FlagChanges()


@dataclass(frozen=True, slots=True)
class Known:
    """This side's mail in the mailbox, and its memory of earlier syncs. `is_master`: this side has begun the sync."""

    numbers: Mailbox
    mails: Sequence[StoredMail]  # ascending by UID
    expunged: Mapping[int, bytes]
    flag_changes: Mapping[int, FlagChanges]
    is_master: bool = False


@dataclass(slots=True)
class Plan:
    """Steps to take, in this order; `placed` are mails that come or move, ascending by their new UIDs.

    `common_uid`: up to which both sides are equal then.
    """

    expunged: list[int] = field(default_factory=list)
    flags: dict[int, FlagChanges] = field(default_factory=dict)
    placed: list[Placed] = field(default_factory=list)
    uidnext: int = 1
    common_uid: int = 0
    wanted: dict[str, MailChange] = field(default_factory=dict)  # mails of the peer's to be fetched, by GUID
    own_uids: bool = False  # mails have other UIDs here than at the peer, so no common UID can be told


def plan_merge(
    known: Known,
    theirs: Mailbox,
    changes: Sequence[MailChange],
    names: Mapping[str, str],
    state: MailboxState | None,
) -> Plan:
    """Return what to do, by the changes, ascending by UID, with GUIDs as this side has them.

    `names`: GUIDs as the peer writes them, where that is in another way. `state`: what was equal before, if the
    master knows it.
    """
    own = {mail.uid: mail for mail in known.mails}
    saves = {change.uid: change for change in changes if change.type is ChangeType.SAVE}
    gone = {change.uid: change for change in changes if change.type is ChangeType.EXPUNGE}
    plan = Plan()
    if state is not None:
        common = state.last_common_uid
        told = {change.uid: change for change in changes if change.type is ChangeType.FLAGS and change.uid <= common}
        since = state.last_common_modseq
        absent = {uid for uid in gone if uid <= common and uid in own}
        plan.expunged = [uid for uid in sorted(absent) if _takes(gone[uid], own[uid], since)]
    else:
        guids = {mail.uid: mail.guid.hex() for mail in known.mails}
        expunged = {uid: guid.hex() for uid, guid in known.expunged.items()}
        common = last_common_uid(changes, guids, expunged)
        told = saves
        absent = {uid for uid in own if uid <= common and uid not in saves}
        plan.expunged = sorted(absent)
    for uid, change in told.items():
        if uid <= common and uid in own and uid not in absent and _is_of(change, own[uid]):
            _merge_flags(plan, change, own[uid], known)
    for uid, flags in flags_of_moved(known, changes, state).items():
        change_flags(plan, own[uid], flags)
    new = [change for uid, change in saves.items() if uid > common]
    _place_new(plan, known, _NewMails(new, names, theirs.uidnext), common)
    for uid in plan.expunged:  # those that the master has under other UIDs now, as a sync with another node made it
        guid = own[uid].guid.hex()
        if guid in plan.wanted:
            plan.wanted[guid] = replace(plan.wanted[guid], flags=_merged(plan.wanted[guid], own[uid], known))
    _keep_unseen(plan, own, absent, {change.guid for change in saves.values()})
    return plan


@dataclass(frozen=True, slots=True)
class _NewMails:
    """Mails of the peer's above the last common UID, their GUIDs as it writes them, and its UIDNEXT."""

    saves: Sequence[MailChange]
    names: Mapping[str, str]
    uidnext: int

    def name(self, guid: str) -> str:
        """Return a GUID as the peer writes it, and is told it."""
        return self.names.get(guid, guid)


def _place_new(plan: Plan, known: Known, new: _NewMails, common: int) -> None:
    own = {mail.uid: mail for mail in known.mails if mail.uid > common}
    peers = {change.uid: change for change in new.saves}
    plan.placed, plan.uidnext = place(
        [NewMail(new.name(mail.guid.hex()), mail.uid, mail.guid.hex()) for mail in own.values()],
        [NewMail(new.name(change.guid), change.uid, change.guid) for change in new.saves],
        own_uidnext=known.numbers.uidnext,
        peer_uidnext=new.uidnext,
    )
    plan.common_uid = plan.uidnext - 1
    here = {mail.guid.hex() for mail in known.mails if mail.uid not in plan.expunged}
    for mail in plan.placed:
        if mail.own is not None and mail.peers is not None:
            _merge_flags(plan, peers[mail.peers], own[mail.own], known)
        elif mail.peers is not None and mail.guid not in here and mail.guid not in plan.wanted:
            plan.wanted[mail.guid] = peers[mail.peers]
        elif mail.peers is not None:  # one copy of a mail too many: up to there, at least, both sides are equal
            plan.common_uid = min(plan.common_uid, mail.uid - 1, mail.peers - 1)
    plan.placed = [
        mail
        for mail in plan.placed
        if (mail.own is not None and mail.own != mail.uid)
        or (mail.own is None and mail.guid in plan.wanted and plan.wanted[mail.guid].uid == mail.peers)
    ]


def _keep_unseen(plan: Plan, own: Mapping[int, StoredMail], absent: Iterable[int], saved: Collection[str]) -> None:
    """Move mails that the peer never saw under their UIDs above all others, where it looks for new ones.

    Those have UIDs of other mails that were expunged there; or the peer has them under another UID only, so that they
    must not be expunged. `absent`: UIDs that the peer no longer has, `saved`: GUIDs that it has.
    """
    expunged = {*plan.expunged}
    rest = {*saved} - {mail.guid.hex() for uid, mail in own.items() if uid not in expunged} - plan.wanted.keys()
    unseen = sorted(uid for uid in absent if uid not in expunged or own[uid].guid.hex() in rest)
    plan.expunged = sorted(expunged.difference(unseen))
    for uid in unseen:
        plan.placed.append(Placed(own[uid].guid.hex(), plan.uidnext, own=uid))
        plan.uidnext += 1


def flags_of_moved(
    known: Known, changes: Sequence[MailChange], state: MailboxState | None
) -> Mapping[int, frozenset[str]]:
    """Return by UID what flags mails of this side are to have that the master knows by common UIDs that they had.

    Branches of this cluster that joined gave them others. The master copies them there with the flags that it is told.
    """
    if state is not None:
        return {}
    guids = {mail.uid: mail.guid.hex() for mail in known.mails}
    common = last_common_uid(changes, guids, {uid: guid.hex() for uid, guid in known.expunged.items()})
    saves = [change for change in changes if change.type is ChangeType.SAVE]
    new = {change.guid for change in saves if change.uid > common}
    before = {one.guid: one for one in saves if one.uid <= common and one.uid not in guids and one.guid not in new}
    moved = [mail for mail in known.mails if mail.uid > common and mail.guid.hex() in before]
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


def change_flags(plan: Plan, mail: StoredMail, wanted: frozenset[str]) -> None:
    """Note the changes after which a mail has these flags, if it has others now."""
    added, removed = flag_difference(mail.flags, wanted)
    if added or removed:
        plan.flags[mail.uid] = FlagChanges(added, removed)


def _takes(expunge: MailChange, mail: StoredMail, since: int) -> bool:
    """Return True if this mail was expunged. Without a GUID, only one that was here by a MODSEQ is known to be it."""
    return expunge.guid == mail.guid.hex() or (not expunge.guid and mail.modseq <= since)


def _is_of(change: MailChange, mail: StoredMail) -> bool:
    return not change.guid or change.guid == mail.guid.hex()
