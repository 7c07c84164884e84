"""The sequencer: a master turns requests into new entries on top of the head it shows (design sections 3 and 4).

Each function runs as one job of the writer. It checks the request against the head, and either raises or makes one
entry; no other change can come in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from protocol.values import UID_MAX, Dot, UidSet
from replicator.errors import FolderExistsError, FolderNotFoundError, InvalidNameError, MailboxFullError
from replicator.mail.annotations import (
    KEPT_UIDVALIDITY,
    OWN,
    SPECIAL_USE,
    UIDVALIDITY_HOLDER,
    USER_TABLE,
    held_by,
)
from replicator.mail.mailstore import INBOX, SEPARATOR, check_folder_name
from replicator.store.bodies.body_rows import StoredBody, write_body
from replicator.store.db import queries
from replicator.store.db.entry_validation import MODSEQ_STEP_MAX, are_annotations
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.apply import apply
from resync.entry import (
    NOWHERE,
    Change,
    Entry,
    FlagAdd,
    FlagDel,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderState,
    FolderSubscribe,
    MailAdd,
    MailDel,
    Raise,
    tree_id,
)
from resync.folder_tree import UIDVALIDITY_MAX, UIDVALIDITY_STEP, uidvalidities_after
from resync.state import RISEN_MAX, why_not_raise

UIDVALIDITY_RESERVE = UIDVALIDITY_STEP << 12
"""UIDVALIDITY values reserved for merges and for the parents that one new folder may need."""
UIDVALIDITY_OF_CLOCK_MAX = UIDVALIDITY_MAX - (1 << 28)
"""Highest UIDVALIDITY taken from the clock (year 2097), so that a wrong clock cannot use up the values."""
REMOVED_FACTOR = 10
"""Limit of a user's annotations with removed ones, which merges need, as a multiple of the limit without these."""


def _commit(
    tx: Transaction,
    key: MailboxKey,
    changes: Sequence[Change],
    bodies: Sequence[StoredBody] = (),
    *,
    modseq: int | None = None,
) -> Entry:
    entry = tx.next_entry(key.mailbox_id, key.user, key.uidvalidity, changes)
    if modseq is not None:
        entry = replace(entry, modseq=modseq)
    tx.append(entry, bodies, applied=True)
    apply(tx, entry)
    return entry


@dataclass(frozen=True, slots=True)
class Placed:
    """The UIDs of placed messages, in the order of the request, and the entry that assigned (the last of) them.

    `brought_by`: for a message that was there already, the entries that bring its body to other nodes; `dot` may not.
    """

    uids: tuple[int, ...]
    dot: Dot | None
    brought_by: tuple[Dot, ...] = ()


@dataclass(frozen=True, slots=True)
class NewMail:
    """A message to place. Its GUID is that of no other message in the request.

    `uid`: the UID that it has at another server. It gets this one, unless UIDNEXT is above it.
    """

    guid: bytes
    received_ms: int
    flags: tuple[str, ...]
    stored: StoredBody = field(repr=False, compare=False)
    uid: int | None = None


def save(
    tx: Transaction,
    key: MailboxKey,
    stored: StoredBody,
    *,
    guid: bytes,
    received_ms: int,
    flags: Sequence[str],
    uid: int | None = None,
) -> Placed:
    """Place a message. See `save_all`."""
    return save_all(tx, key, [NewMail(guid, received_ms, tuple(flags), stored, uid)])


def save_all(tx: Transaction, key: MailboxKey, messages: Sequence[NewMail]) -> Placed:
    """Place messages in this order, by one entry.

    One whose GUID the mailbox holds keeps its UID, so a retried request makes no duplicate.
    """
    known = {one.guid: queries.row_of_guid(tx.connection, one.guid, key.mailbox_id) for one in messages}
    uid = _uidnext(tx, key, sum(row is None for row in known.values()))
    uids, adds = list[int](), list[Change]()
    brought_by: dict[Dot, None] = {}
    for one in messages:
        stored, row = one.stored, known[one.guid]
        if row is None:
            if one.uid is not None and one.uid > uid and why_not_raise(one.uid, uid) is None:
                adds.append(Raise(one.uid))
                uid = one.uid
            adds.append(
                MailAdd(uid, one.guid, one.received_ms, one.flags, stored.size_bytes, stored.content_hash, copied=False)
            )
            uids.append(uid)
            uid += 1
            continue
        if stored.content_hash == row.content_hash:
            write_body(tx.connection, stored)  # the message may have arrived with a state, without its body
        brought_by |= dict.fromkeys(dot for dot, _ in row.placements())
        uids.append(row.uid)
    bodies = [one.stored for one in messages if known[one.guid] is None]
    dot = _commit(tx, key, adds, bodies).dot if adds else _head_of(tx, key)
    return Placed(tuple(uids), dot, tuple(brought_by))


def save_first(tx: Transaction, mailbox_id: bytes, mail: NewMail) -> Placed | None:
    """Place a message in a mailbox that this transaction has just created; None if it has not."""
    if not tx.commit.logged:
        return None
    entry = tx.commit.logged[-1].entry
    for change in entry.changes:
        if isinstance(change, FolderCreate) and change.mailbox_id == mailbox_id:
            return save_all(tx, MailboxKey(entry.user, mailbox_id, change.uidvalidity), [mail])
    return None


@dataclass(frozen=True, slots=True)
class CopySource:
    """One message to copy: its UID as the client saw it, its GUID, and a spare GUID for a copy that must not keep it.

    If the spare GUID equals the GUID, a message that the destination holds is not copied again.
    """

    uid: int
    guid: bytes
    spare_guid: bytes = field(repr=False)


def copy(tx: Transaction, source: bytes, wanted: Sequence[CopySource], key: MailboxKey) -> Placed | None:
    """Copy all of the messages in one entry, or return None if one of them is not in `source` as this node shows it.

    A mailbox holds a GUID once. A message that a merge has given another UID is therefore found by its GUID. If the
    destination has that GUID already, the copy gets the spare GUID; if the destination has that too, the request is a
    retry and the existing copy is the answer.
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
        held = queries.uid_of_guid(tx.connection, row.guid, key.mailbox_id) is not None
        guid = want.spare_guid if held else row.guid
        if held and (again := queries.uid_of_guid(tx.connection, guid, key.mailbox_id)) is not None:
            uids.append(again)
            continue
        flags = tuple(sorted(row.visible_flags()))
        adds.append(MailAdd(uid, guid, row.received_ms, flags, row.size_bytes, row.content_hash, copied=True))
        uids.append(uid)
        uid += 1
    return Placed(tuple(uids), _commit(tx, key, adds).dot if adds else _head_of(tx, key))


def raise_numbers(tx: Transaction, key: MailboxKey, uidnext: int, modseq: int) -> Dot | None:
    """Raise UIDNEXT and HIGHESTMODSEQ to at least these. Return the entry, or the head if they are as high already.

    Raises MailboxFullError for numbers that leave no room.
    """
    chain = tx.chain(key.mailbox_id)
    shown, highest = (chain.uidnext, chain.highestmodseq) if chain else (1, 0)
    if uidnext <= shown and modseq <= highest:
        return _head_of(tx, key)
    if why_not_raise(max(uidnext, shown), shown) is not None or modseq > highest + MODSEQ_STEP_MAX:
        raise MailboxFullError("the folder's numbers cannot be raised so far: too few would be left")
    raised = Raise(max(uidnext, shown))
    return _commit(tx, key, [raised], modseq=max(modseq, highest + 1)).dot


def renumber(tx: Transaction, key: MailboxKey, wanted: Iterable[tuple[bytes, int]]) -> Placed:
    """Give messages, by GUID, these UIDs, in one entry; a message whose UID is below UIDNEXT gets the next one.

    A message that is gone is left out, and one that has its UID keeps it.
    """
    rows = {guid: queries.row_of_guid(tx.connection, guid, key.mailbox_id) for guid, _ in wanted}
    moves = {row.uid: (row, uid) for guid, uid in wanted if (row := rows[guid]) is not None and row.uid != uid}
    uids = {row.guid: row.uid for row in rows.values() if row is not None}
    if not moves:
        return Placed(tuple(uids.values()), _head_of(tx, key))
    changes: list[Change] = [MailDel(UidSet.of(moves))]
    uidnext = _uidnext(tx, key, len(moves))
    for row, uid in moves.values():
        if uid > uidnext and why_not_raise(uid, uidnext) is None:
            changes.append(Raise(uid))
            uidnext = uid
        flags = tuple(sorted(row.visible_flags()))
        add = MailAdd(uidnext, row.guid, row.received_ms, flags, row.size_bytes, row.content_hash, copied=True)
        changes.append(add)
        uids[row.guid] = uidnext
        uidnext += 1
    return Placed(tuple(uids.values()), _commit(tx, key, changes).dot)


def absent(tx: Transaction, key: MailboxKey, uids: UidSet) -> UidSet:
    """Return the UIDs that name no message: it was expunged, or a merge has given it another UID."""
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
    """Remove the messages that are still there. Return the entry, or the current head if none is."""
    present = UidSet.of(row.uid for row in queries.mailbox_rows(tx.connection, key.mailbox_id, uids))
    return _commit(tx, key, [MailDel(present)]).dot if present else _head_of(tx, key)


@dataclass(frozen=True, slots=True)
class Flagged:
    """The result of a flag change: UIDs refused under UNCHANGEDSINCE, and the resulting HIGHESTMODSEQ and head."""

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

    Flags compare case-insensitively: a flag that a message has is not added in another spelling, and all of its
    spellings are removed.
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


def create_folder(
    tx: Transaction, user: str, name: str, mailbox_id: bytes, *, spare_ids: Iterator[bytes], use: str | None = None
) -> Dot:
    """Create a folder and its missing parents (RFC 3501 section 6.3.3), which get ids from `spare_ids`.

    A retry with the same id does nothing, whatever became of the folder meanwhile; nor does creating an INBOX that
    exists, which two nodes may attempt at once. `use`: the folder's special uses (RFC 6154 section 3). Raises
    FolderExistsError, InvalidNameError, MailboxFullError.
    """
    known = _known_folders(tx, user)
    if (name == INBOX and INBOX in known) or _is_deleted(tx, user, mailbox_id) is not None:
        return _head(tx, user)
    if name in known:
        raise FolderExistsError(f"a folder {name!r} already exists")
    _check_living(tx, user, known, _parents(name))
    uidvalidities = _new_uidvalidities(tx, user)
    changes = _missing_parents(name, known, spare_ids, uidvalidities)
    changes.append(FolderCreate(mailbox_id, name, next(uidvalidities)))
    _check_number(tx, known, changes)
    if use:
        changes.append(FolderAnnotate(mailbox_id, ((SPECIAL_USE, use.encode()),)))
        _check_annotations(tx, user, 0, 1, 1)
    return _commit(tx, _tree(user), changes).dot


def rename_folder(tx: Transaction, user: str, mailbox_id: bytes, name: str, *, spare_ids: Iterator[bytes]) -> Dot:
    """Rename a folder with all folders below it (RFC 3501 section 6.3.5).

    INBOX's mail moves with its mailbox, and a new, empty INBOX takes its place. Raises FolderNotFoundError,
    FolderExistsError, InvalidNameError; MailboxFullError if the user has no room for INBOX's annotations twice.
    """
    known = _known_folders(tx, user)
    old = next((record.name for record in known.values() if record.mailbox_id == mailbox_id), None)
    if old is None:
        raise FolderNotFoundError("the folder has been deleted in the meantime")
    if old == name:
        return _head(tx, user)
    if old != INBOX and name.startswith(old + SEPARATOR):
        raise InvalidNameError(f"the folder {old!r} cannot be moved below itself; choose another name")
    _check_living(tx, user, known, [old, *_parents(name)])
    # A folder below may be deleted but visible: it moves along, and still vanishes with its last mail. One that was
    # united with another stays so (`resync.folder_tree.renamed`).
    below = {} if old == INBOX else {n: r for n, r in known.items() if n.startswith(old + SEPARATOR)}
    names = {mailbox_id: name, **{record.mailbox_id: name + n.removeprefix(old) for n, record in below.items()}}
    for new in names.values():
        check_folder_name(new)
        if new in known and known[new].mailbox_id not in names:
            raise FolderExistsError(f"a folder {new!r} already exists")
    uidvalidities = _new_uidvalidities(tx, user)
    changes = _missing_parents(name, known, spare_ids, uidvalidities)
    changes += [FolderRename(folder_id, new) for folder_id, new in names.items()]
    if old == INBOX:
        changes.append(inbox := FolderCreate(next(spare_ids), INBOX, next(uidvalidities)))
        kept = queries.annotations_of(tx.connection, user, mailbox_id)  # RFC 5464 section 4.1: both have them
        _check_annotations(tx, user, 0, len(kept), len(kept))
        changes += [FolderAnnotate(inbox.mailbox_id, (one,)) for one in kept.items()]
    _check_number(tx, known, changes)
    return _commit(tx, _tree(user), changes).dot


def delete_folder(tx: Transaction, user: str, mailbox_id: bytes) -> Dot:
    """Delete a folder from the tree; if it is deleted already, change nothing. Raises FolderNotFoundError."""
    deleted = _is_deleted(tx, user, mailbox_id)
    if deleted is None:
        raise FolderNotFoundError("the user has no such folder")
    if deleted:
        return _head(tx, user)
    return _commit(tx, _tree(user), [FolderDelete(mailbox_id)]).dot


def subscribe(tx: Transaction, user: str, name: str, *, subscribed: bool) -> Dot | None:
    """Set or clear a subscription. Return the entry, or the head if nothing changes. Raises MailboxFullError."""
    known = queries.subscriptions(tx.connection, user)
    if (name in known) == subscribed:
        return _head_of(tx, _tree(user))
    if subscribed and len(known) >= tx.limits.imap_folders_per_user:
        raise MailboxFullError(f"a user may have {tx.limits.imap_folders_per_user} subscriptions; remove some first")
    return _commit(tx, _tree(user), [FolderSubscribe(name, subscribed)]).dot


def annotate(tx: Transaction, user: str, mailbox_id: bytes, values: Iterable[tuple[str, bytes | None]]) -> Dot | None:
    """Set or, by None, remove annotations of a folder or, with `NOWHERE`, of the account, all or none (RFC 5464).

    Return the entry, or the head if nothing changes. Raises FolderNotFoundError, MailboxFullError; InvalidNameError for
    a change that other nodes would refuse.
    """
    wanted = tuple(values)
    if not are_annotations(wanted):
        raise InvalidNameError("so many annotations, or such names and values, are too much for one change")
    if mailbox_id != NOWHERE and _is_deleted(tx, user, mailbox_id) is not False:
        raise FolderNotFoundError("the user has no such folder")
    if any(name.startswith(OWN) for name, _ in wanted):
        return _keep_uidvalidity(tx, user, mailbox_id, dict(wanted))
    had = queries.had_annotations(tx.connection, user, mailbox_id, [name for name, _ in wanted])
    changed = tuple((name, value) for name, value in wanted if had.get(name) != value)
    if not changed:
        return _head_of(tx, _tree(user))
    if user != USER_TABLE:
        more = sum((value is not None) - (had.get(name) is not None) for name, value in changed)
        fresh = sum(name not in had for name, _ in changed)
        _check_annotations(tx, user, queries.count_annotations(tx.connection, user, mailbox_id), more, fresh)
    return _commit(tx, _tree(user), [FolderAnnotate(mailbox_id, changed)]).dot


def _keep_uidvalidity(tx: Transaction, user: str, mailbox_id: bytes, wanted: Mapping[str, bytes | None]) -> Dot | None:
    """Give a folder the UIDVALIDITY that its mailbox has at another server, or with None its own (design section 3).

    Raises FolderExistsError if another folder has it, or could come to have it, or if the folder has had mail:
    clients know that by its own UIDVALIDITY. Raises InvalidNameError for what is no UIDVALIDITY.
    """
    value = wanted.get(KEPT_UIDVALIDITY)
    if [*wanted] != [KEPT_UIDVALIDITY] or mailbox_id == NOWHERE:
        raise InvalidNameError(f"annotations below {OWN} belong to the nodes")
    if queries.had_annotations(tx.connection, user, mailbox_id, [KEPT_UIDVALIDITY]).get(KEPT_UIDVALIDITY) == value:
        return _head_of(tx, _tree(user))
    changes = [FolderAnnotate(mailbox_id, ((KEPT_UIDVALIDITY, value),))]
    if value is not None:
        folders = {
            row.mailbox_id: row for row in queries.tree_rows(tx.connection, user) if isinstance(row, FolderState)
        }
        holder = held_by(mailbox_id, folders[mailbox_id].uidvalidity)
        _check_uidvalidity(tx, user, folders, value, holder)
        mailbox = tx.chain(mailbox_id)
        if mailbox is not None and mailbox.uidnext > 1:
            raise FolderExistsError("the folder has had mail, which clients know by its own UIDVALIDITY; use a new one")
        changes.append(FolderAnnotate(NOWHERE, ((UIDVALIDITY_HOLDER + value.decode(), holder),)))
    return _commit(tx, _tree(user), changes).dot


def _check_uidvalidity(
    tx: Transaction, user: str, folders: Mapping[bytes, FolderState], value: bytes, holder: bytes
) -> None:
    """Raise InvalidNameError or FolderExistsError if no folder, or this one, may have this UIDVALIDITY."""
    text = value.decode("latin-1")
    wanted = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(UIDVALIDITY_MAX)) else 0
    if not 0 < wanted <= UIDVALIDITY_MAX or text != str(wanted):
        raise InvalidNameError(f"a UIDVALIDITY is a number from 1 to {UIDVALIDITY_MAX}, not {text[:24]!r}")
    name = UIDVALIDITY_HOLDER + text
    is_held = queries.had_annotations(tx.connection, user, NOWHERE, [name]).get(name) not in {None, holder}
    if is_held or any(0 <= wanted - one.uidvalidity <= RISEN_MAX for one in folders.values()):
        raise FolderExistsError(f"another folder of the user has, or has had, the UIDVALIDITY {wanted}")


def _check_annotations(tx: Transaction, user: str, known: int, more: int, fresh: int) -> None:
    """Check the limits where a folder, or the account, that has `known` annotations gets more.

    `fresh`: those that it never had. Raises MailboxFullError.
    """
    limits = tx.limits
    if more > 0 and known + more > limits.imap_annotations_per_folder:
        raise MailboxFullError(
            f"a folder may have {limits.imap_annotations_per_folder} annotations, and so may the account; remove some"
            " first"
        )
    query = (
        "SELECT COUNT(*), COUNT(*) FILTER (WHERE value IS NOT NULL AND NOT COALESCE(f.deleted, 0))"
        " FROM annotation a LEFT JOIN folder f USING (mailbox_id)"  # a united folder's do not count
        f" WHERE a.user = ? AND substr(a.name, 1, {len(OWN)}) <> '{OWN}'"
    )
    rows, living = tx.connection.execute(query, (user,)).fetchone() if more > 0 or fresh else (0, 0)
    if more > 0 and living + more > limits.imap_annotations_per_user:
        raise MailboxFullError(f"a user may have {limits.imap_annotations_per_user} annotations; remove some first")
    if fresh and rows + fresh > REMOVED_FACTOR * limits.imap_annotations_per_user:
        raise MailboxFullError("this user has had too many annotations under different names; use those names again")


def _head(tx: Transaction, user: str) -> Dot:
    chain = tx.chain(tree_id(user))
    assert chain is not None
    assert chain.head is not None
    return chain.head


def _head_of(tx: Transaction, key: MailboxKey) -> Dot | None:
    """Return the head on which a request that changes nothing rests.

    Its client needs that head to be as durable as a change.
    """
    chain = tx.chain(key.mailbox_id)
    return chain.head if chain else None


def _uidnext(tx: Transaction, key: MailboxKey, count: int) -> int:
    """Return the first of `count` new UIDs. Raises MailboxFullError when they run out (RFC 3501 section 2.3.1.1)."""
    chain = tx.chain(key.mailbox_id)
    uidnext = chain.uidnext if chain else 1
    if uidnext + count > UID_MAX:
        raise MailboxFullError("the folder has used all its UIDs; move its mail to another folder")
    return uidnext


def _is_deleted(tx: Transaction, user: str, mailbox_id: bytes) -> bool | None:
    """Return True if the folder is deleted, or None if it never existed."""
    query = "SELECT deleted FROM folder WHERE mailbox_id = ? AND user = ?"
    row = tx.connection.execute(query, (mailbox_id, user)).fetchone()
    return None if row is None else bool(row[0])


def _known_folders(tx: Transaction, user: str) -> dict[str, queries.FolderRecord]:
    tx.write_chains()  # the visibility of a deleted folder depends on its mail
    return queries.folders(tx.connection, user)


def _check_living(tx: Transaction, user: str, known: dict[str, queries.FolderRecord], names: Iterable[str]) -> None:
    """Raise InvalidNameError for a deleted folder that lasts only as long as its mail: no folder may be built on it."""
    for name in names:
        if name in known and _is_deleted(tx, user, known[name].mailbox_id):
            raise InvalidNameError(
                f"the folder {name!r} was deleted, and is shown only for mail that arrived late; move that mail"
                " to another folder"
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


def _check_number(tx: Transaction, known: dict[str, queries.FolderRecord], changes: Sequence[Change]) -> None:
    """Check the limit on the number of folders. Raises MailboxFullError."""
    if len(known) + sum(isinstance(change, FolderCreate) for change in changes) > tx.limits.imap_folders_per_user:
        raise MailboxFullError(f"a user may have {tx.limits.imap_folders_per_user} folders; delete some first")


def _new_uidvalidities(tx: Transaction, user: str) -> Iterator[int]:
    """Yield UIDVALIDITYs from the clock's seconds (RFC 3501 section 2.3.1.1) up, above all that the user's folders had.

    They are unique to the user, not only to the name: a folder renamed to a former name must not look like the former
    folder. Raises MailboxFullError when they have run out.
    """
    query = "SELECT MAX(uidvalidity) FROM folder WHERE user = ?"
    highest: int = tx.connection.execute(query, (user,)).fetchone()[0] or -UIDVALIDITY_STEP
    if highest + UIDVALIDITY_RESERVE > UIDVALIDITY_MAX:
        raise MailboxFullError("the user has had so many folders that no UIDVALIDITY is left for a new one")
    now_s = min(tx.wall_ms() // 1000, UIDVALIDITY_OF_CLOCK_MAX)
    return uidvalidities_after(max(now_s - UIDVALIDITY_STEP, highest))
