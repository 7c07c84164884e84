"""Validation of entries from other nodes, before they may change anything here.

There are two checks. `check_form`: is it an entry at all? If not, the link that brought it ends. `contradiction`: can
it stand on the predecessor that it names? If not, its node had another state at that head than this node; the entry
stays in the log as a branch of its own, so that its origin's other mailboxes go on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from itertools import pairwise, starmap
from typing import NamedTuple

from protocol.values import UID_MAX, Dot, Stamp, UidSet, context_of
from replicator.errors import HistoryError, InvalidNameError
from replicator.mail.annotations import AT_ONCE_MAX, BYTES_AT_ONCE_MAX, is_annotation
from replicator.mail.mailstore import check_folder_name
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.transaction import Transaction
from resync.entry import (
    DIGEST_BYTES,
    ID_BYTES,
    NOWHERE,
    Change,
    Entry,
    FlagAdd,
    FlagDel,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderSubscribe,
    MailAdd,
    MailDel,
    Merge,
    Raise,
    TreeMerge,
    tree_id,
)
from resync.folder_tree import UIDVALIDITY_MAX
from resync.row import Placement, Row, age
from resync.state import RAISED_MODSEQ_MAX, RISEN_MAX, ContradictionError, why_not_merge, why_not_raise

HASH_BYTES = 32
NUMBER_MAX = 1 << 62  # of MODSEQs, times and dates: leaves room to count below 2**63, where SQLite's integers end
SIZE_MAX = 1 << 40  # of a message: far above what doors accept; 2**22 of them still add up below 2**63
USER_MAX_BYTES = 320  # an address has 64 + 1 + 255 (RFC 5321 section 4.5.3.1)
MODSEQ_STEP_MAX = 1 << 40  # of a merge, above our MODSEQ: room for what the other branch numbered meanwhile
PREDECESSORS_MAX = 2  # a merge joins two branches

_TREE_CHANGES = (FolderCreate, FolderRename, FolderDelete, FolderSubscribe, FolderAnnotate, TreeMerge)


class NamedHead(NamedTuple):
    """A state of a mailbox or tree, named by the entry that led to it. `uidvalidity` as in all entries of the chain."""

    user: str
    mailbox_id: bytes
    uidvalidity: int
    dot: Dot
    modseq: int
    time: int

    @property
    def is_tree(self) -> bool:
        """True if this is a folder tree rather than a mailbox."""
        return self.uidvalidity == 0

    @property
    def stamp(self) -> Stamp:
        """The time at which the entry was numbered, and the node that did it."""
        return Stamp(self.time, self.dot.sid)


def check_form(entry: Entry, own_origin: str) -> None:
    """Raise HistoryError if no node can have numbered such an entry, whatever state it showed."""
    wrong = next((what for holds, what in _form(entry, own_origin) if not holds), None)
    wrong = wrong or why_not_head(head_of(entry))
    if wrong:
        raise HistoryError(f"entry {entry.dot.seq} of {entry.dot.origin} {wrong}; check the node that numbered it")


def _form(entry: Entry, own_origin: str) -> tuple[tuple[bool, str], ...]:
    return (
        (entry.dot.origin != own_origin, "names this node's current run as its origin"),
        (len(entry.predecessors) <= PREDECESSORS_MAX, f"has more than {PREDECESSORS_MAX} predecessors"),
        (_has_one_history_each(entry), "does not name one history of 16 bytes for each predecessor"),
        (_are_distinct(entry), "names a predecessor twice"),
        (bool(entry.changes), "has no changes"),
        (
            all(isinstance(change, _TREE_CHANGES) == entry.is_tree for change in entry.changes),
            "mixes changes to folders and to messages",
        ),
        (all(map(is_well_formed, entry.changes)), "has a change with a value out of range"),
        (
            all(isinstance(change, (Merge, TreeMerge)) == (len(entry.predecessors) > 1) for change in entry.changes),
            "has several predecessors but no merge, or a merge but only one",
        ),
        (entry.joined_context.get(entry.dot.origin, 0) < entry.dot.seq, "has predecessors that have already seen it"),
    )


def _has_one_history_each(entry: Entry) -> bool:
    return entry.histories is None or [*map(len, entry.histories)] == [DIGEST_BYTES] * len(entry.predecessors)


def _are_distinct(entry: Entry) -> bool:
    """Return True if no predecessor is named twice; a merge may name two histories of one."""
    heads = tuple(zip(entry.predecessors, entry.histories or entry.predecessors, strict=False))
    return len(set(heads)) == len(heads)


def head_of(entry: Entry) -> NamedHead:
    """Return the head that the entry gives its chain."""
    return NamedHead(entry.user, entry.mailbox_id, entry.uidvalidity, entry.dot, entry.modseq, entry.time)


def why_not_head(head: NamedHead) -> str | None:
    """Return what makes the head impossible, or None if it is sound."""
    for holds, what in (
        (0 < head.dot.seq < NUMBER_MAX, "has a number out of range"),
        (0 < head.time < NUMBER_MAX, "has a time out of range"),
        (
            0 < len(head.user.encode()) <= USER_MAX_BYTES,
            f"has a user name that is not 1 to {USER_MAX_BYTES} bytes long",
        ),
        (0 < head.modseq < NUMBER_MAX, "has a MODSEQ out of range"),
        (0 <= head.uidvalidity <= UID_MAX, "has a UIDVALIDITY out of range"),
        (len(head.mailbox_id) == ID_BYTES, f"has a mailbox id that is not {ID_BYTES} bytes long"),
        (not head.is_tree or head.mailbox_id == tree_id(head.user), "changes a tree under an id other than its own"),
    ):
        if not holds:
            return what
    return None


def is_well_formed(change: Change) -> bool:
    """Return True if all values of a change are in range."""
    match change:
        case MailAdd():
            return (
                0 < change.uid < UID_MAX  # leaves a UIDNEXT
                and len(change.guid) == ID_BYTES
                and is_body(change.content_hash, change.size_bytes)
                and abs(change.received_ms) < NUMBER_MAX
            )
        case MailDel(uids) | FlagAdd(uids, _) | FlagDel(uids, _):
            in_range = bool(uids) and uids.ranges[0][0] > 0 and uids.ranges[-1][1] <= UID_MAX
            return in_range and UidSet.of_ranges(uids.ranges) == uids
        case Raise(uidnext):
            return 0 < uidnext <= UID_MAX
        case Merge(uidnext, risen, context, rows, removed):
            return (
                0 < uidnext <= UID_MAX
                and 0 <= risen <= RISEN_MAX
                and all(0 < dot.seq < NUMBER_MAX for dot in context)
                and all(_is_sound(row, uidnext) for row in rows)
                and all(len(guid) == ID_BYTES for guid in removed)
            )
        case TreeMerge(context, folders, subscriptions, annotations):
            return (
                all(0 < dot.seq < NUMBER_MAX for dot in context)
                and all(_is_named_and_timed(one.name, one.time) for one in folders)
                and all(_is_named_and_timed(one.name, one.time) for one in subscriptions)
                and all(len(one.mailbox_id) == ID_BYTES and 0 < one.uidvalidity <= UIDVALIDITY_MAX for one in folders)
                and all(_has_home(one.mailbox_id) and is_annotation(one.name, one.value) for one in annotations)
                and all(0 < one.time < NUMBER_MAX for one in annotations)
            )
        case FolderCreate():
            return (
                len(change.mailbox_id) == ID_BYTES
                and 0 < change.uidvalidity <= UIDVALIDITY_MAX
                and _is_name(change.name)
            )
        case FolderRename() | FolderSubscribe():
            return _is_name(change.name)
        case FolderAnnotate(mailbox_id, values):
            return _has_home(mailbox_id) and are_annotations(values)
        case _:
            return True


def are_annotations(values: Sequence[tuple[str, bytes | None]]) -> bool:
    """Return True if one change can give these values to annotations."""
    is_each_once = len({name for name, _ in values}) == len(values)
    size_bytes = sum(len(name) + len(value or b"") for name, value in values)
    is_small = 0 < len(values) <= AT_ONCE_MAX and size_bytes <= BYTES_AT_ONCE_MAX
    return is_small and is_each_once and all(starmap(is_annotation, values))


def _has_home(mailbox_id: bytes) -> bool:
    return mailbox_id == NOWHERE or len(mailbox_id) == ID_BYTES


def is_body(content_hash: bytes, size_bytes: int) -> bool:
    """Return True if hash and size are possible for a message's body."""
    return len(content_hash) == HASH_BYTES and 0 <= size_bytes < SIZE_MAX


def _is_sound(row: Row, uidnext: int) -> bool:
    return (
        0 < row.uid < uidnext
        and len(row.guid) == ID_BYTES
        and is_body(row.content_hash, row.size_bytes)
        and _are_in_order(row.placements())
        and all(0 < dot.seq < NUMBER_MAX and 0 <= change < NUMBER_MAX for dot, change in row.placements())
        and 0 < row.claim.seq < NUMBER_MAX
        and 0 < row.modseq < NUMBER_MAX
        and abs(row.received_ms) < NUMBER_MAX
        and 0 <= (row.saved_ms or 0) < NUMBER_MAX
        and all(0 < time < NUMBER_MAX for time, _, _ in row.flags.values())
    )


def _is_named_and_timed(name: str, time: int) -> bool:
    return _is_name(name) and 0 < time < NUMBER_MAX


def _is_name(name: str) -> bool:
    try:
        check_folder_name(name)
    except InvalidNameError:
        return False
    return True


def _are_in_order(placements: Sequence[Placement]) -> bool:
    """Return True if placements are listed as a merge lists them, so that equal rows are equal bit by bit."""
    return all(age(one) < age(other) for one, other in pairwise(placements))


def why_not_shown(change: Merge | TreeMerge, own: Dot) -> str | None:
    """Return why no other node can show this state, told as a merge of rows and context, or None if one can.

    `own` is the last entry that this node has numbered.
    """
    if not is_well_formed(change):
        return "a value out of range"
    seen = context_of(change.context)
    if seen.get(own.origin, 0) > own.seq:
        return "an entry of this node's current run that this node has not numbered"
    if isinstance(change, Merge):
        dots = (dot for row in change.rows for dot in row.dots())
        if any(seen.get(dot.origin, 0) < dot.seq for dot in dots):
            return "a message that its context does not cover"
    return None


def why_not_of(connection: sqlite3.Connection, chain: Chain | None, key: queries.MailboxKey) -> str | None:
    """Return why a mailbox or tree cannot be that user's, judged by its chain or folder here; None if it can be."""
    if chain is not None:
        is_same = (key.user, key.uidvalidity == 0) == (chain.user, chain.uidvalidity == 0)
        return (
            None
            if is_same
            else f"here its id belongs to a mailbox or tree of {chain.user}, not to this one of {key.user}"
        )
    known = queries.key_of(connection, key.mailbox_id)
    return (
        None if known is None or known.user == key.user else f"here it is a folder of {known.user}, not of {key.user}"
    )


def contradiction(tx: Transaction, chain: Chain | None, entry: Entry) -> str | None:
    """Return why the entry cannot stand on this head, or None. Its form is sound and it names the head."""
    chain = chain or Chain(entry.mailbox_id, entry.user, entry.uidvalidity)
    if (entry.user, entry.is_tree) != (chain.user, chain.uidvalidity == 0):
        return "a user other than its predecessor's"
    if entry.modseq <= chain.highestmodseq:
        return "a MODSEQ that was already given out"
    if entry.modseq > _modseq_max(chain, entry):
        return "a MODSEQ that skips others"
    if _forks_against_itself(tx, chain, entry):
        return "a predecessor that lacks an earlier entry of the same node"
    return _in_tree(tx, chain, entry) if entry.is_tree else _in_mailbox(tx, chain, entry)


def _modseq_max(chain: Chain, entry: Entry) -> int:
    following = chain.highestmodseq + 1
    if entry.is_merge:
        return chain.highestmodseq + MODSEQ_STEP_MAX
    return max(following, RAISED_MODSEQ_MAX) if entry.skips_modseqs else following


def _forks_against_itself(tx: Transaction, chain: Chain, entry: Entry) -> bool:
    """Return True if the entry claims to have seen an earlier entry of its origin that stands on another branch.

    A merge would then take the mail of that earlier entry for expunged.
    """
    if not tx.keeps_waiting(chain.id):
        return False
    context = {**chain.context, **entry.joined_context}
    query = "SELECT 1 FROM waiting WHERE chain = ? AND origin = ? AND seq > ? AND seq < ?"
    seen = context.get(entry.dot.origin, 0)
    return tx.connection.execute(query, (chain.id, entry.dot.origin, seen, entry.dot.seq)).fetchone() is not None


def _in_mailbox(tx: Transaction, chain: Chain, entry: Entry) -> str | None:
    uidnext = chain.uidnext
    added, removed = set[bytes](), set[bytes]()
    for change in entry.changes:
        match change:
            case MailAdd():
                if change.uid != uidnext:
                    return "a UID other than UIDNEXT"
                if change.guid in added or (change.guid not in removed and _holds(tx, chain.id, change.guid)):
                    return "a GUID that the mailbox already holds"
                uidnext = change.uid + 1
                added.add(change.guid)
            case MailDel(uids) | FlagAdd(uids, _) | FlagDel(uids, _):
                if _count(tx, chain.id, uids) != len(uids):
                    return "a UID that does not exist"
                if isinstance(change, MailDel) and len(entry.changes) > 1:
                    removed |= _guids_at(tx, chain.id, uids)
            case Raise():
                wrong = why_not_raise(change.uidnext, uidnext)
                if wrong:
                    return wrong
                uidnext = change.uidnext
            case Merge():
                row_at = partial(_row_at, tx, chain.id) if has_rows(tx, chain.id) else _nothing_at
                wrong = why_not_merge(change, chain, row_at)
                if wrong:
                    return wrong
    return None


def has_rows(tx: Transaction, mailbox_id: bytes) -> bool:
    """Return True if the mailbox has any message: if not, looking for each of a merge's messages is needless."""
    query = "SELECT 1 FROM by_uid WHERE mailbox = ? LIMIT 1"
    return tx.connection.execute(query, (mailbox_id,)).fetchone() is not None


def _nothing_at(_uid: int) -> None:
    return None


def _row_at(tx: Transaction, mailbox_id: bytes, uid: int) -> Row | None:
    return next(queries.mailbox_rows(tx.connection, mailbox_id, UidSet.of([uid])), None)


def _holds(tx: Transaction, mailbox_id: bytes, guid: bytes) -> bool:
    query = "SELECT 1 FROM by_guid WHERE guid = ? AND mailbox = ?"
    return tx.connection.execute(query, (guid, mailbox_id)).fetchone() is not None


def _guids_at(tx: Transaction, mailbox_id: bytes, uids: UidSet) -> set[bytes]:
    return {row.guid for row in queries.mailbox_rows(tx.connection, mailbox_id, uids)}


def _count(tx: Transaction, mailbox_id: bytes, uids: UidSet) -> int:
    query = "SELECT COUNT(*) FROM by_uid WHERE mailbox = ? AND uid BETWEEN ? AND ?"
    return sum(tx.connection.execute(query, (mailbox_id, low, high)).fetchone()[0] for low, high in uids.ranges)


def _in_tree(tx: Transaction, chain: Chain, entry: Entry) -> str | None:
    if entry.is_merge:
        tree = queries.tree_state(tx.connection, entry.user, chain)
    else:
        tree = queries.tree_part(tx.connection, entry.user, chain, entry.changes)
    known = set(tree.folders)
    try:
        tree.apply(entry)
    except ContradictionError as error:
        return str(error)
    if any(_is_of_another(tx, mailbox_id, entry.user) for mailbox_id in tree.folders.keys() - known):
        return "a mailbox id that belongs to another user's folder"
    return None


def _is_of_another(tx: Transaction, mailbox_id: bytes, user: str) -> bool:
    """Return True if the id is that of a folder in a tree, or of another user's mailbox; a tree may come after it."""
    query = "SELECT 1 FROM folder WHERE mailbox_id = ?"
    if tx.connection.execute(query, (mailbox_id,)).fetchone() is not None:
        return True
    mailbox = tx.chain(mailbox_id)
    return mailbox is not None and mailbox.user != user
