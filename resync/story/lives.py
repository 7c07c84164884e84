"""The life of one message in one mailbox, and of the folder: what happened to them, in values fit for JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from protocol.values import Dot
from resync.entry import (
    Change,
    Entry,
    FlagAdd,
    FlagDel,
    FolderCreate,
    FolderDelete,
    FolderRename,
    MailAdd,
    MailDel,
    Merge,
    TreeMerge,
)
from resync.story.places import NOT_THERE, Place, Step

EventKind: TypeAlias = Literal[
    "arrived", "copied", "flags_set", "flags_cleared", "expunged", "renumbered", "merged", "removed"
]


@dataclass(frozen=True, slots=True)
class Event:
    r"""One thing that happened to a message, by one entry, which `node` has numbered at `time_ms`.

    - `arrived`, `copied` (from a message that the node had): `uid`, and `flags`, if it came with any.
    - `flags_set`, `flags_cleared`: `flags`.
    - `expunged`: `uid`, which it had.
    - `renumbered`, by a merge: `uid`, and `was`, its UIDs on the branches, as far as they are known.
    - `merged`: the branches showed it differently; `flags` are those set afterwards, `placements` how many it has.
    - `removed`, by a merge: one of the branches had expunged it.
    """

    kind: EventKind
    entry: str
    node: str
    time_ms: int
    uid: int | None = None
    was: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()
    placements: int = 1


def named(dot: Dot) -> str:
    """Return the name of an entry as people see it."""
    return f"{dot.origin} {dot.seq}"


def events(followed: Iterable[Step], guid: bytes) -> list[Event]:
    """Return what happened to a message that `places.steps` has followed."""
    return [event for step in followed for event in _events(step, guid)]


def _events(step: Step, guid: bytes) -> Iterator[Event]:
    entry, places = step.entry, [before.get(guid) for before in step.before]
    merges = [change for change in entry.changes if isinstance(change, Merge)]
    if merges:
        yield from _of_merge(entry, merges, guid, places)
        return
    uid = None if places[0] is None else places[0].uid
    for change in entry.changes:
        match change:
            case MailAdd() if change.guid == guid:
                yield _event("copied" if change.copied else "arrived", entry, change.uid, change.flags)
                uid = change.uid
            case FlagAdd(uids, flags) if uid is not None and uid in uids:
                yield _event("flags_set", entry, uid, flags)
            case FlagDel(uids, flags) if uid is not None and uid in uids:
                yield _event("flags_cleared", entry, uid, flags)
            case MailDel(uids) if uid is not None and uid in uids:
                yield _event("expunged", entry, uid)
                uid = None


def _of_merge(entry: Entry, merges: Sequence[Merge], guid: bytes, places: Sequence[Place | None]) -> Iterator[Event]:
    row = next((row for merge in merges for row in merge.rows if row.guid == guid), None)
    was = tuple(dict.fromkeys(place.uid for place in places if place is not None and place.uid is not None))
    if row is not None:
        kind: EventKind = "renumbered" if row.claim == entry.dot else "merged"
        flags = tuple(sorted(row.visible_flags()))
        yield Event(kind, named(entry.dot), entry.dot.sid, entry.stamp.ms, row.uid, was, flags, len(row.placements()))
    elif any(guid in merge.removed for merge in merges) and any(place != NOT_THERE for place in places):
        yield Event("removed", named(entry.dot), entry.dot.sid, entry.stamp.ms, was=was)


def _event(kind: EventKind, entry: Entry, uid: int, flags: tuple[str, ...] = ()) -> Event:
    return Event(kind, named(entry.dot), entry.dot.sid, entry.stamp.ms, uid, flags=flags)


FolderEventKind: TypeAlias = Literal["created", "renamed", "deleted", "merged"]


@dataclass(frozen=True, slots=True)
class FolderEvent:
    """One thing that happened to a folder, by one entry of the user's tree. `name`: its name afterwards.

    `merged`: the branches showed the folder differently; `is_deleted` says what the merge made of it.
    """

    kind: FolderEventKind
    mailbox_id: str
    name: str | None
    is_deleted: bool
    entry: str
    node: str
    time_ms: int


def folder_events(entries: Iterable[Entry], mailbox_ids: Collection[bytes]) -> list[FolderEvent]:
    """Return what entries of a tree did to these folders."""
    return [
        FolderEvent(kind, mailbox_id.hex(), name, is_deleted, named(entry.dot), entry.dot.sid, entry.stamp.ms)
        for entry in entries
        for change in entry.changes
        for kind, mailbox_id, name, is_deleted in _of_folders(change)
        if mailbox_id in mailbox_ids
    ]


def _of_folders(change: Change) -> Iterator[tuple[FolderEventKind, bytes, str | None, bool]]:
    match change:
        case FolderCreate(mailbox_id, name):
            yield "created", mailbox_id, name, False
        case FolderRename(mailbox_id, name):
            yield "renamed", mailbox_id, name, False
        case FolderDelete(mailbox_id):
            yield "deleted", mailbox_id, None, True
        case TreeMerge():
            for folder in change.folders:
                yield "merged", folder.mailbox_id, folder.name, folder.deleted
