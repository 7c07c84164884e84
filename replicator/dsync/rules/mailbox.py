"""What a sync does with one mailbox of this side, by all mails of this side and the changes that the master tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from replicator.dsync.rules.common import last_common_uid
from replicator.dsync.rules.flags import FlagSide, merged_flags
from replicator.dsync.rules.new_mails import NewMail, Placed, place
from replicator.dsync.rules.stored_mail import FlagChanges, StoredMail
from replicator.dsync.wire.items import ChangeType, Mailbox, MailboxState, MailChange

NO_CHANGES = FlagChanges()


@dataclass(frozen=True, slots=True)
class Known:
    """What this side has in the mailbox, and remembers of it."""

    numbers: Mailbox
    mails: Sequence[StoredMail]  # ascending by UID
    expunged: Mapping[int, bytes]
    flag_changes: Mapping[int, FlagChanges]


@dataclass(slots=True)
class Plan:
    """What to do, in this order; `placed` are mails that come or move, ascending by their new UIDs."""

    expunged: list[int] = field(default_factory=list)
    flags: dict[int, frozenset[str]] = field(default_factory=dict)
    placed: list[Placed] = field(default_factory=list)
    uidnext: int = 1
    wanted: dict[str, MailChange] = field(default_factory=dict)  # mails of the master's to be fetched, by GUID
    own_uids: bool = False  # mails have other UIDs here than at the master, so no common UID can be told


def plan_merge(
    known: Known,
    theirs: Mailbox,
    changes: Sequence[MailChange],
    names: Mapping[str, str],
    state: MailboxState | None,
) -> Plan:
    """Return what to do, by the changes, ascending by UID, with GUIDs as this side writes them.

    `names`: GUIDs as the master writes them, where that is in another way. `state`: what was equal before, if the
    master knows it.
    """
    own = {mail.uid: mail for mail in known.mails}
    saves = {change.uid: change for change in changes if change.type is ChangeType.SAVE}
    plan = Plan()
    if state is not None:
        common = state.last_common_uid
        told = {change.uid: change for change in changes if change.type is ChangeType.FLAGS and change.uid <= common}
        gone = (change for change in changes if change.type is ChangeType.EXPUNGE and change.uid <= common)
        plan.expunged = [one.uid for one in gone if one.uid in own and _is_of(one, own[one.uid])]
        for uid in plan.expunged:
            told.pop(uid, None)
    else:
        guids = {mail.uid: mail.guid.hex() for mail in known.mails}
        expunged = {uid: guid.hex() for uid, guid in known.expunged.items()}
        common = last_common_uid(changes, guids, expunged)
        told = saves
        plan.expunged = [uid for uid in own if uid <= common and uid not in saves]
    for uid, change in told.items():
        if uid <= common and uid in own and _is_of(change, own[uid]):
            _merge_flags(plan, uid, change, own[uid], known)
    new = [change for uid, change in saves.items() if uid > common]
    _place_new(plan, known, _NewMails(new, names, theirs.uidnext), common)
    return plan


@dataclass(frozen=True, slots=True)
class _NewMails:
    """Mails of the master's above the last common UID, their GUIDs as it writes them, and its UIDNEXT."""

    saves: Sequence[MailChange]
    names: Mapping[str, str]
    uidnext: int


def _place_new(plan: Plan, known: Known, new: _NewMails, common: int) -> None:
    own = {mail.uid: mail for mail in known.mails if mail.uid > common}
    peers = {change.uid: change for change in new.saves}
    plan.placed, plan.uidnext = place(
        [NewMail(mail.guid.hex(), mail.uid, mail.guid.hex()) for mail in own.values()],
        [NewMail(new.names.get(change.guid, change.guid), change.uid, change.guid) for change in new.saves],
        own_uidnext=known.numbers.uidnext,
        peer_uidnext=new.uidnext,
    )
    here = {mail.guid.hex() for mail in known.mails if mail.uid not in plan.expunged}
    for mail in plan.placed:
        if mail.own is not None and mail.peers is not None:
            _merge_flags(plan, mail.own, peers[mail.peers], own[mail.own], known)
        elif mail.peers is not None and mail.guid not in here:
            plan.wanted.setdefault(mail.guid, peers[mail.peers])
    plan.placed = [
        mail
        for mail in plan.placed
        if (mail.own is not None and mail.own != mail.uid)
        or (mail.own is None and mail.guid in plan.wanted and plan.wanted[mail.guid].uid == mail.peers)
    ]


def _merge_flags(plan: Plan, uid: int, change: MailChange, mail: StoredMail, known: Known) -> None:
    """Note the flags that a mail is to have, if it has others now."""
    ours = known.flag_changes.get(uid, NO_CHANGES)
    flags = merged_flags(
        FlagSide(change.flags, change.modseq, change.added, change.removed),
        FlagSide(mail.flags, mail.modseq, ours.added, ours.removed),
    )
    if flags != mail.flags:
        plan.flags[uid] = flags


def _is_of(change: MailChange, mail: StoredMail) -> bool:
    return not change.guid or change.guid == mail.guid.hex()
