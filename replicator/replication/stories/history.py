"""The history of a mailbox or a folder tree, from this node's log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import trio

from replicator.errors import FolderNotFoundError
from replicator.replication import timing
from replicator.store.db.queries import Connection
from replicator.store.log.stories import story_rows
from replicator.store.log.stories.chain_walk import ChainWalk, WalkedEntry
from replicator.store.log.stories.story_rows import KnownFolder
from replicator.store.store import Reader
from replicator.stories import AbsentEntry, LoggedEntry, LoggedHistory
from resync.entry import tree_id
from resync.story.deeds import Deed, deeds_of_mailbox, deeds_of_tree
from resync.story.lives import named

BEFORE = 500
"""Entries before those that are asked for, by which merges are told better: which UIDs they have replaced."""


async def walk(reader: Reader, walking: ChainWalk, until: float) -> ChainWalk:
    """Walk to the end, or until a time of the event loop. Raises DatabaseFailedError."""
    while await reader.read(walking.go_on):
        if trio.current_time() >= until:
            walking.cut()
            break
    return walking


async def find_folder(reader: Reader, sid: str, user: str, name: str) -> KnownFolder:
    """Return a folder that the user has, or had when it was deleted. Raises FolderNotFoundError."""
    folder = await reader.read(partial(story_rows.folder_named, user=user, name=name))
    if folder is None:
        raise FolderNotFoundError(
            f"{user} has no folder {name!r} at {sid}, not even a deleted one; one that was renamed is known by its new"
            f" name: `replicator log show {user}` tells which"
        )
    return folder


async def history_of(
    reader: Reader, sid: str, user: str, mailbox: str | None, *, last: int, since_ms: int
) -> LoggedHistory:
    """Return the last entries of a mailbox, or with None of the user's folder tree.

    Raises FolderNotFoundError, DatabaseFailedError.
    """
    chain_id = tree_id(user) if mailbox is None else (await find_folder(reader, sid, user, mailbox)).mailbox_id
    walked = await walk(reader, ChainWalk(chain_id, most=last + BEFORE), trio.current_time() + timing.STORY_READ_S)
    if mailbox is None and walked.head is None and not walked.found:
        raise FolderNotFoundError(f"{user} has no folders at {sid}, and had none")
    told = [one for one in walked.found[:last] if one.entry.stamp.ms >= since_ms]
    named_here = {walked.head, *(dot for one in told for dot in one.entry.predecessors)}
    entries = await reader.read(partial(_logged, walked.found, told, user, is_tree=mailbox is None))
    return LoggedHistory(
        node=sid,
        user=user,
        mailbox=mailbox,
        mailbox_id=chain_id.hex(),
        head=None if walked.head is None else named(walked.head),
        entries=entries,
        absent=tuple(AbsentEntry(named(dot), why) for dot, why in walked.absent.items() if dot in named_here),
        is_cut=walked.is_cut or len(told) < len(walked.found),
    )


def _logged(
    found: Sequence[WalkedEntry], told: Iterable[WalkedEntry], user: str, connection: Connection, *, is_tree: bool
) -> tuple[LoggedEntry, ...]:
    """Return the entries that are to be told, by all that were found; in a thread, since they may be many."""
    entries = [walked.entry for walked in reversed(found)]
    deeds = deeds_of_tree(entries, story_rows.folder_names(connection, user)) if is_tree else deeds_of_mailbox(entries)
    return tuple(_logged_entry(walked, deeds[walked.entry.dot]) for walked in told)


def _logged_entry(walked: WalkedEntry, deeds: tuple[Deed, ...]) -> LoggedEntry:
    entry = walked.entry
    return LoggedEntry(
        entry=named(entry.dot),
        predecessors=tuple(dict.fromkeys(map(named, entry.predecessors))),
        node=entry.dot.sid,
        time_ms=entry.stamp.ms,
        modseq=entry.modseq,
        state=walked.state,
        deeds=deeds,
    )
