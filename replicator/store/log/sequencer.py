"""Making new entries: what a master does with a request, on top of what it shows (design sections 3 and 4).

Each function runs as one job of the writer. It checks the request against the head, and raises or makes one
entry; there is never a moment at which another change could come between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from protocol.values import UID_MAX, Dot, UidSet
from replicator.errors import FolderExistsError, FolderNotFoundError, InvalidNameError, MailboxFullError
from replicator.mailstore import INBOX, SEPARATOR, check_folder_name
from replicator.store.bodies.body_rows import StoredText, write_text
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.apply import apply
from resync.entry import (
    Change,
    Entry,
    FlagAdd,
    FlagDel,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderSubscribe,
    MailAdd,
    MailDel,
    tree_id,
)
from resync.tree import UIDVALIDITY_MAX, UIDVALIDITY_STEP, uidvalidities_after

FOLDERS_MAX = 10_000
"""Of a user, and as many subscriptions: peers take an entry about all of them (`replication.links.entry_codec`)."""
UIDVALIDITY_RESERVE = UIDVALIDITY_STEP << 12
"""Left to merges, and to the parents that one folder may need."""
UIDVALIDITY_OF_CLOCK_MAX = UIDVALIDITY_MAX - (1 << 28)
"""In the year 2097: a clock that is wrong by more must not use them up."""


def _commit(tx: Transaction, key: MailboxKey, changes: Sequence[Change], texts: Sequence[StoredText] = ()) -> Entry:
    entry = tx.next_entry(key.mailbox_id, key.user, key.uidvalidity, changes)
    tx.append(entry, texts, applied=True)
    apply(tx, entry)
    return entry


@dataclass(frozen=True, slots=True)
class Placed:
    """UIDs that messages have now, in the order of the request, and the entry that gave (the last of) them.

    `brought_by`: of a message that was there already, the entry that brings its text to other nodes, as `dot` may not.
    """

    uids: tuple[int, ...]
    dot: Dot | None
    brought_by: Dot | None = None


def save(
    tx: Transaction, key: MailboxKey, stored: StoredText, *, guid: bytes, received_ms: int, flags: Sequence[str]
) -> Placed:
    """Place a message. A GUID that the mailbox holds keeps its UID: a request tried again makes no second mail."""
    known = queries.row_of_guid(tx.connection, guid, key.mailbox_id)
    if known is not None:
        if stored.content_hash == known.content_hash:
            write_text(tx.connection, stored)  # the message may have been taken over without it
        return Placed((known.uid,), _head_of(tx, key), known.dot)
    uid = _uidnext(tx, key, 1)
    add = MailAdd(uid, guid, received_ms, tuple(flags), stored.size_bytes, stored.content_hash, copied=False)
    return Placed((uid,), _commit(tx, key, [add], [stored]).dot)


@dataclass(frozen=True, slots=True)
class CopySource:
    """One message to be copied: where it was seen, which it is, and a GUID for a copy that may not keep it.

    The same GUID again: the message is not copied where it is already.
    """

    uid: int
    guid: bytes
    spare_guid: bytes = field(repr=False)


def copy(tx: Transaction, source: bytes, wanted: Sequence[CopySource], key: MailboxKey) -> Placed | None:
    """Copy all of the messages in one entry, or none: None if one of them is not in `source`, as this node shows it.

    A mailbox holds a GUID once. So a message is found by it where a merge has given it another UID; where the
    destination has it already, the copy is a message of its own, and where that has the spare GUID too, the request
    was tried again and that copy is the answer.
    """
    adds: list[Change] = []
    uids: list[int] = []
    uid = _uidnext(tx, key, len(wanted))
    rows = {row.uid: row for row in queries.mailbox_rows(tx.connection, source, UidSet.of(want.uid for want in wanted))}
    for want in wanted:
        row = rows.get(want.uid)
        if row is None or row.guid != want.guid:
            row = queries.row_of_guid(tx.connection, want.guid, source)
        if row is None:
            return None
        held = queries.placement(tx.connection, row.guid, key.mailbox_id) is not None
        guid = want.spare_guid if held else row.guid
        if held and (again := queries.placement(tx.connection, guid, key.mailbox_id)) is not None:
            uids.append(again)
            continue
        flags = tuple(sorted(row.visible_flags()))
        adds.append(MailAdd(uid, guid, row.received_ms, flags, row.size_bytes, row.content_hash, copied=True))
        uids.append(uid)
        uid += 1
    return Placed(tuple(uids), _commit(tx, key, adds).dot if adds else _head_of(tx, key))


def absent(tx: Transaction, key: MailboxKey, uids: UidSet) -> UidSet:
    """Those of the UIDs that name no message: it was expunged, or a merge has given it another UID."""
    gaps: list[tuple[int, int]] = []
    for low, high in uids.ranges:
        start = low
        for uid in queries.uids_between(tx.connection, key.mailbox_id, low, high):
            if start < uid:
                gaps.append((start, uid - 1))
            start = uid + 1
        if start <= high:
            gaps.append((start, high))
    return UidSet(tuple(gaps))


def expunge(tx: Transaction, key: MailboxKey, uids: UidSet) -> Dot | None:
    """Remove those of the messages that are there. The entry, or the head at which none is."""
    present = UidSet.of(row.uid for row in queries.mailbox_rows(tx.connection, key.mailbox_id, uids))
    return _commit(tx, key, [MailDel(present)]).dot if present else _head_of(tx, key)


@dataclass(frozen=True, slots=True)
class Flagged:
    """What became of a flag change: UIDs refused under UNCHANGEDSINCE, HIGHESTMODSEQ and head now."""

    refused: UidSet
    modseq: int
    dot: Dot | None


def store(
    tx: Transaction,
    key: MailboxKey,
    uids: UidSet,
    *,
    added: Sequence[str],
    removed: Sequence[str],
    unchanged_since: int | None = None,
) -> Flagged:
    """Change flags where that makes a difference (RFC 7162 section 3.1.3 for `unchanged_since`).

    In any spelling: a flag that a message has is not added in another one, and is removed in all.
    """
    refused: list[int] = []
    to_set: list[int] = []
    to_clear: list[int] = []
    wanted, unwanted = {flag.lower() for flag in added}, {flag.lower() for flag in removed}
    cleared = set(removed)
    for row in queries.mailbox_rows(tx.connection, key.mailbox_id, uids):
        if unchanged_since is not None and row.modseq > unchanged_since:
            refused.append(row.uid)
            continue
        visible = row.visible_flags()
        if not wanted.issubset(map(str.lower, visible)):
            to_set.append(row.uid)
        if present := {flag for flag in visible if flag.lower() in unwanted}:
            to_clear.append(row.uid)
            cleared |= present
    changes: list[Change] = []
    if to_set:
        changes.append(FlagAdd(UidSet.of(to_set), tuple(added)))
    if to_clear:
        changes.append(FlagDel(UidSet.of(to_clear), tuple(sorted(cleared))))
    dot = _commit(tx, key, changes).dot if changes else _head_of(tx, key)
    chain = tx.chain(key.mailbox_id)
    return Flagged(UidSet.of(refused), chain.highestmodseq if chain else 0, dot)


# ---- folder trees ------------------------------------------------------------------------------------------------


def _tree(user: str) -> MailboxKey:
    return MailboxKey(user, tree_id(user), 0)


def create_folder(tx: Transaction, user: str, name: str, mailbox_id: bytes, *, spare_ids: Iterator[bytes]) -> Dot:
    """Create a folder and the parents that it lacks (RFC 3501 section 6.3.3), which get ids from `spare_ids`.

    Tried again with the same id it does nothing, whatever became of the folder meanwhile; nor does it for an INBOX
    that is there, which two nodes may want at once. Raises FolderExistsError, InvalidNameError.
    """
    known = _known_folders(tx, user)
    if (name == INBOX and INBOX in known) or _is_deleted(tx, user, mailbox_id) is not None:
        return _head(tx, user)
    if name in known:
        raise FolderExistsError(f"there is a folder {name!r} already")
    _check_living(tx, user, known, _parents(name))
    uidvalidities = _new_uidvalidities(tx, user)
    changes = _missing_parents(name, known, spare_ids, uidvalidities)
    changes.append(FolderCreate(mailbox_id, name, next(uidvalidities)))
    _check_number(known, changes)
    return _commit(tx, _tree(user), changes).dot


def rename_folder(tx: Transaction, user: str, mailbox_id: bytes, name: str, *, spare_ids: Iterator[bytes]) -> Dot:
    """Rename a folder with all below it (RFC 3501 section 6.3.5).

    INBOX's mail moves with its mailbox, and a new and empty INBOX takes its place. Raises FolderNotFoundError,
    FolderExistsError, InvalidNameError.
    """
    known = _known_folders(tx, user)
    old = next((record.name for record in known.values() if record.mailbox_id == mailbox_id), None)
    if old is None:
        raise FolderNotFoundError("the folder was deleted meanwhile")
    if old == name:
        return _head(tx, user)
    if old != INBOX and name.startswith(old + SEPARATOR):
        raise InvalidNameError(f"the folder {old!r} cannot move to a place below itself; choose another name")
    _check_living(tx, user, known, [old, *_parents(name)])
    # What is below may be deleted and in sight: it moves along, and goes with its last mail as it would have. One that
    # was united with another stays so (`resync.tree.renamed`).
    below = {} if old == INBOX else {n: r for n, r in known.items() if n.startswith(old + SEPARATOR)}
    names = {mailbox_id: name, **{record.mailbox_id: name + n.removeprefix(old) for n, record in below.items()}}
    for new in names.values():
        check_folder_name(new)
        if new in known and known[new].mailbox_id not in names:
            raise FolderExistsError(f"there is a folder {new!r} already")
    uidvalidities = _new_uidvalidities(tx, user)
    changes = _missing_parents(name, known, spare_ids, uidvalidities)
    changes += [FolderRename(folder_id, new) for folder_id, new in names.items()]
    if old == INBOX:
        changes.append(FolderCreate(next(spare_ids), INBOX, next(uidvalidities)))
    _check_number(known, changes)
    return _commit(tx, _tree(user), changes).dot


def delete_folder(tx: Transaction, user: str, mailbox_id: bytes) -> Dot:
    """Take a folder out of the tree. One that is gone already is gone. Raises FolderNotFoundError."""
    deleted = _is_deleted(tx, user, mailbox_id)
    if deleted is None:
        raise FolderNotFoundError("the user has no such folder")
    if deleted:
        return _head(tx, user)
    return _commit(tx, _tree(user), [FolderDelete(mailbox_id)]).dot


def subscribe(tx: Transaction, user: str, name: str, *, subscribed: bool) -> Dot | None:
    """Set or clear a subscription. The entry, or the head at which it is so already. Raises MailboxFullError."""
    known = queries.subscriptions(tx.connection, user)
    if (name in known) == subscribed:
        return _head_of(tx, _tree(user))
    if subscribed and len(known) >= FOLDERS_MAX:
        raise MailboxFullError(f"a user may have {FOLDERS_MAX} subscriptions; remove some first")
    return _commit(tx, _tree(user), [FolderSubscribe(name, subscribed)]).dot


def _head(tx: Transaction, user: str) -> Dot:
    chain = tx.chain(tree_id(user))
    assert chain is not None
    assert chain.head is not None
    return chain.head


def _head_of(tx: Transaction, key: MailboxKey) -> Dot | None:
    """What a request that changes nothing rests on: its client must find that as durable as a change."""
    chain = tx.chain(key.mailbox_id)
    return chain.head if chain else None


def _uidnext(tx: Transaction, key: MailboxKey, count: int) -> int:
    """The first of so many UIDs. Raises MailboxFullError when they run out (RFC 3501 section 2.3.1.1)."""
    chain = tx.chain(key.mailbox_id)
    uidnext = chain.uidnext if chain else 1
    if uidnext + count > UID_MAX:
        raise MailboxFullError("the folder has given out all its UIDs; move its mail to another folder")
    return uidnext


def _is_deleted(tx: Transaction, user: str, mailbox_id: bytes) -> bool | None:
    """None: there never was such a folder."""
    query = "SELECT deleted FROM folder WHERE mailbox_id = ? AND user = ?"
    row = tx.connection.execute(query, (mailbox_id, user)).fetchone()
    return None if row is None else bool(row[0])


def _known_folders(tx: Transaction, user: str) -> dict[str, queries.FolderRecord]:
    tx.write_chains()  # whether a deleted folder is in sight depends on its mail
    return queries.folders(tx.connection, user)


def _check_living(tx: Transaction, user: str, known: dict[str, queries.FolderRecord], names: Iterable[str]) -> None:
    """Raises InvalidNameError for a folder that goes with its last mail: nobody is to build on it."""
    for name in names:
        if name in known and _is_deleted(tx, user, known[name].mailbox_id):
            raise InvalidNameError(
                f"the folder {name!r} was deleted and is there only for mail that came late; move that to another one"
            )


def _parents(name: str) -> list[str]:
    parts = name.split(SEPARATOR)
    return [SEPARATOR.join(parts[:length]) for length in range(1, len(parts))]


def _missing_parents(
    name: str, known: dict[str, queries.FolderRecord], spare_ids: Iterator[bytes], uidvalidities: Iterator[int]
) -> list[Change]:
    return [
        FolderCreate(next(spare_ids), parent, next(uidvalidities)) for parent in _parents(name) if parent not in known
    ]


def _check_number(known: dict[str, queries.FolderRecord], changes: Sequence[Change]) -> None:
    """Raises MailboxFullError."""
    if len(known) + sum(isinstance(change, FolderCreate) for change in changes) > FOLDERS_MAX:
        raise MailboxFullError(f"a user may have {FOLDERS_MAX} folders; delete some first")


def _new_uidvalidities(tx: Transaction, user: str) -> Iterator[int]:
    """From seconds since the epoch (RFC 3501 section 2.3.1.1) up, and above all that the user's folders ever had.

    Of the user and not of the name: a folder that is renamed to a name of the past must not look like that one.
    Raises MailboxFullError when they have run out.
    """
    query = "SELECT MAX(uidvalidity) FROM folder WHERE user = ?"
    highest: int = tx.connection.execute(query, (user,)).fetchone()[0] or -UIDVALIDITY_STEP
    if highest + UIDVALIDITY_RESERVE > UIDVALIDITY_MAX:
        raise MailboxFullError("the user has had so many folders that no UIDVALIDITY is left for another one")
    now_s = min(tx.wall_ms() // 1000, UIDVALIDITY_OF_CLOCK_MAX)
    return uidvalidities_after(max(now_s - UIDVALIDITY_STEP, highest))
