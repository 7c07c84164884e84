"""Places of messages at each step of a mailbox's history.

Entries name messages by UID, and only those that add or merge also tell GUIDs. So a message is followed from entry to
entry: a UID names one message on each branch, and a merge tells the UID that the message has from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from protocol.values import Dot, UidSet
from resync.entry import Change, Entry, FlagAdd, FlagDel, MailAdd, MailDel, Merge


class Place(NamedTuple):
    """The state of a message in a mailbox. `uid` None: the message is not there. `flags` None: they are not known."""

    uid: int | None
    flags: frozenset[str] | None = None


Places: TypeAlias = Mapping[bytes, Place]
"""Places by GUID. A GUID that is missing: not known."""

NOT_THERE = Place(None, frozenset())
_UNKNOWN: Places = {}


class Step(NamedTuple):
    """An entry with the places of some messages: before it, for each of its predecessors, and after it."""

    entry: Entry
    before: tuple[Places, ...]
    after: Places


def steps(entries: Iterable[Entry], guids: Collection[bytes], begin: Mapping[Dot, Places] | None = None) -> list[Step]:
    """Follow these messages through the entries.

    `begin`: where they were after entries that are not given, if that is known. Before a mailbox's first entry no
    message is there.
    """
    wanted = frozenset(guids)
    after: dict[Dot, Places] = dict(begin or {})
    nothing: Places = dict.fromkeys(wanted, NOT_THERE)
    found: list[Step] = []
    for entry in entries:
        before = tuple(after.get(dot, _UNKNOWN) for dot in entry.predecessors) or (nothing,)
        now = _joined(before)
        for change in entry.changes:
            now = _changed(now, change, wanted)
        after[entry.dot] = now
        found.append(Step(entry, before, now))
    return found


def begin_of(
    entries: Iterable[Entry], guid: bytes, shown: tuple[int, Dot] | None, last_uid: int | None
) -> Place | None:
    """Return where a message was before the first of the entries, if that follows from what is known of it later.

    All entries stand on one that is not given. `shown`: the message's present UID, and the entry that gave it.
    `last_uid`: the UID that an expunged message had last. A UID that none of the entries has given is older than all of
    them.
    """
    given, claims = set[Dot](), [] if shown is None else [shown]
    is_named = False
    for entry in entries:
        given.add(entry.dot)
        for change in entry.changes:
            match change:
                case MailAdd() if change.guid == guid:
                    is_named = True
                case Merge():
                    rows = [row for row in change.rows if row.guid == guid]
                    claims += [(row.uid, row.claim) for row in rows]
                    is_named = is_named or bool(rows)
    for uid, claim in claims:
        if claim not in given:
            return Place(uid)
    return Place(last_uid) if last_uid is not None and not is_named else None


def _joined(before: tuple[Places, ...]) -> Places:
    """Return what the branches tell together: what a merge does not change is the same on all of them."""
    first, *others = before
    if not others:
        return first
    return {guid: place for places in reversed(before) for guid, place in places.items()}


def _changed(places: Places, change: Change, wanted: frozenset[bytes]) -> Places:
    match change:
        case MailAdd() if change.guid in wanted:
            return {**places, change.guid: Place(change.uid, frozenset(change.flags))}
        case MailDel(uids):
            return _with(places, dict.fromkeys(_named(places, uids), NOT_THERE))
        case FlagAdd(uids, flags) | FlagDel(uids, flags):
            return _with(places, {guid: _flagged(places[guid], change, flags) for guid in _named(places, uids)})
        case Merge():
            there = {row.guid: Place(row.uid, row.visible_flags()) for row in change.rows if row.guid in wanted}
            return _with(places, {**dict.fromkeys(wanted.intersection(change.removed), NOT_THERE), **there})
    return places


def _named(places: Places, uids: UidSet) -> list[bytes]:
    return [guid for guid, place in places.items() if place.uid is not None and place.uid in uids]


def _flagged(place: Place, change: Change, flags: tuple[str, ...]) -> Place:
    if place.flags is None:
        return place
    return place._replace(
        flags=place.flags.union(flags) if isinstance(change, FlagAdd) else place.flags.difference(flags)
    )


def _with(places: Places, changed: Places) -> Places:
    return {**places, **changed} if changed else places
