"""Read queries on the database, for the writer's thread and for the readers beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from protocol.values import Context, Dot, UidSet
from replicator.mail.view import MailboxView, Message
from replicator.mail.watched_folders import WatchedFolder
from replicator.store.bodies.body_rows import read_stored
from replicator.store.db import chain as chains
from replicator.store.db.chain import Chain
from replicator.store.db.message_rows import ROW_COLUMNS, DamagedRowError, key_from, message_of, row_from
from replicator.store.db.transaction import Logged
from resync.entry import AnnotationState, Entry, FolderState, MailAdd, SubscriptionState, TreeRow
from resync.folder_tree import TreeState
from resync.row import Row

T = TypeVar("T")

Connection: TypeAlias = sqlite3.Connection
"""Source of a query. Code above `store/` only hands it from one query to the next, to read both from one snapshot."""


class Mailboxed(Protocol):
    """Anything of one mailbox or tree: a folder, a view, an entry, a command MBOX."""

    @property
    def user(self) -> str:
        """Its user."""

    @property
    def mailbox_id(self) -> bytes:
        """Its mailbox id, or its tree's id."""

    @property
    def uidvalidity(self) -> int:
        """Its UIDVALIDITY; 0: a tree."""


class MailboxKey(NamedTuple):
    """The key of a mailbox or (UIDVALIDITY 0) of a folder tree."""

    user: str
    mailbox_id: bytes
    uidvalidity: int

    @classmethod
    def of(cls, one: Mailboxed) -> MailboxKey:
        """Return the key of the mailbox or tree that this is of."""
        return cls(one.user, one.mailbox_id, one.uidvalidity)


class FolderRecord(NamedTuple):
    """A visible folder: one that is not deleted, or that received mail while it was being deleted."""

    mailbox_id: bytes
    name: str
    uidvalidity: int  # as clients see it

    def key(self, user: str) -> MailboxKey:
        """Return the key of the folder's mailbox."""
        return MailboxKey(user, self.mailbox_id, self.uidvalidity)


_WAITING = "SELECT origin, seq, chain FROM log WHERE applied = 0 UNION SELECT origin, seq, chain FROM waiting"
_OF_FOLDERS = (
    " FROM folder f LEFT JOIN chain c ON c.id = f.mailbox_id WHERE f.user = ? AND (f.deleted = 0 OR c.messages > 0)"
)
_FOLDERS = "SELECT f.mailbox_id, f.name, f.uidvalidity + COALESCE(c.risen, 0)" + _OF_FOLDERS
_WATCHED = (
    "SELECT f.name, f.mailbox_id, f.uidvalidity + COALESCE(c.risen, 0), COALESCE(c.messages, 0),"
    " COALESCE(c.unseen, 0), COALESCE(c.uidnext, 1), COALESCE(c.highestmodseq, 0)" + _OF_FOLDERS
)
# Two visible folders share a name only if one of them is deleted; the one not deleted sorts last and counts.
_ORDER = " ORDER BY f.deleted DESC, f.time, f.sid, f.mailbox_id"


def empty_chain(key: MailboxKey) -> Chain:
    """Return the head of a mailbox or tree in which nothing has happened yet."""
    return Chain(key.mailbox_id, key.user, key.uidvalidity)


def chain_or_empty(connection: sqlite3.Connection, key: MailboxKey) -> Chain:
    """Return the head of a mailbox or tree as this node shows it."""
    return chains.load(connection, key.mailbox_id) or empty_chain(key)


def folders(connection: sqlite3.Connection, user: str) -> dict[str, FolderRecord]:
    """Return the user's visible folders by name."""
    return {record.name: record for record in folders_in_sight(connection, user)}


def folders_in_sight(connection: sqlite3.Connection, user: str) -> list[FolderRecord]:
    """Return the user's visible folders.

    Of several with one name the last counts, and the others' mail belongs there.
    """
    return [FolderRecord(*row) for row in connection.execute(_FOLDERS + _ORDER, (user,))]


def folder(connection: sqlite3.Connection, user: str, name: str) -> FolderRecord | None:
    """Return the visible folder of that name, if any."""
    found = connection.execute(_FOLDERS + " AND f.name = ?" + _ORDER, (user, name)).fetchall()
    return FolderRecord(*found[-1]) if found else None


def watched_folders(connection: sqlite3.Connection, user: str) -> dict[str, WatchedFolder]:
    """Return the user's visible folders with their counters, by name."""
    rows = connection.execute(_WATCHED + _ORDER, (user,))
    return {name: WatchedFolder(*columns) for name, *columns in rows}


def watched_folder(connection: sqlite3.Connection, user: str, name: str) -> WatchedFolder | None:
    """Return the visible folder of that name with its counters, if any."""
    found = connection.execute(_WATCHED + " AND f.name = ?" + _ORDER, (user, name)).fetchall()
    return WatchedFolder(*found[-1][1:]) if found else None


def is_subscribed(connection: sqlite3.Connection, user: str, name: str) -> bool:
    """Return True if the user subscribes to this name."""
    query = "SELECT 1 FROM subscription WHERE user = ? AND name = ? AND subscribed = 1"
    return connection.execute(query, (user, name)).fetchone() is not None


def folder_name(connection: sqlite3.Connection, mailbox_id: bytes) -> str | None:
    """Return the name of a folder, deleted or not."""
    row = connection.execute("SELECT name FROM folder WHERE mailbox_id = ?", (mailbox_id,)).fetchone()
    return row[0] if row else None


def key_of(connection: sqlite3.Connection, mailbox_id: bytes) -> MailboxKey | None:
    """Return the key of a mailbox or tree, from its chain or, if that is missing, from the mailbox's folder."""
    chain = chains.load(connection, mailbox_id)
    if chain is not None:
        return MailboxKey(chain.user, mailbox_id, chain.uidvalidity)
    row = connection.execute("SELECT user, uidvalidity FROM folder WHERE mailbox_id = ?", (mailbox_id,)).fetchone()
    return MailboxKey(row[0], mailbox_id, row[1]) if row else None


def uidvalidity(connection: sqlite3.Connection, mailbox_id: bytes) -> int | None:
    """Return a folder's UIDVALIDITY as clients see it, or None if the user's tree is not here."""
    row = connection.execute(
        "SELECT f.uidvalidity + COALESCE(c.risen, 0) FROM folder f LEFT JOIN chain c ON c.id = f.mailbox_id"
        " WHERE f.mailbox_id = ?",
        (mailbox_id,),
    ).fetchone()
    return row[0] if row else None


def annotations_of(connection: sqlite3.Connection, user: str, mailbox_id: bytes) -> dict[str, bytes]:
    """Return the annotations of a folder or, with `NOWHERE`, of the account: value by name, in the order of names."""
    return dict(
        connection.execute(
            "SELECT name, value FROM annotation WHERE user = ? AND mailbox_id = ? AND value IS NOT NULL ORDER BY name",
            (user, mailbox_id),
        )
    )


def annotated(connection: sqlite3.Connection, user: str, name: str) -> dict[bytes, bytes]:
    """Return the values of one annotation of all folders that have it, by mailbox id."""
    return dict(
        connection.execute(
            "SELECT mailbox_id, value FROM annotation WHERE user = ? AND name = ? AND value IS NOT NULL", (user, name)
        )
    )


def subscriptions(connection: sqlite3.Connection, user: str) -> frozenset[str]:
    """Return the names that the user subscribes to."""
    rows = connection.execute("SELECT name FROM subscription WHERE user = ? AND subscribed = 1", (user,))
    return frozenset(name for (name,) in rows)


def mailbox_rows(connection: sqlite3.Connection, mailbox_id: bytes, uids: UidSet | None = None) -> Iterator[Row]:
    """Yield a mailbox's rows by UID: all of them, or those of `uids`."""
    select = f"SELECT {ROW_COLUMNS} FROM by_uid WHERE mailbox = ?"
    if uids is None:
        yield from _each(connection, row_from, f"{select} ORDER BY uid", (mailbox_id,))
        return
    for low, high in uids.ranges:
        yield from _each(connection, row_from, f"{select} AND uid BETWEEN ? AND ?", (mailbox_id, low, high))


def fingerprints(connection: sqlite3.Connection, mailbox_id: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield GUID and stored fingerprint of each row of a mailbox. Raises DamagedRowError."""
    query = "SELECT guid, fingerprint FROM by_uid WHERE mailbox = ? ORDER BY uid"
    return _each(connection, key_from, query, (mailbox_id,))


def _each(
    connection: sqlite3.Connection,
    meaning: Callable[[tuple[Any, ...]], T],
    query: str,
    parameters: tuple[object, ...],
) -> Iterator[T]:
    """Yield the decoded rows of a query. Closes the cursor on errors too: an open one would pin an old snapshot."""
    with closing(connection.execute(query, parameters)) as cursor:
        yield from map(meaning, cursor)


def shows_whole(connection: sqlite3.Connection, key: MailboxKey, dot: Dot) -> bool:
    """Return True if this node shows the entry's effect and has the bodies of all messages that the entry added.

    A message is looked for under its first placement only: who waits for one of the others waits for the first as well.
    """
    chain = chains.load(connection, key.mailbox_id)
    query = (
        "SELECT 1 FROM by_uid WHERE mailbox = ? AND origin = ? AND seq = ?"
        " AND content_hash NOT IN (SELECT hash FROM content) LIMIT 1"
    )
    lacks = connection.execute(query, (key.mailbox_id, *dot)).fetchone()
    return chain is not None and chain.has_seen(dot) and lacks is None


def rows(connection: sqlite3.Connection, mailbox_id: bytes) -> tuple[Chain | None, list[Row]]:
    """Return a mailbox's head and rows from one snapshot."""
    connection.execute("BEGIN")
    try:
        return chains.load(connection, mailbox_id), list(mailbox_rows(connection, mailbox_id))
    finally:
        connection.execute("COMMIT")


class ChainSnapshot(NamedTuple):
    """A mailbox at one moment. `uidvalidity` is as clients see it, or None if the user's tree is not here."""

    chain: Chain | None
    messages: list[Message]
    uidvalidity: int | None


def messages(connection: sqlite3.Connection, mailbox_id: bytes) -> ChainSnapshot:
    """Return a mailbox's head and messages from one snapshot. Raises DamagedRowError."""
    shared: dict[frozenset[str], frozenset[str]] = {}  # most messages share their flag set with many others
    connection.execute("BEGIN")
    try:
        head = chains.load_known(connection, mailbox_id)
        rows = (message_of(row) for row in mailbox_rows(connection, mailbox_id))
        found = [message._replace(flags=shared.setdefault(message.flags, message.flags)) for message in rows]
        return ChainSnapshot(head, found, uidvalidity(connection, mailbox_id))
    finally:
        connection.execute("COMMIT")


def view(connection: sqlite3.Connection, key: MailboxKey) -> MailboxView:
    """Return a mailbox's view, made from one snapshot; an empty one if no message was ever stored in it.

    It is made here because this runs in a reader's thread: the event loop would stand still meanwhile.
    Raises DamagedRowError.
    """
    chain, rows, uidvalidity = messages(connection, key.mailbox_id)
    return MailboxView.build(
        mailbox_id=key.mailbox_id,
        user=key.user,
        uidvalidity=uidvalidity or key.uidvalidity,
        uidnext=chain.uidnext if chain else 1,
        highestmodseq=chain.highestmodseq if chain else 0,
        rows=rows,
        head=chain.head if chain else None,
    )


def uid_of_guid(connection: sqlite3.Connection, guid: bytes, mailbox_id: bytes) -> int | None:
    """Return the UID of a GUID in a mailbox."""
    row = connection.execute("SELECT uid FROM by_guid WHERE guid = ? AND mailbox = ?", (guid, mailbox_id)).fetchone()
    return row[0] if row else None


def row_of_guid(connection: sqlite3.Connection, guid: bytes, mailbox_id: bytes) -> Row | None:
    """Return the row of a GUID in a mailbox."""
    uid = uid_of_guid(connection, guid, mailbox_id)
    return None if uid is None else next(mailbox_rows(connection, mailbox_id, UidSet.of([uid])), None)


def uids_between(connection: sqlite3.Connection, mailbox_id: bytes, low: int, high: int) -> Iterator[int]:
    """Yield the UIDs of a mailbox's messages within these bounds, ascending. Raises DamagedRowError."""
    query = "SELECT uid FROM by_uid WHERE mailbox = ? AND uid BETWEEN ? AND ? ORDER BY uid"
    for (uid,) in connection.execute(query, (mailbox_id, low, high)):
        if not isinstance(uid, int):
            raise DamagedRowError("a message's row")
        yield uid


def content_hash_of_guid(connection: sqlite3.Connection, guid: bytes) -> bytes | None:
    """Return the hash of a message's body, from any of its placements."""
    row = connection.execute(
        "SELECT u.content_hash FROM by_guid g JOIN by_uid u ON u.mailbox = g.mailbox AND u.uid = g.uid"
        " WHERE g.guid = ? LIMIT 1",
        (guid,),
    ).fetchone()
    return row[0] if row else None


def content_hash_of_uid(connection: sqlite3.Connection, mailbox_id: bytes, uid: int) -> bytes | None:
    """Return the hash of the body of the message that a mailbox shows under a UID."""
    row = connection.execute(
        "SELECT content_hash FROM by_uid WHERE mailbox = ? AND uid = ?", (mailbox_id, uid)
    ).fetchone()
    return row[0] if row else None


def entry_at(connection: sqlite3.Connection, dot: Dot) -> Entry | None:
    """Return one entry of the log. Raises DamagedRowError."""
    row = connection.execute("SELECT body FROM log WHERE origin = ? AND seq = ?", dot).fetchone()
    return entry_of(dot, row[0]) if row else None


def entry_of(dot: Dot, body: bytes) -> Entry:
    """Decode an entry from its row. Raises DamagedRowError."""
    try:
        return Entry.unpack(dot, body)
    except (ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
        raise DamagedRowError(f"entry {dot.seq} of {dot.origin}") from error


def tree_state(connection: sqlite3.Connection, user: str, chain: Chain) -> TreeState:
    """Return a user's whole folder tree; `chain` is its head."""
    return TreeState.of(chain.highestmodseq, chain.context, tree_rows(connection, user))


def tree_rows(connection: sqlite3.Connection, user: str) -> list[TreeRow]:
    """Return all folders, subscriptions and annotations of a user's tree, including deleted ones."""
    folders = connection.execute(
        "SELECT mailbox_id, user, name, uidvalidity, deleted, time, sid FROM folder WHERE user = ?", (user,)
    )
    subscriptions = connection.execute(
        "SELECT user, name, subscribed, time, sid FROM subscription WHERE user = ?", (user,)
    )
    annotations = connection.execute(
        "SELECT user, mailbox_id, name, value, time, sid FROM annotation WHERE user = ?", (user,)
    )
    return [
        *(FolderState(*row)._replace(deleted=bool(row[4])) for row in folders),
        *(SubscriptionState(*row)._replace(subscribed=bool(row[2])) for row in subscriptions),
        *(AnnotationState(*row) for row in annotations),
    ]


def log_waiting(connection: sqlite3.Connection) -> dict[Dot, bytes]:
    """Return the entries that arrived but are not applied, with their chains, even if the log has lost the entries."""
    rows = connection.execute(_WAITING)
    return {Dot(origin, seq): chain for origin, seq, chain in rows}


def log_context(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the context of the whole log."""
    return dict(connection.execute("SELECT name, seq FROM origin"))


def log_collected(connection: sqlite3.Connection) -> dict[str, int]:
    """Return, per origin, the seq up to which entries were collected from the log."""
    return dict(connection.execute("SELECT name, collected FROM origin WHERE collected > 0"))


def log_settled(connection: sqlite3.Connection) -> dict[str, int]:
    """Return, per origin, the seq up to which this node shows all entries that arrived."""
    waiting = dict(connection.execute(f"SELECT origin, MIN(seq) FROM ({_WAITING}) GROUP BY origin"))
    context = connection.execute("SELECT name, seq FROM origin")
    return {origin: min(seq, waiting.get(origin, seq + 1) - 1) for origin, seq in context}


def log_start(connection: sqlite3.Connection, context: Context) -> int | None:
    """Return the position before the first entry that `context` lacks, or None if the log begins after that entry."""
    positions = [log_end(connection) + 1]
    for origin, seq, collected in connection.execute("SELECT name, seq, collected FROM origin").fetchall():
        known = context.get(origin, 0)
        if known >= seq:
            continue
        query = "SELECT position FROM log WHERE origin = ? AND seq = ?"
        row = connection.execute(query, (origin, known + 1)).fetchone() if known >= collected else None
        if row is None:  # the entry may have been collected since the origins were read
            return None
        positions.append(row[0])
    return min(positions) - 1


def log_end(connection: sqlite3.Connection) -> int:
    """Return the position of the last entry that arrived, whether or not it is still in the log."""
    row: tuple[int] | None = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'log'").fetchone()
    return row[0] if row else 0


def log_after(
    connection: sqlite3.Connection, position: int, end: int, max_entries: int, max_bytes: int
) -> list[Logged]:
    """Return entries between two positions with their bodies: at least one, if there is any, within the limits."""
    found: list[Logged] = []
    total = 0
    cursor = connection.execute(
        "SELECT position, origin, seq, body FROM log WHERE position > ? AND position <= ? ORDER BY position LIMIT ?",
        (position, end, max_entries),
    )
    for at, origin, seq, body in cursor:
        entry = entry_of(Dot(origin, seq), body)
        hashes = {change.content_hash for change in entry.changes if isinstance(change, MailAdd) and not change.copied}
        bodies = {key: stored for key in hashes if (stored := read_stored(connection, key)) is not None}
        logged = Logged(at, entry, len(body), bodies)
        total += logged.memory_bytes
        if found and total > max_bytes:
            break
        found.append(logged)
    return found


@dataclass(frozen=True, slots=True)
class Lag:
    """The part of the log that a context lacks. `oldest_ms` is the time at which the oldest such entry was numbered.

    If some of the lacking entries were collected, size and age cover the remaining ones, and are None if none remain.
    """

    entries: int = 0
    size_bytes: int | None = 0
    oldest_ms: int | None = None


def lag(connection: sqlite3.Connection, context: Context) -> Lag:
    """Return how far a node with this context is behind this node."""
    entries = size_bytes = 0
    times: list[int] = []
    for origin, seq, offset, collected in connection.execute(
        "SELECT name, seq, offset_bytes, collected FROM origin"
    ).fetchall():
        known = context.get(origin, 0)
        entries += max(0, seq - known)
        first = max(known, collected) + 1
        query = "SELECT time, offset_bytes, body FROM log WHERE origin = ? AND seq = ?"
        if first <= seq and (row := connection.execute(query, (origin, first)).fetchone()) is not None:
            time, first_offset, body = row
            times.append(time)
            size_bytes += offset - first_offset + len(body) + entry_of(Dot(origin, first), body).bodies_bytes
    return Lag(entries, size_bytes if times or not entries else None, min(times) >> 16 if times else None)


def chains_of(connection: sqlite3.Connection, user: str | None) -> Iterator[Chain]:
    """Yield the chains by id: all, or one user's."""
    where, values = (" WHERE user = ?", (user,)) if user is not None else ("", ())
    yield from map(chains.from_row, connection.execute(f"{chains.SELECT}{where} ORDER BY id", values))


def log_counts(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of entries in the log, and how many of them wait."""
    total = connection.execute("SELECT COALESCE(SUM(seq - collected), 0) FROM origin").fetchone()[0]
    waiting = connection.execute("SELECT COUNT(*) FROM log WHERE applied = 0").fetchone()[0]
    return total, waiting


def users(connection: sqlite3.Connection) -> list[str]:
    """Return the users that have a mailbox or folder tree here."""
    return [user for (user,) in connection.execute("SELECT DISTINCT user FROM chain ORDER BY user")]
