"""Mail of a damaged database beyond its readable log: the entries that added it are lost or unreadable.

There are two witnesses: readable entries whose predecessors are lost, and the rows of mailboxes. If a mailbox's rows
add up to its head's counters, they are trusted completely, also in what is absent: absent mail was expunged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from protocol.values import Dot
from replicator.store.db.chain import Chain
from replicator.store.db.entry_validation import is_well_formed
from replicator.store.repair.damaged_database import DamagedDatabase
from resync import row as rows
from resync.entry import Entry, MailAdd, checked
from resync.row import Row


class UnloggedMail(NamedTuple):
    """A message and the mailbox that showed it. Its UID is no longer valid."""

    user: str
    mailbox_id: bytes
    add: MailAdd


def of_entries(entries: Iterable[Entry]) -> dict[bytes, dict[bytes, tuple[Entry, MailAdd]]]:
    """Return the mail that entries add, by mailbox and GUID."""
    found: dict[bytes, dict[bytes, tuple[Entry, MailAdd]]] = {}
    for entry in entries:
        for change in entry.changes:
            if isinstance(change, MailAdd):
                found.setdefault(entry.mailbox_id, {})[change.guid] = entry, change
    return found


def strays(
    damaged: DamagedDatabase,
    chain: Chain,
    added: Mapping[bytes, tuple[Entry, MailAdd]],
    known: Mapping[str, int],
    came: Mapping[str, int] | None,
) -> list[UnloggedMail]:
    """Return mail, by UID, that the mailbox showed or entries added to it (`added`, by GUID) and that `known` lacks.

    `came` bounds the dots that its rows may name as their origin.
    """
    shown = damaged.rows(chain)
    is_whole = len(shown) == chain.messages and chain.fingerprint == rows.add(0, *(r.fingerprint() for r in shown))
    adds = dict(_unknown(shown, known, came))
    guids = {row.guid for row in shown}
    for guid, (entry, add) in added.items():
        is_expunged = is_whole and chain.has_seen(entry.dot) and guid not in guids
        if not is_expunged:
            adds.setdefault(guid, add)
    return [UnloggedMail(chain.user, chain.id, add) for add in sorted(adds.values())]


def _unknown(
    shown: Iterable[Row], known: Mapping[str, int], came: Mapping[str, int] | None
) -> Iterator[tuple[bytes, MailAdd]]:
    for row in shown:
        try:
            dots = [checked(dot, str, int) for dot, _ in row.placements()]
            flags = tuple(sorted(flag for flag in row.visible_flags() if flag.isascii() and flag.isprintable()))
            add = MailAdd(row.uid, row.guid, row.received_ms, flags, row.size_bytes, row.content_hash, copied=False)
            is_sound = is_well_formed(checked(add, int, bytes, int, tuple, int, bytes, bool))
        except (TypeError, AttributeError, LookupError):
            continue
        if is_sound and any(_is_new(dot, known, came) for dot in dots):
            yield row.guid, add


def _is_new(dot: Dot, known: Mapping[str, int], came: Mapping[str, int] | None) -> bool:
    return known.get(dot.origin, 0) < dot.seq and (came is None or dot.seq <= came.get(dot.origin, 0))
