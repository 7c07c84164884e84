"""The part of an entry that one story needs, so that a long history fits in memory.

What is left of an entry tells the same of the messages or folders that the story is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

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


def about(entry: Entry, guids: frozenset[bytes]) -> Entry:
    """Return the entry with what it tells of these messages, and with all that names messages by UID."""
    return replace(entry, changes=tuple(_about(entry, guids)))


def _about(entry: Entry, guids: frozenset[bytes]) -> Iterator[Change]:
    for change in entry.changes:
        match change:
            case MailAdd() if change.guid in guids:
                yield change
            case MailDel() | FlagAdd() | FlagDel():
                yield change
            case Merge():
                rows = tuple(row for row in change.rows if row.guid in guids)
                yield change._replace(rows=rows, removed=tuple(guids.intersection(change.removed)), context=())


def adding(entry: Entry, is_wanted: Callable[[bytes, int], bool]) -> Entry:
    """Return the entry with the messages only that it brings, or merges, and that are wanted by GUID and UID."""
    return replace(entry, changes=tuple(_adding(entry, is_wanted)))


def _adding(entry: Entry, is_wanted: Callable[[bytes, int], bool]) -> Iterator[Change]:
    for change in entry.changes:
        match change:
            case MailAdd() if is_wanted(change.guid, change.uid):
                yield change
            case Merge():
                rows = tuple(row for row in change.rows if is_wanted(row.guid, row.uid))
                yield change._replace(rows=rows, removed=(), context=())


def added_by(entry: Entry) -> dict[bytes, bytes]:
    """Return the content hashes of the messages that an entry brings, or merges, by GUID."""
    found: dict[bytes, bytes] = {}
    for change in entry.changes:
        match change:
            case MailAdd():
                found[change.guid] = change.content_hash
            case Merge():
                found |= {row.guid: row.content_hash for row in change.rows}
    return found


def about_folders(entry: Entry) -> Entry:
    """Return the entry of a tree with what it tells of folders themselves."""
    kinds = FolderCreate | FolderRename | FolderDelete | TreeMerge
    return replace(entry, changes=tuple(change for change in entry.changes if isinstance(change, kinds)))
