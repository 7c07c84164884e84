"""Application of entries to the tables of folder trees; the part of `apply` that knows folders."""

from __future__ import annotations

from protocol.values import context_of
from replicator.mail.mailstore import INBOX
from replicator.store.db.chain import Chain
from replicator.store.db.transaction import Transaction
from resync import row as rows
from resync.entry import (
    AnnotationState,
    Change,
    Entry,
    FolderAnnotate,
    FolderCreate,
    FolderDelete,
    FolderRename,
    FolderState,
    FolderSubscribe,
    TreeMerge,
)
from resync.folder_tree import loses_annotations, renamed
from resync.node_annotations import KEPT_UIDVALIDITY, holders_in

FolderRow = tuple[bytes, str, str, int, int, int, str]
"""The columns of `folder`, in order."""


def apply_to_tree(tx: Transaction, chain: Chain, entry: Entry, change: Change) -> None:
    """Apply one change of a fitting entry to the tree."""
    stamp = entry.stamp
    match change:
        case FolderCreate(mailbox_id, name, uidvalidity):
            _write_folder(tx, chain, (mailbox_id, entry.user, name, uidvalidity, 0, *stamp))
        case FolderRename(mailbox_id, name):
            _write_folder(tx, chain, _columns(renamed(_state(_existing(tx, mailbox_id)), name, stamp)))
        case FolderDelete(mailbox_id):
            old = _existing(tx, mailbox_id)
            _write_folder(tx, chain, (*old[:4], 1, *stamp))
        case FolderSubscribe(name, subscribed):
            _write_subscription(tx, chain, (entry.user, name, int(subscribed), *stamp))
        case FolderAnnotate(mailbox_id, values):
            for name, value in values:
                _write_annotation(tx, chain, AnnotationState(entry.user, mailbox_id, name, value, *stamp))
        case TreeMerge(context, folders, subscriptions, annotations):
            for folder in folders:
                _write_folder(tx, chain, _columns(folder))
            for user, name, subscribed, time, sid in subscriptions:
                _write_subscription(tx, chain, (user, name, int(subscribed), time, sid))
            for annotation in annotations:
                _write_annotation(tx, chain, annotation)
            chain.context = context_of(context)
        case _:
            raise AssertionError(f"{type(change).__name__} does not change a tree")


def _columns(folder: FolderState) -> FolderRow:
    mailbox_id, user, name, uidvalidity, deleted, time, sid = folder
    return mailbox_id, user, name, uidvalidity, int(deleted), time, sid


def _state(row: FolderRow) -> FolderState:
    mailbox_id, user, name, uidvalidity, deleted, time, sid = row
    return FolderState(mailbox_id, user, name, uidvalidity, bool(deleted), time, sid)


def _folder(tx: Transaction, mailbox_id: bytes) -> FolderRow | None:
    row: FolderRow | None = tx.connection.execute(
        "SELECT mailbox_id, user, name, uidvalidity, deleted, time, sid FROM folder WHERE mailbox_id = ?", (mailbox_id,)
    ).fetchone()
    return row


def _existing(tx: Transaction, mailbox_id: bytes) -> FolderRow:
    row = _folder(tx, mailbox_id)
    assert row is not None, "the sequencer and `entry_validation` have looked"
    return row


def _write_folder(tx: Transaction, chain: Chain, after: FolderRow) -> None:
    before = _folder(tx, after[0])
    verb = "INSERT" if before is None or before[1] != after[1] else "REPLACE"  # never replace another user's folder
    tx.connection.execute(f"{verb} INTO folder VALUES (?,?,?,?,?,?,?)", after)
    _replace(chain, before, after)
    mailbox_id, uidvalidity, deleted = after[0], after[3], after[4]
    if loses_annotations(_state(after)):
        _remove_annotations(tx, chain, after[1], mailbox_id)
    mailbox = tx.chain(mailbox_id)
    is_gone = deleted and not (mailbox and mailbox.messages)
    is_no_inbox_now = before is not None and before[2] == INBOX != after[2]  # whoever has selected INBOX leaves it
    if before is not None and (before[3] != uidvalidity or is_gone or is_no_inbox_now):
        tx.commit.retired.append(mailbox_id)


def _write_subscription(tx: Transaction, chain: Chain, after: tuple[str, str, int, int, str]) -> None:
    before = tx.connection.execute(
        "SELECT user, name, subscribed, time, sid FROM subscription WHERE user = ? AND name = ?", after[:2]
    ).fetchone()
    tx.connection.execute("REPLACE INTO subscription VALUES (?,?,?,?,?)", after)
    _replace(chain, before, after)


def _write_annotation(tx: Transaction, chain: Chain, after: AnnotationState) -> None:
    before = tx.connection.execute(
        "SELECT user, mailbox_id, name, value, time, sid FROM annotation"
        " WHERE user = ? AND mailbox_id = ? AND name = ?",
        after[:3],
    ).fetchone()
    tx.connection.execute("REPLACE INTO annotation VALUES (?,?,?,?,?,?)", after)
    _replace(chain, before, after)
    for value in (after.value, None if before is None else before[3]):
        tx.commit.retired += holders_in(after.mailbox_id, after.name, value)


def _remove_annotations(tx: Transaction, chain: Chain, user: str, mailbox_id: bytes) -> None:
    gone = tx.connection.execute(
        "DELETE FROM annotation WHERE user = ? AND mailbox_id = ? RETURNING user, mailbox_id, name, value, time, sid",
        (user, mailbox_id),
    ).fetchall()
    chain.fingerprint = rows.remove(chain.fingerprint, *map(rows.fingerprint, gone))
    if any(name == KEPT_UIDVALIDITY for _, _, name, *_ in gone):
        tx.commit.retired.append(mailbox_id)  # it is still visible if it has mail that no client has expunged


def _replace(chain: Chain, before: tuple[object, ...] | None, after: tuple[object, ...]) -> None:
    if before is not None:
        chain.fingerprint = rows.remove(chain.fingerprint, rows.fingerprint(before))
    chain.fingerprint = rows.add(chain.fingerprint, rows.fingerprint(after))
