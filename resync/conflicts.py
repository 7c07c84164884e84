"""Decisions of a merge, counted by kind for operators (design section 3).

A conflict is a place where clients of the two sides saw something else than what the merge makes of it. Mail that came
on one side only, and changes that one side alone made, are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from resync.folder_tree import TreeState, is_united
from resync.row import FlagStates, Row, shares_placement
from resync.state import MailboxState


class Since(NamedTuple):
    """The time of the first entry that only our branch has, and of the first that only the other one has.

    All that a side has changed since the branches parted has such a time or a later one.
    """

    ours: int = 0
    theirs: int = 0


class Conflicts(NamedTuple):
    """Numbers of conflicts that a merge has decided, by kind."""

    uid: int = 0
    """Messages that have another UID now than a side showed."""
    flags: int = 0
    """Messages of which both sides had changed one flag: the later change counts."""
    delivery: int = 0
    """Messages that came into the mailbox on both sides, and are one now."""
    folder_name: int = 0
    """Folders whose name a folder of the other side had, and which are one with it now."""
    uidvalidity: int = 0
    """Mailboxes whose UIDVALIDITY is higher now than each side showed."""


NO_CONFLICTS = Conflicts()


def of_mailboxes(merged: MailboxState, sides: tuple[MailboxState, MailboxState], since: Since | None) -> Conflicts:
    """Return the conflicts that a merge of two states of a mailbox has decided.

    `since`: when the sides parted. If that is not known, each flag that the sides show in different states counts as
    changed by both.
    """
    uids = flags = deliveries = 0
    for row, mine, other in _messages(merged, sides):
        uids += any(shown is not None and shown.uid != row.uid for shown in (mine, other))
        if mine is not None and other is not None and mine != other:
            flags += _both_changed(mine.flags, other.flags, since or Since())
            deliveries += not shares_placement(mine, other)
    risen = merged.risen > max(side.risen for side in sides)
    return Conflicts(uid=uids, flags=flags, delivery=deliveries, uidvalidity=risen)


def of_trees(merged: TreeState, sides: Sequence[TreeState]) -> Conflicts:
    """Return the conflicts that a merge of two states of a folder tree has decided."""
    names = uidvalidities = 0
    for mailbox_id, folder in merged.folders.items():
        shown = [side.folders[mailbox_id] for side in sides if mailbox_id in side.folders]
        names += is_united(folder) and any(not before.deleted for before in shown)
        uidvalidities += (
            not folder.deleted and bool(shown) and folder.uidvalidity > max(before.uidvalidity for before in shown)
        )
    return Conflicts(folder_name=names, uidvalidity=uidvalidities)


def _messages(
    merged: MailboxState, sides: tuple[MailboxState, MailboxState]
) -> Iterator[tuple[Row, Row | None, Row | None]]:
    """Yield each message that stays, and what each side showed of it."""
    ours, theirs = sides
    for row in merged.rows.values():
        yield row, ours.message(row.guid), theirs.message(row.guid)


def _both_changed(mine: FlagStates, other: FlagStates, since: Since) -> bool:
    """Return True if there is a flag that each side has changed since they parted."""
    return mine != other and any(
        mine[flag] != other[flag] and mine[flag][0] >= since.ours and other[flag][0] >= since.theirs
        for flag in mine.keys() & other.keys()
    )
