"""Extract mail and folders from entries that can never be applied because their predecessors are lost.

Only the entries of such a branch are known, not the state on which its first one stands. So only UIDs that entries of
the branch itself have given can be resolved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from protocol.values import Context, Dot, UidSet, context_of
from resync.entry import Entry, FlagAdd, FlagDel, FolderCreate, FolderDelete, FolderRename, MailAdd, MailDel, Merge
from resync.row import Placement, Row

Branch = list[Entry]
"""Entries that stand on each other, in the order of their history."""


def branches_of(entries: Iterable[Entry]) -> list[Branch]:
    """Group the entries of one mailbox or tree into branches. A merge continues one of the branches that it joins."""
    branch_of: dict[Dot, Branch] = {}
    found: list[Branch] = []
    for entry in sorted(entries, key=lambda entry: (entry.modseq, entry.dot)):
        branch = next((branch_of[dot] for dot in entry.predecessors if dot in branch_of), None)
        if branch is None:
            branch = []
            found.append(branch)
        branch.append(entry)
        branch_of[entry.dot] = branch
    return found


def mail_left(branches: Sequence[Branch], seen: Context) -> Iterator[MailAdd]:
    """Yield the mail that the branches add, with its last flags there, without the mail that any of them expunges.

    `seen` is the mailbox's context. Mail that a merge shows and the mailbox has seen is left out: it is there, or was
    expunged, however long ago.
    """
    replays = [_Replay(branch, seen) for branch in branches]
    expunged = set[Placement]().union(*(replay.expunged for replay in replays))
    merges = [merge for branch in branches for entry in branch for merge in entry.changes if isinstance(merge, Merge)]
    removed = [(frozenset(merge.removed), context_of(merge.context)) for merge in merges]
    for replay in replays:
        for mail in replay.shown.values():
            gone = [context for guids, context in removed if mail.add.guid in guids]
            left = [one for one in mail.placements if one not in expunged and not _covers(seen, one[0])]
            if any(not any(_covers(context, dot) for context in gone) for dot, _ in left):
                yield mail.add


def folders_left(branch: Branch) -> list[FolderCreate]:
    """Return the folders that a branch creates, under their last names, without those that it deletes."""
    by_id: dict[bytes, FolderCreate] = {}
    for entry in branch:
        for change in entry.changes:
            match change:
                case FolderCreate():
                    by_id[change.mailbox_id] = change
                case FolderRename(mailbox_id, name) if mailbox_id in by_id:
                    by_id[mailbox_id] = by_id[mailbox_id]._replace(name=name)
                case FolderDelete(mailbox_id):
                    by_id.pop(mailbox_id, None)
                case _:
                    pass
    return list(by_id.values())


class _Mail(NamedTuple):
    """A message that a branch adds, with the placements that it stands for."""

    placements: tuple[Placement, ...]
    add: MailAdd


class _Replay:
    """The messages that a branch adds, by the UIDs that it gives, and those of their placements that it expunges."""

    def __init__(self, branch: Branch, seen: Context) -> None:
        self._seen = seen
        self.shown: dict[int, _Mail] = {}
        self.expunged: set[Placement] = set()
        for entry in branch:
            self._carry(entry)

    def _carry(self, entry: Entry) -> None:
        for number, change in enumerate(entry.changes):
            match change:
                case MailAdd():
                    self.shown[change.uid] = _Mail(((entry.dot, number),), change)
                case Merge(rows=rows):
                    self._replace(rows)
                case MailDel(uids):
                    self.expunged.update(one for mail in self._named(uids).values() for one in mail.placements)
                case FlagAdd(uids, flags):
                    self._set_flags(uids, added=flags)
                case FlagDel(uids, flags):
                    self._set_flags(uids, removed=flags)
                case _:
                    pass

    def _replace(self, rows: Iterable[Row]) -> None:
        by_guid = {row.guid: row for row in rows}
        brought = {mail.add.guid for mail in self.shown.values() if not mail.add.copied}
        self.shown = {uid: mail for uid, mail in self.shown.items() if mail.add.guid not in by_guid}
        for row in by_guid.values():
            if not all(_covers(self._seen, dot) for dot, _ in row.placements()):
                self.shown[row.uid] = _Mail(row.placements(), _add_of(row, copied=row.guid not in brought))

    def _set_flags(self, uids: UidSet, *, added: Iterable[str] = (), removed: Iterable[str] = ()) -> None:
        for uid, mail in self._named(uids).items():
            flags = tuple(sorted({*mail.add.flags, *added} - {*removed}))
            self.shown[uid] = mail._replace(add=mail.add._replace(flags=flags))

    def _named(self, uids: UidSet) -> dict[int, _Mail]:
        return {uid: mail for uid, mail in self.shown.items() if uid in uids}


def _add_of(row: Row, *, copied: bool) -> MailAdd:
    flags = tuple(sorted(row.visible_flags()))
    return MailAdd(row.uid, row.guid, row.received_ms, flags, row.size_bytes, row.content_hash, copied=copied)


def _covers(context: Context, dot: Dot) -> bool:
    return context.get(dot.origin, 0) >= dot.seq
