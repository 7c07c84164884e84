"""The database's records of references to attachments, for a sweep of the store (`attachments.sweep.Records`)."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from itertools import islice
from typing import NamedTuple

from replicator.store.attachments import names
from replicator.store.attachments.construction import Holding
from replicator.store.attachments.files import MissingError
from replicator.store.attachments.store import Attachments
from replicator.store.bodies.attachment_ranges import HASH_BYTES

log = logging.getLogger(__name__)

ATTACHMENTS_AT_ONCE = 500  # each is looked up on disk


def holdings_in(rows: Iterable[tuple[object, ...]]) -> Iterator[Holding]:
    """Yield references from rows of hash, holder and kept. Damaged rows are logged and skipped."""
    for row in rows:
        holding = _holding_in(row)
        if holding is None:
            log.warning("skipping a damaged row of table attachment: %r", row)
        else:
            yield holding


def _holding_in(row: Sequence[object]) -> Holding | None:
    attachment_hash, holder, kept = row
    if not (isinstance(attachment_hash, bytes) and len(attachment_hash) == HASH_BYTES and isinstance(holder, str)):
        return None
    return Holding(attachment_hash, holder, kept=bool(kept)) if names.owner_of(holder) else None


class RecordedHolders:
    """The database as the sweep's `Records`. Each call sees the last commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def holders(self, content_hash: bytes, among: Iterable[str]) -> AbstractSet[str]:
        """See `Records`. An attachment may have any number of holders, so only these are looked up."""
        query = "SELECT 1 FROM attachment WHERE hash = ? AND holder = ? AND kept = 0"
        asked = ((holder, self._connection.execute(query, (content_hash, holder)).fetchone()) for holder in among)
        return {holder for holder, found in asked if found is not None}

    def is_held(self, content_hash: bytes) -> bool:
        """See `Records`."""
        query = "SELECT 1 FROM attachment WHERE hash = ? AND kept = 0 LIMIT 1"
        return self._connection.execute(query, (content_hash,)).fetchone() is not None

    def is_kept(self, holder: str) -> bool:
        """See `Records`."""
        query = "SELECT 1 FROM attachment WHERE holder = ? AND kept = 1"
        return self._connection.execute(query, (holder,)).fetchone() is not None

    def holdings(self, after: Holding | None, limit: int) -> Sequence[Holding]:
        """See `Records`."""
        key = (b"", "") if after is None else (after.hash, after.holder)
        query = "SELECT hash, holder, kept FROM attachment WHERE (hash, holder) > (?, ?) ORDER BY hash, holder"
        with closing(self._connection.execute(query, key)) as rows:
            return list(islice(holdings_in(rows), limit))


class LostAttachments(NamedTuple):
    """A slice of the recorded references: their number, the key to continue after, and the bodies that lack one."""

    size: int
    after: tuple[bytes, bytes] | None
    bodies: list[bytes]


def lost_attachments(
    connection: sqlite3.Connection, attachments: Attachments, after: tuple[bytes, bytes]
) -> LostAttachments:
    """Return the hashes of bodies with an attachment that is not where it is recorded to be. None is verified."""
    query = "SELECT text, hash, holder, kept FROM attachment WHERE (text, hash) > (?, ?) ORDER BY text, hash LIMIT ?"
    rows = connection.execute(query, (*after, ATTACHMENTS_AT_ONCE)).fetchall()
    lost = [content_hash for content_hash, *row in rows if not _is_there(attachments, row)]
    return LostAttachments(len(rows), (rows[-1][0], rows[-1][1]) if rows else None, lost)


def _is_there(attachments: Attachments, row: Sequence[object]) -> bool:
    holding = _holding_in(row)
    try:
        return holding is not None and attachments.size(holding) >= 0
    except (MissingError, OSError):
        return False


def body_of(connection: sqlite3.Connection, holding: Holding) -> bytes | None:
    """Return the hash of the body that a reference is recorded for, if it still is."""
    query = "SELECT text FROM attachment WHERE hash = ? AND holder = ?"
    row = connection.execute(query, (holding.hash, holding.holder)).fetchone()
    return row[0] if row else None


def large_bodies(connection: sqlite3.Connection, after: int, limit: int) -> list[tuple[int, bytes]]:
    """Return bodies that have attachments: the row id to continue after, and the hash."""
    query = "SELECT id, hash FROM content WHERE parted = 1 AND id > ? ORDER BY id LIMIT ?"
    return connection.execute(query, (after, limit)).fetchall()
