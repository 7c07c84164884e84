"""Deeds of entries, one for each kind of change, in values that can be written as JSON.

UIDs are the text of an IMAP sequence set (RFC 3501 section 9) of at most `RANGES_MAX` ranges; `messages` counts all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from protocol.values import Dot, UidSet
from resync.entry import (
    NOWHERE,
    Entry,
    FlagAdd,
    FlagDel,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderSubscribe,
    MailAdd,
    MailDel,
    Merge,
    Raise,
    TreeMerge,
)
from resync.folder_tree import GIVEN_UP
from resync.row import Row
from resync.story.places import Place, Places, Step, steps

RANGES_MAX = 100
LISTED_MAX = 20  # messages of a merge that are listed with their UIDs before and after it, and names of a deed
FOLLOWED_MAX = 200  # messages that are followed through the entries to tell which UIDs merges have replaced

MailKind: TypeAlias = Literal[
    "arrived", "copied", "expunged", "flags_set", "flags_cleared", "merged", "raised",
]  # fmt: skip
TreeKind: TypeAlias = Literal[
    "folder_created", "folder_renamed", "folder_deleted", "subscribed", "unsubscribed", "annotated", "trees_merged",
]  # fmt: skip
Kind: TypeAlias = MailKind | TreeKind


@dataclass(frozen=True, slots=True)
class Renumbered:
    """A message to which a merge has given another UID. `before`: its UIDs on the branches, as far as known."""

    after: int
    before: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing that an entry did. A member that does not belong to the deed's kind has its default.

    - `arrived`, `copied`, `expunged`: `messages`, `uids`; for `flags_set` and `flags_cleared` also `names`, the flags.
    - `merged`: `messages` have got other UIDs, of which `renumbered` lists some; `joined` messages of one branch keep
      theirs; `changed` messages of both branches differed in flags or placements; of `differing` ones the given entries
      do not tell which of these they are; `removed` were expunged on a branch;
      `risen`, if this one has raised the UIDVALIDITY, is by how much merges have raised it in all.
    - `raised`: UIDNEXT or HIGHESTMODSEQ, or both, to those of another server; UIDNEXT became, or was, `uidnext`.
    - `folder_created`, `folder_renamed`, `folder_deleted`: `folder`, and `was`, its name before; None: not known.
    - `subscribed`, `unsubscribed`: `folder`.
    - `annotated`: `folder`, or None for the account; `names` are those of the annotations.
    - `trees_merged`: `names` are those of folders that the branches showed differently; `changed` counts them and the
      differing subscriptions and annotations.
    """

    kind: Kind
    messages: int = 0
    uids: str = ""
    names: tuple[str, ...] = ()
    renumbered: tuple[Renumbered, ...] = ()
    joined: int = 0
    changed: int = 0
    differing: int = 0
    removed: int = 0
    risen: int = 0
    uidnext: int = 0
    folder: str | None = None
    was: str | None = None


def deeds_of_mailbox(entries: Sequence[Entry]) -> dict[Dot, tuple[Deed, ...]]:
    """Return what each of a mailbox's entries did."""
    guids: dict[bytes, None] = {}
    for entry in entries:
        for row in _rows(entry):
            if len(guids) < FOLLOWED_MAX:
                guids[row.guid] = None
    given = {entry.dot for entry in entries}
    risen = _Risen()
    return {step.entry.dot: tuple(_deeds(step, given, risen.after(step.entry))) for step in steps(entries, guids)}


def deeds_of_tree(entries: Sequence[Entry], names: Mapping[bytes, str]) -> dict[Dot, tuple[Deed, ...]]:
    """Return what each entry of a folder tree did.

    `names`: of folders now, for those that no entry has named before.
    """
    branches = _NamesOfBranches(entries)
    found: dict[Dot, tuple[Deed, ...]] = {}
    for entry in entries:
        found[entry.dot] = tuple(_deeds_of_tree(entry, branches.at(entry), names))
    return found


class _NamesOfBranches:
    """The names of folders at each entry, as its branch has given them. Branches may give a folder different ones."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._at: dict[Dot, dict[bytes, str]] = {}
        self._to_come = Counter(dot for entry in entries for dot in {*entry.predecessors})

    def at(self, entry: Entry) -> dict[bytes, str]:
        """Return the names before the entry; the caller writes into them what it changes."""
        found: dict[bytes, str] = {}
        for dot in dict.fromkeys(entry.predecessors):
            self._to_come[dot] -= 1
            before = self._at.get(dot, {})
            if not self._to_come[dot]:  # no other entry stands on it: its names are free to be changed
                self._at.pop(dot, None)
            elif before:
                before = dict(before)
            found = {**before, **found} if found else before
        self._at[entry.dot] = found
        return found


class _Risen:
    """By how much merges have raised the UIDVALIDITY at each entry, as far as that is known."""

    def __init__(self) -> None:
        self._at: dict[Dot, int] = {}

    def after(self, entry: Entry) -> int:
        """Return it for a merge that has raised the UIDVALIDITY, or may have; 0 for all other entries."""
        before = [self._at[dot] for dot in entry.predecessors if dot in self._at]
        now = max(before, default=0)
        for change in entry.changes:
            if isinstance(change, Merge):
                now = max(now, change.risen)
        if entry.is_merge or before or not entry.predecessors:
            self._at[entry.dot] = now
        return now if entry.is_merge and now not in before else 0


def _rows(entry: Entry) -> Iterable[Row]:
    return (row for change in entry.changes if isinstance(change, Merge) for row in change.rows)


def _deeds(step: Step, given: Collection[Dot], risen: int) -> Iterable[Deed]:
    entry = step.entry
    for is_copied in (False, True):
        adds = [add for add in entry.changes if isinstance(add, MailAdd) and add.copied is is_copied]
        if adds:
            yield _on("copied" if is_copied else "arrived", UidSet.of(add.uid for add in adds))
    merges: list[Merge] = []
    for change in entry.changes:
        match change:
            case MailDel(uids):
                yield _on("expunged", uids)
            case FlagAdd(uids, flags):
                yield _on("flags_set", uids, flags)
            case FlagDel(uids, flags):
                yield _on("flags_cleared", uids, flags)
            case Merge():
                merges.append(change)
    if raised := [change.uidnext for change in entry.changes if isinstance(change, Raise)]:
        yield Deed("raised", uidnext=raised[-1])
    if merges:
        yield _merged(step, merges, given, risen)


def _on(kind: Kind, uids: UidSet, names: tuple[str, ...] = ()) -> Deed:
    return Deed(kind, len(uids), str(UidSet(uids.ranges[:RANGES_MAX])), names[:LISTED_MAX])


def _merged(step: Step, merges: Sequence[Merge], given: Collection[Dot], risen: int) -> Deed:
    rows = [row for merge in merges for row in merge.rows]
    anew = [row for row in rows if row.claim == step.entry.dot]
    kept = Counter(_kind_of(row, step.before, given) for row in rows if row.claim != step.entry.dot)
    listed = tuple(Renumbered(row.uid, _uids(row.guid, step.before)) for row in anew[:LISTED_MAX])
    return Deed(
        "merged",
        messages=len(anew),
        renumbered=listed,
        joined=kept["joined"],
        changed=kept["changed"],
        differing=kept["differing"],
        removed=sum(len(merge.removed) for merge in merges),
        risen=risen,
    )


def _kind_of(row: Row, before: Sequence[Places], given: Collection[Dot]) -> Literal["joined", "changed", "differing"]:
    """Return how the branches showed a message that keeps its UID.

    A branch of which it is not known did not show it if all of its placements are given: they are of other branches.
    """
    known = [places[row.guid] for places in before if row.guid in places]
    if any(place.uid is None for place in known):
        return "joined"
    if len(known) == len(before):
        return "changed"
    return "joined" if known and all(dot in given for dot, _ in row.placements()) else "differing"


def _uids(guid: bytes, before: Sequence[Places]) -> tuple[int, ...]:
    found: list[Place] = [places[guid] for places in before if guid in places]
    return tuple(dict.fromkeys(place.uid for place in found if place.uid is not None))


def _deeds_of_tree(entry: Entry, before: dict[bytes, str], names: Mapping[bytes, str]) -> Iterable[Deed]:
    merges: list[TreeMerge] = []
    for change in entry.changes:
        match change:
            case FolderCreate(mailbox_id, name):
                yield Deed("folder_created", folder=name)
                before[mailbox_id] = name
            case FolderRename(mailbox_id, name):
                yield Deed("folder_renamed", folder=name, was=before.get(mailbox_id))
                before[mailbox_id] = name
            case FolderDelete(mailbox_id):
                yield Deed("folder_deleted", folder=before.get(mailbox_id, names.get(mailbox_id)))
            case FolderSubscribe(name, subscribed):
                yield Deed("subscribed" if subscribed else "unsubscribed", folder=name)
            case FolderAnnotate(mailbox_id, values):
                folder = None if mailbox_id == NOWHERE else before.get(mailbox_id, names.get(mailbox_id, "?"))
                yield Deed("annotated", folder=folder, names=tuple(name for name, _ in values)[:LISTED_MAX])
            case TreeMerge():
                merges.append(change)
                before |= {folder.mailbox_id: folder.name for folder in change.folders}
    if merges:
        yield _trees_merged(merges)


def _trees_merged(merges: Sequence[TreeMerge]) -> Deed:
    folders = [folder for merge in merges for folder in merge.folders if folder.sid != GIVEN_UP]
    others = sum(len(merge.subscriptions) + len(merge.annotations) for merge in merges)
    names = dict.fromkeys(folder.name for folder in folders)
    return Deed("trees_merged", names=tuple(names)[:LISTED_MAX], changed=len(folders) + others)
