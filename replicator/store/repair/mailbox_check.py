"""Check for damage: the projections against the log, and against each other (design section 6).

Everything here only reads, in slices of a few thousand rows. A mailbox or tree is compared within one read transaction,
so that log and projections match whatever the writer does meanwhile; each slice of a sweep is one statement. A finding
carries the statements that repair it, which `row_repair` runs in the writer's turn.
"""

from __future__ import annotations

import math
import sqlite3
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from replicator.store.db import chain as chains
from replicator.store.db import row_counts
from replicator.store.db.chain import Chain
from replicator.store.db.row_counts import Counted
from replicator.store.db.rows.message_rows import INTO_BY_UID, ROW_COLUMNS, DamagedRowError, columns_of, row_from
from replicator.store.log.replay import Base, Past
from replicator.store.repair.head_evidence import UnprovenError, proven_past
from resync.entry import FolderState, SubscriptionState
from resync.folder_tree import TreeState
from resync.row import Row
from resync.state import ContradictionError, MailboxState

SLICE_ROWS = 1000  # some 20 ms of a reader's thread

LOWEST = -math.inf  # before every other value in SQLite's order: damaged keys may be of any type

Statement: TypeAlias = tuple[str, tuple[object, ...]]
Columns: TypeAlias = tuple[object, ...]

PUT_ROW = f"REPLACE {INTO_BY_UID}"
_TAKE_ROW = "DELETE FROM by_uid WHERE mailbox = ? AND uid = ?"
_PUT_POINTER = "REPLACE INTO by_guid (guid, mailbox, uid, origin, seq, change) VALUES (?,?,?,?,?,?)"
_TAKE_POINTER = "DELETE FROM by_guid WHERE guid = ? AND mailbox = ?"

_COUNTED = (
    "user", "head", "context", "uidnext", "highestmodseq", "risen", "messages", "unseen", "size_bytes", "fingerprint",
    "history", "is a tree",
)  # fmt: skip
_FOLDER = ("mailbox id", "user", "name", "UIDVALIDITY", "deleted", "time", "node")
_SUBSCRIPTION = ("user", "name", "subscribed", "time", "node")
_ANNOTATION = ("user", "mailbox id", "name", "value", "time", "node")


@dataclass(frozen=True, slots=True)
class Defect:
    """One finding. `kind` is the table. `mends` repairs it, except for a chain's row: see `row_repair`."""

    kind: str
    what: str
    mailbox_id: bytes | None
    user: str | None = None
    uid: int | None = None
    guid: bytes | None = None
    content_hash: bytes | None = None
    mends: tuple[Statement, ...] = ()
    is_lost: bool = False  # a chain's row that nothing here can restore

    @property
    def can_be_mended(self) -> bool:
        """True if this node's log tells how to repair it."""
        return bool(self.mends) or (self.kind == "chain" and not self.is_lost)


def stored_chain(connection: sqlite3.Connection, chain_id: bytes) -> Columns | None:
    """Return a chain's row as stored in the database."""
    row: Columns | None = connection.execute(f"{chains.SELECT} WHERE id = ?", (chain_id,)).fetchone()
    return row


def readable_chain(connection: sqlite3.Connection, chain_id: bytes) -> Chain | None:
    """Return the chain from its row, or None if the row is damaged."""
    return _readable(stored_chain(connection, chain_id))


def chain_ids(connection: sqlite3.Connection, after: bytes | None = None) -> list[bytes]:
    """Return a slice of the ids of all mailboxes and trees, present or lost; `after` None: the first slice."""
    return chains.ids(connection, LOWEST if after is None else after, SLICE_ROWS)


@dataclass(slots=True)
class LogComparison:
    """The comparison of one mailbox or tree in the database with the log. Exhaust `steps`, then read the results.

    `doubted`: the head in the chain's row is not to be trusted, because the log goes further. `base`: the content of a
    checkpoint of this node. If it ends as `unproven`, the log could not be compared.
    """

    connection: sqlite3.Connection
    chain_id: bytes
    doubted: bool = False
    base: Base | None = None
    unproven: bool = False
    stored: Columns | None = None
    past: Past | None = None
    chain: Chain | None = None  # as it should be
    damages: list[Defect] = field(default_factory=list)

    def steps(self) -> Generator[int, None, None]:
        """Compare; yield the number of rows after each slice."""
        own = not self.connection.in_transaction
        if own:
            self.connection.execute("BEGIN")
        try:
            yield from self._compare()
        finally:
            if own:
                self.connection.execute("COMMIT")

    def _compare(self) -> Iterator[int]:
        self.stored = stored_chain(self.connection, self.chain_id)
        shown = _readable(self.stored)
        try:
            self.past = proven_past(self.connection, self.chain_id, None if self.doubted else shown, self.base)
        except UnprovenError:
            if self.stored is None:
                self._lost()
                return
            self.unproven = True
            if shown is not None:
                yield from self._recount(shown)
            return
        except ContradictionError as error:
            self._found("log", f"the log does not show what the mailbox should be: {error}", shown)
            return
        if self.past is None:
            self._unknown(shown)
            return
        self.chain = self.past.chain()
        yield 1
        if isinstance(self.past.state, TreeState):
            yield self._compare_tree(self.past.user, self.past.state)
        else:
            yield from self._compare_mailbox(self.past.state, self.chain)
        self._compare_chain(shown, self.chain)

    def _unknown(self, shown: Chain | None) -> None:
        """Note rows of a mailbox that, by the log, cannot exist. A sweep reports rows of by_uid alone."""
        begun = self.connection.execute("SELECT 1 FROM recent WHERE mailbox = ?", (self.chain_id,)).fetchone()
        if self.stored is not None or begun is not None:
            forget = tuple(
                (f"DELETE FROM {table} WHERE {key} = ?", (self.chain_id,))
                for table, key in (("chain", "id"), ("recent", "mailbox"))  # a `recent` row would block a new one
            )
            self._found("chain", "the log has no such mailbox", shown, mends=forget)

    def _lost(self) -> None:
        """Note that the chain's row is lost and the log does not tell what it was."""
        query = "SELECT user, name FROM folder WHERE mailbox_id = ?"
        user, name = self.connection.execute(query, (self.chain_id,)).fetchone() or (None, None)
        which = "of this user" if user is None else f"{user} {name}"
        what = (
            f"is missing, and the log does not show what it was; `replicator resync {which}` takes it over from"
            " another node"
        )
        self.damages.append(Defect("chain", what, self.chain_id, user, is_lost=True))

    def _recount(self, shown: Chain) -> Iterator[int]:
        """Check the rows against the head's counters, which is all that can be checked without the log."""
        found = None
        with suppress(DamagedRowError):
            for size, counted in row_counts.counting(self.connection, shown, SLICE_ROWS):
                yield size
                found = counted
        if found != row_counts.said(shown):
            kind, what = (
                ("by_uid", "messages") if shown.uidvalidity else ("folder", "folders, subscriptions or annotations")
            )
            how = "`replicator resync` of this mailbox takes them over from a node that shows them"
            self._found(
                kind, f"{what} do not match the counters, and the log does not show which are right; {how}", shown
            )

    # ---- mailboxes

    def _compare_mailbox(self, state: MailboxState, chain: Chain) -> Iterator[int]:
        uids, at, counted = sorted(state.rows), 0, Counted()
        cursor = self.connection.execute(
            f"SELECT {ROW_COLUMNS} FROM by_uid WHERE mailbox = ? ORDER BY uid",
            (self.chain_id,),
        )
        while True:
            present = cursor.fetchmany(SLICE_ROWS)
            last = present[-1][0] if len(present) == SLICE_ROWS else None
            until = bisect_right(uids, last) if isinstance(last, int) else len(uids)
            self._compare_rows(state, uids[at:until], present)
            counted = counted.plus(state.rows[uid] for uid in uids[at:until])
            at = until
            yield len(present)
            if len(present) < SLICE_ROWS:
                chain.messages, chain.unseen, chain.size_bytes, chain.fingerprint = counted
                return

    def _compare_rows(self, state: MailboxState, uids: Sequence[int], present: Iterable[Columns]) -> None:
        found = {columns[0]: columns for columns in present}
        for uid in uids:
            row = state.rows[uid]
            self._compare_row(row, found.pop(uid, None))
            self._compare_pointer(row)
        if found:
            guids = {row.guid for row in state.rows.values()}
            for columns in found.values():
                self._surplus_row(columns, guids)

    def _compare_row(self, row: Row, columns: Columns | None) -> None:
        expected = columns_of(row)
        if columns == expected or (columns is not None and columns[-1] == expected[-1] and _means(columns, row)):
            return
        what = "is missing"
        if columns is not None:
            names = ROW_COLUMNS.split(", ")
            wrong = [name for name, is_, should in zip(names, columns, expected, strict=True) if is_ != should]
            what = f"differs from the log in {', '.join(wrong)}"
        self._found("by_uid", what, self.chain, row, mends=((PUT_ROW, (self.chain_id, *expected)),))

    def _compare_pointer(self, row: Row) -> None:
        expected = (row.uid, *row.dot, row.change)
        query = "SELECT uid, origin, seq, change FROM by_guid WHERE guid = ? AND mailbox = ?"
        pointer = self.connection.execute(query, (row.guid, self.chain_id)).fetchone()
        if pointer == expected:
            return
        what = "is missing"
        if pointer is not None:
            what = f"points to UID {pointer[0]}" if pointer[0] != row.uid else "differs from the log in its placement"
        self._found("by_guid", what, self.chain, row, mends=((_PUT_POINTER, (row.guid, self.chain_id, *expected)),))

    def _surplus_row(self, columns: Columns, guids: set[bytes]) -> None:
        uid, guid = columns[0], columns[4]
        take: Statement = (_TAKE_ROW, (self.chain_id, uid))
        self._note("by_uid", "is not in the log", uid, guid, take)
        query = "SELECT 1 FROM by_guid WHERE guid = ? AND mailbox = ?"
        if guid not in guids and self.connection.execute(query, (guid, self.chain_id)).fetchone():
            self._note("by_guid", "is not in the log", uid, guid, (_TAKE_POINTER, (guid, self.chain_id)))

    # ---- trees

    def _compare_tree(self, user: str, state: TreeState) -> int:
        folders = "SELECT mailbox_id, user, name, uidvalidity, deleted, time, sid FROM folder WHERE user = ?"
        subscriptions = "SELECT user, name, subscribed, time, sid FROM subscription WHERE user = ?"
        shown_folders = {row[0]: row for row in self.connection.execute(folders, (user,))}
        for mailbox_id, expected in ((key, _folder_columns(folder)) for key, folder in state.folders.items()):
            if (row := shown_folders.pop(mailbox_id, None)) != expected:
                mend: Statement = ("REPLACE INTO folder VALUES (?,?,?,?,?,?,?)", expected)
                what = f"{expected[2]!r} is missing" if row is None else _difference(_FOLDER, row, expected)
                self._folder(mailbox_id, what, user, mend)
        for mailbox_id, row in shown_folders.items():
            mend = ("DELETE FROM folder WHERE mailbox_id = ?", (mailbox_id,))
            self._folder(mailbox_id, f"{row[2]!r} is not in the log", user, mend)
        shown_names = {row[1]: row for row in self.connection.execute(subscriptions, (user,))}
        for name, expected in ((key, _subscription_columns(one)) for key, one in state.subscriptions.items()):
            if (row := shown_names.pop(name, None)) != expected:
                mend = ("REPLACE INTO subscription VALUES (?,?,?,?,?)", expected)
                what = "is missing" if row is None else _difference(_SUBSCRIPTION, row, expected)
                self._subscription(f"of {name!r}: {what}", user, mend)
        for name in shown_names:
            mend = ("DELETE FROM subscription WHERE user = ? AND name = ?", (user, name))
            self._subscription(f"of {name!r}: is not in the log", user, mend)
        self._compare_annotations(user, state)
        return len(state.rows())

    def _compare_annotations(self, user: str, state: TreeState) -> None:
        query = "SELECT user, mailbox_id, name, value, time, sid FROM annotation WHERE user = ?"
        shown = {row[1:3]: row for row in self.connection.execute(query, (user,))}
        for key, expected in state.annotations.items():
            if (row := shown.pop(key, None)) != expected:
                what = "is missing" if row is None else _difference(_ANNOTATION, row, expected)
                self._annotation(*key, what, user, ("REPLACE INTO annotation VALUES (?,?,?,?,?,?)", expected))
        for mailbox_id, name in shown:
            mend = ("DELETE FROM annotation WHERE user = ? AND mailbox_id = ? AND name = ?", (user, mailbox_id, name))
            self._annotation(mailbox_id, name, "is not in the log", user, mend)

    def _folder(self, mailbox_id: bytes, what: str, user: str, mend: Statement) -> None:
        self.damages.append(Defect("folder", what, mailbox_id, user, mends=(mend,)))

    def _subscription(self, what: str, user: str, mend: Statement) -> None:
        self.damages.append(Defect("subscription", what, None, user, mends=(mend,)))

    def _annotation(self, mailbox_id: bytes, name: str, what: str, user: str, mend: Statement) -> None:
        known = mailbox_id if mailbox_id and isinstance(mailbox_id, bytes) else None
        self.damages.append(Defect("annotation", f"{name!r}: {what}", known, user, mends=(mend,)))

    # ---- heads

    def _compare_chain(self, shown: Chain | None, chain: Chain) -> None:
        """Note differences of the chain's row; `row_repair` writes the row, since the writer keeps it in memory too."""
        if shown is None:
            what = "is missing" if self.stored is None else "cannot be read"
            self._found("chain", what, chain)
            return
        is_, should = ([_shown(one, name) for name in _COUNTED] for one in (shown, chain))
        if is_ != should:
            self._found("chain", _difference(_COUNTED, is_, should), chain)

    def _found(
        self, kind: str, what: str, chain: Chain | None, row: Row | None = None, mends: tuple[Statement, ...] = ()
    ) -> None:
        user = chain.user if chain else None
        uid, guid = (row.uid, row.guid) if row else (None, None)
        self.damages.append(Defect(kind, what, self.chain_id, user, uid, guid, mends=mends))

    def _note(self, kind: str, what: str, uid: object, guid: object, mend: Statement) -> None:
        """Note a finding about an unverified row, whose values may be anything."""
        known_uid, known_guid = uid if isinstance(uid, int) else None, guid if isinstance(guid, bytes) else None
        user = self.chain.user if self.chain else None
        self.damages.append(Defect(kind, what, self.chain_id, user, known_uid, known_guid, mends=(mend,)))


def _readable(stored: Columns | None) -> Chain | None:
    """Return the chain of a row, or None if the row is damaged."""
    if stored is not None:
        with suppress(DamagedRowError, ValueError, TypeError):
            return chains.from_row(stored)
    return None


def _means(columns: Columns, row: Row) -> bool:
    """Return True if the columns mean the same in other bytes: a map of flags has no order."""
    try:
        return row_from(columns) == row
    except DamagedRowError:
        return False


def _folder_columns(folder: FolderState) -> Columns:
    return (*folder[:4], int(folder.deleted), *folder[5:])


def _subscription_columns(one: SubscriptionState) -> Columns:
    return (*one[:2], int(one.subscribed), *one[3:])


def _shown(chain: Chain, name: str) -> object:
    """Return one of the values in `_COUNTED`."""
    match name:
        case "fingerprint":
            return f"{chain.fingerprint:x}"
        case "is a tree":
            return chain.uidvalidity == 0
        case _:
            return getattr(chain, name)


def _difference(names: Sequence[str], is_: Sequence[object], should: Sequence[object]) -> str:
    """Describe the differences in words."""
    pairs = zip(names, is_, should, strict=True)
    return "; ".join(f"{name}: {_short(one)}, not {_short(other)}" for name, one, other in pairs if one != other)


def _short(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def exhausted(comparison: LogComparison) -> LogComparison:
    """Run the comparison to its end, and return it."""
    for _ in comparison.steps():
        pass
    return comparison
