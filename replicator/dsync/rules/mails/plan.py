"""Plan of a sync for one mailbox of this side: its steps, and the facts of the mailbox that they rest on."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from replicator.dsync.rules.mails.flags import FlagChanges, flag_difference
from replicator.dsync.rules.mails.placed_mails import PlacedMails
from replicator.dsync.wire.items import Mailbox
from replicator.mail.guids_by_uid import GuidsByUid
from replicator.mail.listing import ListedMessage, Listing

NO_CHANGES = FlagChanges()


@dataclass(frozen=True, slots=True)
class Known:
    """This side's mail in the mailbox, and its memory of earlier syncs. `is_master`: this side has begun the sync.

    `unfinished`: up to where mails were equal as a sync began that has not ended: the peer may never have seen those
    above, wherever they are now.

    `mails`: those that have changed, or that the peer's changes concern, ascending by UID. Nothing is done to others.
    """

    numbers: Mailbox
    mails: Listing
    expunged: GuidsByUid
    flag_changes: Mapping[int, FlagChanges]
    is_master: bool = False
    unfinished: int | None = None


@dataclass(slots=True)
class Plan:
    """Steps to take, in this order; `placed` are mails that come or move, ascending by their new UIDs.

    `flags`: UIDs of mails whose flags change, by the changes. `returned`: flags of mails that come back here under
    other UIDs, by the peer's; others come with those of their changes. `common_uid`: up to which both sides are equal
    then.
    """

    expunged: array[int] = field(default_factory=lambda: array("I"))
    flags: dict[FlagChanges, array[int]] = field(default_factory=dict)
    placed: PlacedMails = field(default_factory=PlacedMails)
    returned: dict[int, frozenset[str]] = field(default_factory=dict)
    uidnext: int = 1
    common_uid: int = 0
    own_uids: bool = False  # mails have other UIDs here than at the peer, so no common UID can be told
    can_strand: bool = False  # own mail: a sync that ends half-way may leave some below mail that both sides have then
    untold_flags: bool = False  # mails of both sides above the common UID, which keep at the peer the flags that it has


def can_strand_mail(placed: PlacedMails, uidnext: int) -> bool:
    """Return True if own mail that the peer has not seen may lie below mail of both sides while these are placed.

    If the sync ends then, the next one would take it for expunged by the peer. That may be own mail that is still to
    move, and new mail of others that gets a UID which is left out. `uidnext`: of the mailbox before.
    """
    return any(mail.own is not None or mail.uid != uid for uid, mail in enumerate(placed, uidnext))


def change_flags(plan: Plan, mail: ListedMessage, wanted: frozenset[str]) -> None:
    """Note the changes after which a mail has these flags, if it has others now. This is called once for a mail."""
    changes = flag_difference(mail.flags, wanted)
    if changes:
        plan.flags.setdefault(changes, array("I")).append(mail.uid)
