"""The expected tables of an inventory, which `store.db.queries` reads row by row."""

from __future__ import annotations

import sqlite3

from replicator.store.db import queries
from replicator.store.db.chain import Chain
from resync.entry import AnnotationState, FolderState, SubscriptionState
from resync.row import Row
from tests.inventory.reading_back import Rows


def tables(connection: sqlite3.Connection) -> dict[str, Rows]:
    heads = list(queries.chains_of(connection, None))
    trees = [queries.tree_rows(connection, user) for user in queries.users(connection)]
    named = [row for tree in trees for row in tree]
    folders = sorted((row for row in named if isinstance(row, FolderState)), key=lambda folder: folder.mailbox_id)
    subscriptions = sorted(row for row in named if isinstance(row, SubscriptionState))
    annotations = sorted((row for row in named if isinstance(row, AnnotationState)), key=lambda one: one[:3])
    messages = [(head.id, row) for head in heads for row in queries.mailbox_rows(connection, head.id)]
    guids = sorted((row.guid, mailbox, row) for mailbox, row in messages)
    return {
        "heads": [_head(head) for head in heads],
        "messages": [_message(mailbox, row) for mailbox, row in messages],
        "guids": [
            {"guid": guid, "mailbox": mailbox, "uid": row.uid, **_placement(row)} for guid, mailbox, row in guids
        ],
        "folders": [{("mailbox" if key == "mailbox_id" else key): value for key, value in one._asdict().items()}
                    for one in folders],
        "subscriptions": [one._asdict() for one in subscriptions],
        "annotations": [{("folder" if key == "mailbox_id" else key): value for key, value in one._asdict().items()}
                        for one in annotations],
    }  # fmt: skip


def _head(head: Chain) -> dict[str, object]:
    origin, seq = head.head or (None, None)
    return {
        "mailbox": head.id, "user": head.user, "uidvalidity": head.uidvalidity, "risen": head.risen,
        "uidnext": head.uidnext, "highestmodseq": head.highestmodseq, "head_origin": origin, "head_seq": seq,
        "context": sorted(head.context.items()), "messages": head.messages, "digest": head.digest(),
        "master": "dc7" if head.uidvalidity else None,
    }  # fmt: skip


def _placement(row: Row) -> dict[str, object]:
    return {"origin": row.dot.origin, "seq": row.dot.seq, "change": row.change}


def _message(mailbox: bytes, row: Row) -> dict[str, object]:
    flags = [
        {"flag": flag, "time": time, "sid": sid, "set": is_set}
        for flag, (time, sid, is_set) in sorted(row.flags.items())
    ]
    return {
        "mailbox": mailbox, "uid": row.uid, **_placement(row), "guid": row.guid, "claim_origin": row.claim.origin,
        "claim_seq": row.claim.seq, "modseq": row.modseq, "flags": flags, "received_ms": row.received_ms,
        "size_bytes": row.size_bytes, "content_hash": row.content_hash,
        "also": [{"origin": dot.origin, "seq": dot.seq, "change": change} for dot, change in row.also],
        "saved_ms": row.saved_ms,
    }  # fmt: skip
