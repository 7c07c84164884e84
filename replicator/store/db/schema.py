"""The tables of `node.db`, and how the database is opened (design section 6)."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from replicator.errors import ConfigError, DataError
from replicator.runtime.environment import open_database
from replicator.runtime.files.file_modes import create_private
from replicator.store.db.damage import DatabaseDamagedError, check_file, check_tables, is_damage

SCHEMA_VERSION = 17
PAGE_BYTES = 2048  # of new files. A mail changes a few bytes of most pages it touches; half as many would split rows
WAL_BYTES = 16 << 20  # between two checkpoints; each writes a page once, however often it changed
CACHE_KIB = 16 * 1024  # per connection; a node has three
TRIAL_BYTES = 64 * 1024  # at least the size of nearly all mails

OpenDatabase = Callable[[Path], sqlite3.Connection]

_SCHEMA = """
CREATE TABLE log (
    position     INTEGER PRIMARY KEY AUTOINCREMENT, -- order of arrival at this node
    origin       TEXT NOT NULL,
    seq          INTEGER NOT NULL,
    time         INTEGER NOT NULL,                  -- of the stamp
    chain        BLOB NOT NULL,                     -- mailbox id or tree id
    applied      INTEGER NOT NULL,                  -- 0: it waits; 1: it is; 2: it never can be, and is abandoned
    offset_bytes INTEGER NOT NULL,                  -- of all this origin's entries up to and with this one
    body         BLOB NOT NULL,                     -- Entry.pack(), which begins with a check
    UNIQUE (origin, seq)
);
CREATE INDEX log_waiting ON log (chain, position) WHERE applied = 0;
CREATE INDEX log_abandoned ON log (chain, position) WHERE applied = 2;

CREATE TABLE waiting (                              -- which entries wait for which predecessor
    chain        BLOB NOT NULL,
    after_origin TEXT NOT NULL,                     -- with after_seq: the predecessor; '' and 0 if there is none
    after_seq    INTEGER NOT NULL,
    origin       TEXT NOT NULL,                     -- with seq: the entry that waits, also if the log has lost it
    seq          INTEGER NOT NULL,
    PRIMARY KEY (chain, after_origin, after_seq, origin, seq)
) WITHOUT ROWID;
CREATE INDEX waiting_entry ON waiting (origin, seq);

CREATE TABLE origin (                               -- the context of the log as a whole
    name         TEXT PRIMARY KEY,
    seq          INTEGER NOT NULL,
    offset_bytes INTEGER NOT NULL,
    collected    INTEGER NOT NULL,                  -- entries up to here are not in the log any more
    lost         INTEGER NOT NULL                   -- how many of those were lost from it: see `log.gaps`
) WITHOUT ROWID;

CREATE TABLE chain (                                -- one row a mailbox, one a folder tree
    id             BLOB PRIMARY KEY,
    user           TEXT NOT NULL,
    uidvalidity    INTEGER NOT NULL,                -- 0: a tree
    uidnext        INTEGER NOT NULL,
    highestmodseq  INTEGER NOT NULL,
    head_origin    TEXT,
    head_seq       INTEGER,
    context        BLOB NOT NULL,                   -- {origin: seq}
    messages       INTEGER NOT NULL,
    unseen         INTEGER NOT NULL,
    size_bytes     INTEGER NOT NULL,
    fingerprint    BLOB NOT NULL,                   -- sum of the rows' fingerprints
    risen          INTEGER NOT NULL,                -- what merges added to the folder's UIDVALIDITY
    history        BLOB NOT NULL DEFAULT x''        -- of the head; empty: as `anchor` tells it, from an earlier version
) WITHOUT ROWID;
CREATE INDEX chain_user ON chain (user);

CREATE TABLE by_uid (
    mailbox      BLOB NOT NULL,
    uid          INTEGER NOT NULL,
    origin       TEXT NOT NULL,                     -- with seq and change: the placement
    seq          INTEGER NOT NULL,
    change       INTEGER NOT NULL,
    guid         BLOB NOT NULL,
    claim_origin TEXT NOT NULL,
    claim_seq    INTEGER NOT NULL,
    modseq       INTEGER NOT NULL,
    flags        BLOB NOT NULL,                     -- {flag: [time, sid, set]}
    received_ms  INTEGER NOT NULL,
    size_bytes   INTEGER NOT NULL,
    content_hash BLOB NOT NULL,
    fingerprint  BLOB NOT NULL,                     -- 16 bytes over all of it but the mailbox: what SYNC compares
    also         BLOB,                              -- [[origin, seq], change]: other placements of the message
    saved_ms     INTEGER,                           -- NULL: placed by an earlier version
    PRIMARY KEY (mailbox, uid)
) WITHOUT ROWID;

CREATE TABLE by_guid (
    guid    BLOB NOT NULL,
    mailbox BLOB NOT NULL,
    uid     INTEGER NOT NULL,
    origin  TEXT NOT NULL,
    seq     INTEGER NOT NULL,
    change  INTEGER NOT NULL,
    PRIMARY KEY (guid, mailbox)
) WITHOUT ROWID;

CREATE TABLE folder (
    mailbox_id  BLOB PRIMARY KEY,
    user        TEXT NOT NULL,
    name        TEXT NOT NULL,
    uidvalidity INTEGER NOT NULL,
    deleted     INTEGER NOT NULL,
    time        INTEGER NOT NULL,                   -- stamp of the last change
    sid         TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX folder_name ON folder (user, name);

CREATE TABLE subscription (
    user       TEXT NOT NULL,
    name       TEXT NOT NULL,
    subscribed INTEGER NOT NULL,
    time       INTEGER NOT NULL,
    sid        TEXT NOT NULL,
    PRIMARY KEY (user, name)
) WITHOUT ROWID;

CREATE TABLE content (
    id         INTEGER PRIMARY KEY,                 -- keeps texts in order of arrival on disk
    hash       BLOB NOT NULL UNIQUE,                -- SHA-256 of the message text
    size_bytes INTEGER NOT NULL,                    -- of the text
    parted     INTEGER NOT NULL,                    -- the body is a recipe: see `recipe`
    body       BLOB NOT NULL                        -- zstd
);

CREATE TABLE attachment (                           -- which holders in the attachment store are this node's
    text   BLOB NOT NULL,                           -- hash of the text that has the part
    hash   BLOB NOT NULL,                           -- of the part
    holder TEXT NOT NULL,
    kept   INTEGER NOT NULL,                        -- it lies under the holder's own name
    PRIMARY KEY (text, hash)
) WITHOUT ROWID;
CREATE INDEX attachment_hash ON attachment (hash, holder);
CREATE INDEX attachment_kept ON attachment (holder) WHERE kept = 1;

CREATE TABLE lacking (                              -- texts of messages that came without theirs, to be fetched
    received_ms INTEGER NOT NULL,
    hash        BLOB NOT NULL,
    PRIMARY KEY (received_ms, hash)
) WITHOUT ROWID;
CREATE INDEX lacking_hash ON lacking (hash);

CREATE TABLE expunged (                             -- this node's alone: what has left its mailbox: see `expunged`
    mailbox      BLOB NOT NULL,
    guid         BLOB NOT NULL,
    uid          INTEGER NOT NULL,
    flags        TEXT NOT NULL,                     -- that were set, separated by spaces
    received_ms  INTEGER NOT NULL,
    size_bytes   INTEGER NOT NULL,
    content_hash BLOB NOT NULL,
    expunged_ms  INTEGER NOT NULL,
    PRIMARY KEY (mailbox, guid)
) WITHOUT ROWID;
CREATE INDEX expunged_received ON expunged (mailbox, received_ms, guid);
CREATE INDEX expunged_since ON expunged (expunged_ms, size_bytes);

CREATE TABLE doomed (                               -- texts that may be garbage: `bodies.deletion_candidates`
    hash BLOB PRIMARY KEY
) WITHOUT ROWID;
CREATE TRIGGER message_spares AFTER INSERT ON by_uid WHEN EXISTS (SELECT 1 FROM doomed)
BEGIN
    DELETE FROM doomed WHERE hash = NEW.content_hash;
END;
CREATE TRIGGER expunged_spares AFTER INSERT ON expunged WHEN EXISTS (SELECT 1 FROM doomed)
BEGIN
    DELETE FROM doomed WHERE hash = NEW.content_hash;
END;

CREATE TABLE settled (                              -- what each node has said last that it has settled
    sid      TEXT PRIMARY KEY,
    sequence INTEGER NOT NULL,
    context  BLOB NOT NULL                          -- [[origin, seq], ...]
) WITHOUT ROWID;

CREATE TABLE clock (                                -- one row: the latest stamp of what is in no log of this node
    id   INTEGER PRIMARY KEY,
    time INTEGER NOT NULL
);

CREATE TABLE checkpoint (                           -- this node's, in the object store: see `catalog`
    chain       BLOB NOT NULL,
    modseq      INTEGER NOT NULL,                   -- of the head, like the next four
    origin      TEXT NOT NULL,
    seq         INTEGER NOT NULL,
    time        INTEGER NOT NULL,
    user        TEXT NOT NULL,
    uidvalidity INTEGER NOT NULL,
    round       INTEGER NOT NULL,                   -- the first whose manifest lists it
    PRIMARY KEY (chain, modseq)
) WITHOUT ROWID;

CREATE TABLE manifest (                             -- this node's that count: see `catalog`
    round    INTEGER PRIMARY KEY,
    made_ms  INTEGER,                               -- NULL: nobody knows whether it is in the object store
    in_force INTEGER NOT NULL,
    context  BLOB NOT NULL,                         -- {origin: seq}: of the log, all of which is in the checkpoints
    covered  BLOB NOT NULL,                         -- {origin: seq}: who has settled that forks no more before them
    position INTEGER NOT NULL,                      -- the log's end when the round began
    heads    INTEGER NOT NULL                       -- how many it lists
);

CREATE TABLE unproven (                             -- chains to whose head neither log nor checkpoint leads
    chain  BLOB PRIMARY KEY,
    modseq INTEGER NOT NULL                         -- of the head that was taken over
) WITHOUT ROWID;

CREATE TABLE postponed (                            -- left by a state transfer to be compared: see `log.pending_resync`
    chain       BLOB PRIMARY KEY,                   -- empty: everything
    user        TEXT NOT NULL,
    uidvalidity INTEGER NOT NULL,
    before      BLOB NOT NULL,                      -- {origin: seq}: beyond this nothing may be called settled
    passed      BLOB NOT NULL                       -- {origin: seq}: that the log has passed over up to here
) WITHOUT ROWID;

CREATE TABLE identity (                             -- one row: whose database this is
    sid     TEXT NOT NULL,
    cluster TEXT NOT NULL,
    begun   INTEGER NOT NULL                        -- it has met the cluster, or was there at its beginning
);

CREATE TABLE trial (                                -- one row: whether there is room
    id     INTEGER PRIMARY KEY,
    filler BLOB NOT NULL
);

CREATE TABLE recent (                               -- this node's alone, of all mailboxes and trees that were ever here
    mailbox BLOB PRIMARY KEY,
    uidnext INTEGER NOT NULL
) WITHOUT ROWID;
"""

_ANNOTATIONS = """
CREATE TABLE annotation (
    user       TEXT NOT NULL,
    mailbox_id BLOB NOT NULL,                       -- of a folder that no user has deleted; empty: of the account
    name       TEXT NOT NULL,                       -- in lower case
    value      BLOB,                                -- NULL: it is removed
    time       INTEGER NOT NULL,
    sid        TEXT NOT NULL,
    PRIMARY KEY (user, mailbox_id, name)
) WITHOUT ROWID;
"""

_OUTLINES = """
CREATE TABLE outline (                              -- derived from texts: see `outline_rows`
    id      INTEGER PRIMARY KEY,                    -- of the text in table content
    version INTEGER NOT NULL,                       -- of what made it
    packed  BLOB NOT NULL                           -- zstd; empty: there is none
);
CREATE INDEX outline_version ON outline (version, id);
CREATE TRIGGER outline_leaves AFTER DELETE ON content
BEGIN
    DELETE FROM outline WHERE id = OLD.id;
END;
"""

_DELETED_FOLDERS = "CREATE INDEX folder_deleted ON folder (user) WHERE deleted = 1;"

_UIDVALIDITIES = "CREATE INDEX folder_uidvalidity ON folder (user, uidvalidity) WHERE uidvalidity > 0;"
"""The condition, which all rows meet, keeps queries that do not name it on the other indices of a user's folders."""

_TALLY = """
CREATE TABLE tally (                                -- one row, or none until it is counted: see `db.tally`
    id        INTEGER PRIMARY KEY,
    digest    BLOB NOT NULL,                        -- sum of the digests of all mailboxes and trees
    mailboxes INTEGER NOT NULL
);
"""

_UPGRADES = {
    8: """
        ALTER TABLE identity ADD COLUMN begun INTEGER NOT NULL DEFAULT 1;
        CREATE INDEX lacking_hash ON lacking (hash);
        CREATE INDEX log_abandoned ON log (chain, position) WHERE applied = 2;
    """,
    9: "ALTER TABLE by_uid ADD COLUMN also BLOB;",
    10: "",  # entries in the log have checks from now on, which earlier versions cannot read
    11: f"ALTER TABLE chain ADD COLUMN history BLOB NOT NULL DEFAULT x''; {_OUTLINES}",  # entries name histories, too
    12: _ANNOTATIONS,
    13: "ALTER TABLE by_uid ADD COLUMN saved_ms INTEGER;",  # entries date messages, too
    14: _DELETED_FOLDERS,
    15: _TALLY,
    16: _UIDVALIDITIES,
}
"""Upgrade scripts: schema version -> SQL that brings a database to the next version."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Keep other processes from the database: two numbering processes would assign UIDs twice.

    The lock dies with its process. Raises DataError if another process has the lock, if the directory does not exist,
    or if anything in the block finds the file unusable; DatabaseDamagedError if the database is damaged.
    """
    file = path.with_name(f"{path.name}.lock")
    try:
        create_private(file)
        with file.open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError as error:
        raise DataError(
            f"{path}: another process has it open, probably this node itself; stop it first. If it is another node,"
            " give this one a directory of its own"
        ) from error
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}; does the directory exist, and may the process write to it?"
        ) from error
    except DatabaseDamagedError:
        raise
    except UnicodeDecodeError as error:  # SQLite quotes the damaged text in its error
        raise DatabaseDamagedError(f"{path}: the database is damaged: its schema cannot be read") from error
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            raise DatabaseDamagedError(f"{path}: the database is damaged: {error}") from error
        if is_full(error):
            raise DataError(f"{path}: the disk is full; make room, and start the node again") from error
        raise DataError(f"{path}: {error}; is the disk sound?") from error


def is_full(error: Exception) -> bool:
    """Return True if the disk is full. For the index of the write-ahead log SQLite reports that as an I/O error."""
    codes = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE}
    return isinstance(error, sqlite3.OperationalError) and getattr(error, "sqlite_errorcode", None) in codes


def is_failing(error: Exception) -> bool:
    """Return True if the disk fails to do what it is told, for another reason than being full."""
    code = getattr(error, "sqlite_errorcode", 0)
    return isinstance(error, sqlite3.OperationalError) and code & 0xFF == sqlite3.SQLITE_IOERR and not is_full(error)


def open_writer(path: Path, open_file: OpenDatabase = open_database) -> sqlite3.Connection:
    """Open the writing connection; create the database if it does not exist.

    Raises ConfigError if the file belongs to another version or program, sqlite3.DatabaseError if it is no database,
    DatabaseDamagedError if it is a damaged one.
    """
    check_file(path)
    connection = _connect(path, open_file)
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        if connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise ConfigError(
                f"{path}: this database belongs to another program; name another file, or move this one away"
            )
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    elif version != SCHEMA_VERSION and version not in _UPGRADES:
        raise ConfigError(
            f"{path}: written by another version (schema {version}, but this version reads {SCHEMA_VERSION})"
        )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    limit_wal(connection)
    if version == 0:
        connection.executescript(
            f"BEGIN; {_SCHEMA} {_DELETED_FOLDERS} {_ANNOTATIONS} {_OUTLINES} {_TALLY} {_UIDVALIDITIES}"
            f" PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        )
    else:
        for before in range(version, SCHEMA_VERSION):
            connection.executescript(f"BEGIN; {_UPGRADES[before]} PRAGMA user_version = {before + 1}; COMMIT;")
        check_tables(connection, path)
    return connection


def limit_wal(connection: sqlite3.Connection) -> None:
    """Let a checkpoint follow `WAL_BYTES` of the write-ahead log, whatever size the file's pages have."""
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_BYTES // page_bytes}")


def open_reader(path: Path, open_file: OpenDatabase = open_database) -> sqlite3.Connection:
    """Open a read-only connection, for one thread at a time."""
    connection = _connect(path, open_file)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connect(path: Path, open_file: OpenDatabase) -> sqlite3.Connection:
    connection = open_file(path)
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    return connection


def claim(connection: sqlite3.Connection, sid: str, cluster: str) -> bool:
    """Claim the database, or check that it is this node's. Return True if it has begun. Raises ConfigError."""
    row = connection.execute("SELECT sid, cluster, begun FROM identity").fetchone()
    if row is None:
        connection.execute("INSERT INTO identity (sid, cluster, begun) VALUES (?, ?, 0)", (sid, cluster))
        return False
    if row[:2] != (sid, cluster):
        raise ConfigError(
            f"the database in `node.data` belongs to node {row[0]!r} of cluster {row[1]!r}, not to {sid!r} of"
            f" {cluster!r}; give each node a directory of its own"
        )
    return bool(row[2])


def begin(connection: sqlite3.Connection) -> None:
    """Record for good that the node has met its cluster, or was there at its beginning."""
    connection.execute("UPDATE identity SET begun = 1")


def try_to_write(connection: sqlite3.Connection) -> None:
    """Write as much data as a mail takes, over what the last trial wrote."""
    connection.execute("INSERT OR REPLACE INTO trial (id, filler) VALUES (1, zeroblob(?))", (TRIAL_BYTES,))
