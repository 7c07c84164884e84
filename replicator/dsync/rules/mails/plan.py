"""What is known of one mailbox of this side, and the steps of a sync there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from replicator.dsync.rules.mails.ascending import by_uid, find
from replicator.dsync.rules.mails.flags import flag_difference
from replicator.dsync.rules.mails.placed_mails import PlacedMails
from replicator.dsync.rules.mails.stored_mail import FlagChanges, StoredMail
from replicator.dsync.wire.items import Mailbox

NO_CHANGES = FlagChanges()


@dataclass(frozen=True, slots=True)
class Known:
    """This side's mail in the mailbox, and its memory of earlier syncs. `is_master`: this side has begun the sync.

    `mails`: those that have changed, or that the peer's changes concern, ascending by UID. Nothing is done to others.
    """

    numbers: Mailbox
    mails: Sequence[StoredMail]
    expunged: Mapping[int, bytes]
    flag_changes: Mapping[int, FlagChanges]
    is_master: bool = False

    def find(self, uid: int) -> StoredMail | None:
        """Return the mail with this UID."""
        return find(self.mails, uid)

    def mail(self, uid: int) -> StoredMail:
        """Return the mail with this UID, which is there."""
        return by_uid(self.mails, uid)


@dataclass(slots=True)
class Plan:
    """Steps to take, in this order; `placed` are mails that come or move, ascending by their new UIDs.

    `returned`: flags of mails that come back here under other UIDs, by the peer's; others come with those of their
    changes. `common_uid`: up to which both sides are equal then.
    """

    expunged: list[int] = field(default_factory=list)
    flags: dict[int, FlagChanges] = field(default_factory=dict)
    placed: PlacedMails = field(default_factory=PlacedMails)
    returned: dict[int, frozenset[str]] = field(default_factory=dict)
    uidnext: int = 1
    common_uid: int = 0
    own_uids: bool = False  # mails have other UIDs here than at the peer, so no common UID can be told
    untold_flags: bool = False  # mails of both sides above the common UID, which keep at the peer the flags that it has


def change_flags(plan: Plan, mail: StoredMail, wanted: frozenset[str]) -> None:
    """Note the changes after which a mail has these flags, if it has others now."""
    added, removed = flag_difference(mail.flags, wanted)
    if added or removed:
        plan.flags[mail.uid] = FlagChanges(added, removed)
