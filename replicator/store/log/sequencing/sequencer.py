"""The sequencer: a master turns requests into new entries on top of the head it shows (design sections 3 and 4).

Here are requests about mail; `folder_sequencer` has those about folder trees.

Each function runs as one job of the writer. It checks the request against the head, and either raises or makes one
entry; no other change can come in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from protocol.values import UID_MAX, Dot, UidSet
from replicator.errors import MailboxFullError
from replicator.store.bodies.body_rows import StoredBody, write_body
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log.sequencing.numbering import commit, head_of
from resync.entry import (
    Change,
    FlagAdd,
    FlagDel,
    FolderCreate,
    MailAdd,
    MailDel,
    Raise,
)
from resync.state import RAISED_MODSEQ_MAX, why_not_raise


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
    dot = commit(tx, key, adds, bodies).dot if adds else head_of(tx, key)
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
    return Placed(tuple(uids), commit(tx, key, adds).dot if adds else head_of(tx, key))


def raise_numbers(tx: Transaction, key: MailboxKey, uidnext: int, modseq: int) -> Dot | None:
    """Raise UIDNEXT and HIGHESTMODSEQ to at least these. Return the entry, or the head if they are as high already.

    Raises MailboxFullError for numbers that leave no room.
    """
    chain = tx.chain(key.mailbox_id)
    shown, highest = (chain.uidnext, chain.highestmodseq) if chain else (1, 0)
    if uidnext <= shown and modseq <= highest:
        return head_of(tx, key)
    if why_not_raise(max(uidnext, shown), shown) is not None:
        raise MailboxFullError("UIDNEXT cannot be raised so far: too few UIDs would be left")
    if modseq > max(highest, RAISED_MODSEQ_MAX):
        raise MailboxFullError(f"HIGHESTMODSEQ cannot be raised so far: {RAISED_MODSEQ_MAX} is the limit")
    raised = Raise(max(uidnext, shown))
    return commit(tx, key, [raised], modseq=max(modseq, highest + 1)).dot


@dataclass(frozen=True, slots=True)
class NewUid:
    """Another UID for a message: its UID and its GUID, and the UID that it is to have."""

    uid: int
    guid: bytes
    wanted: int


def renumber(tx: Transaction, key: MailboxKey, wanted: Iterable[NewUid]) -> Placed:
    """Give messages other UIDs, in one entry; a message whose new UID is below UIDNEXT gets the next one.

    One that is gone is left out, and one that has another UID by now, as after a retry, keeps it.
    """
    found = [(one, queries.row_of_guid(tx.connection, one.guid, key.mailbox_id)) for one in wanted]
    moves = {row.uid: (row, one.wanted) for one, row in found if row is not None and row.uid == one.uid != one.wanted}
    uids = {row.guid: row.uid for _, row in found if row is not None}
    if not moves:
        return Placed(tuple(uids.values()), head_of(tx, key))
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
    return Placed(tuple(uids.values()), commit(tx, key, changes).dot)


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
    return commit(tx, key, [MailDel(present)]).dot if present else head_of(tx, key)


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
    dot = commit(tx, key, changes).dot if changes else head_of(tx, key)
    chain = tx.chain(key.mailbox_id)
    return Flagged(UidSet.of(refused), chain.highestmodseq if chain else 0, dot)


def _uidnext(tx: Transaction, key: MailboxKey, count: int) -> int:
    """Return the first of `count` new UIDs. Raises MailboxFullError when they run out (RFC 3501 section 2.3.1.1)."""
    chain = tx.chain(key.mailbox_id)
    uidnext = chain.uidnext if chain else 1
    if uidnext + count > UID_MAX:
        raise MailboxFullError("the folder has used all its UIDs; move its mail to another folder")
    return uidnext
