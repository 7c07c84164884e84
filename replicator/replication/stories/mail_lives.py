"""From rows and entries to the lives of mails. All functions run in a reader's thread."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from protocol.values import Dot
from replicator.store.db import queries
from replicator.store.db.queries import Connection
from replicator.store.gc import expunged
from replicator.store.gc.expunged import Kept
from replicator.store.log.stories import story_rows
from replicator.store.log.stories.chain_walk import ChainWalk
from replicator.stories import Arrivals, FlagState, KeptMail, ShownMail
from resync.clock import COUNTER_BITS
from resync.entry import Entry
from resync.row import Row
from resync.story.branches import meetings
from resync.story.lives import Event, FolderEvent, events, folder_events, named
from resync.story.places import Place, begin_of, steps

ARRIVALS_MAX = 8  # entries that are compared with each other
EVENTS_MAX = 500  # of one mail: its flags may have been changed by every entry of the log


class MailRows(NamedTuple):
    """The rows of one mail in one folder."""

    mailbox_id: bytes
    guid: bytes
    shown: Row | None
    kept: Kept | None
    has_body: bool

    def shown_mail(self) -> ShownMail | None:
        """Return the mail as the folder shows it."""
        row = self.shown
        if row is None:
            return None
        flags = sorted(row.flags.items())
        return ShownMail(
            uid=row.uid,
            flags=tuple(FlagState(flag, is_set, sid, time >> COUNTER_BITS) for flag, (time, sid, is_set) in flags),
            placements=tuple(named(dot) for dot, _ in row.placements()),
            placed_at=tuple(dot.sid for dot, _ in row.placements()),
            saved_ms=row.saved_ms,
        )

    def kept_mail(self, keep_ms: int) -> KeptMail | None:
        """Return the mail as it is kept for `undelete`, for so long after its expunge."""
        kept = self.kept
        if kept is None:
            return None
        return KeptMail(kept.uid, kept.expunged_ms, kept.expunged_ms + keep_ms, self.has_body)


class LogTold(NamedTuple):
    """The lives of mails in one folder as the log tells them: events by GUID, and entries that this node does not show.

    `left`, by GUID, `since_ms`, `is_whole`: as in `MailLife`.
    """

    events: Mapping[bytes, Sequence[Event]]
    left: Mapping[bytes, int]
    unshown: frozenset[str]
    arrivals: tuple[Arrivals, ...]
    since_ms: int | None
    is_whole: bool


def rows_of(connection: Connection, mailbox_id: bytes, guids: Iterable[bytes]) -> dict[bytes, MailRows]:
    """Return the rows of these mails, by GUID. Raises DamagedRowError."""
    return {guid: _rows_of(connection, mailbox_id, guid) for guid in guids}


def _rows_of(connection: Connection, mailbox_id: bytes, guid: bytes) -> MailRows:
    shown = queries.row_of_guid(connection, guid, mailbox_id)
    kept = expunged.kept_one(connection, mailbox_id, guid)
    one = shown or kept
    has_body = one is not None and story_rows.has_body(connection, one.content_hash)
    return MailRows(mailbox_id, guid, shown, kept, has_body)


def told_by_log(_connection: Connection, walked: ChainWalk, rows: Mapping[bytes, MailRows]) -> LogTold:
    """Return what the entries of one folder tell of these mails."""
    entries = [one.entry for one in reversed(walked.found)]
    told: dict[bytes, Sequence[Event]] = {}
    left: dict[bytes, int] = {}
    for guid, row in rows.items():  # one after the other: of all at once, the steps might not fit in memory
        happened = events(steps(entries, [guid], _begin(entries, walked.base, row)), guid)
        told[guid] = _most_telling(happened)
        left[guid] = len(happened) - len(told[guid])
    return LogTold(
        told,
        left,
        frozenset(named(one.entry.dot) for one in walked.found if one.state != "shown"),
        tuple(_arrivals(entries, told)),
        entries[0].stamp.ms if entries else None,
        not walked.absent and not walked.is_cut,
    )


def _begin(entries: Sequence[Entry], base: Dot | None, row: MailRows) -> dict[Dot, dict[bytes, Place]]:
    """Return where a mail was after the entry on which all others stand, as far as that is known."""
    if base is None:
        return {}
    shown = None if row.shown is None else (row.shown.uid, row.shown.claim)
    place = begin_of(entries, row.guid, shown, None if row.kept is None else row.kept.uid)
    return {base: {} if place is None else {row.guid: place}}


def _most_telling(happened: Sequence[Event]) -> Sequence[Event]:
    """Return `EVENTS_MAX` of the events: changes of flags give way to all others, and older ones to newer ones."""
    order = sorted(range(len(happened)), key=lambda at: (happened[at].kind in {"flags_set", "flags_cleared"}, -at))
    return [happened[at] for at in sorted(order[:EVENTS_MAX])]


def told_by_tree(_connection: Connection, walked: ChainWalk, mailbox_ids: Collection[bytes]) -> list[FolderEvent]:
    """Return what the entries of a user's folder tree tell of these folders."""
    return folder_events((one.entry for one in reversed(walked.found)), mailbox_ids)


def _arrivals(entries: Sequence[Entry], told: Mapping[bytes, Sequence[Event]]) -> Iterator[Arrivals]:
    """Yield how the entries that brought the mails stand to each other."""
    names = {event.entry for some in told.values() for event in some if event.kind in {"arrived", "copied"}}
    brought: list[Dot] = [*islice((entry.dot for entry in entries if named(entry.dot) in names), ARRIVALS_MAX)]
    for one, other, are_apart, merge in meetings(entries, brought):
        by = merge if are_apart else None
        ended = (None, None) if by is None else (named(by.dot), by.stamp.ms)
        yield Arrivals(named(one), named(other), are_apart, *ended)
