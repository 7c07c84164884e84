"""Read queries on the database, for the writer's thread and for the readers beside it.

`chain_queries`, `folder_queries`, `message_queries`, `log_queries` and `change_queries` have them by what is asked for.
Other modules use them from here.
"""

from __future__ import annotations

import sqlite3
from typing import TypeAlias

from replicator.store.db.queries.chain_queries import (
    all_mailbox_keys,
    chain_keys,
    chain_or_empty,
    chains_of,
    empty_chain,
    key_of,
    mailbox_keys,
    users,
    users_after,
)
from replicator.store.db.queries.change_queries import annotation_changes, mailbox_changes, tree_changes
from replicator.store.db.queries.folder_queries import (
    OF_CLIENTS,
    OWN_UIDVALIDITY,
    SHOWN_UIDVALIDITY,
    FolderRecord,
    annotated,
    annotations_of,
    count_annotations,
    folder,
    folder_name,
    folders,
    folders_in_sight,
    had_annotations,
    is_subscribed,
    ordered_folders,
    subscriptions,
    tree_rows,
    tree_state,
    uidvalidities,
    uidvalidity,
    watched_folder,
    watched_folders,
)
from replicator.store.db.queries.log_queries import (
    Lag,
    entry_at,
    entry_of,
    lag,
    log_after,
    log_collected,
    log_context,
    log_counts,
    log_end,
    log_settled,
    log_start,
    log_waiting,
    stamp_time,
)
from replicator.store.db.queries.mailbox_key import MailboxKey
from replicator.store.db.queries.message_queries import (
    content_hash_of_guid,
    content_hash_of_uid,
    fingerprints,
    mailbox_rows,
    messages,
    row_of_guid,
    rows,
    shows_whole,
    uid_of_guid,
    uids_between,
    view,
)
from replicator.store.db.queries.moment import at_one_moment

Connection: TypeAlias = sqlite3.Connection
"""Source of a query. Code above `store/` only hands it from one query to the next, to read both from one snapshot."""

__all__ = [
    "OF_CLIENTS",
    "OWN_UIDVALIDITY",
    "SHOWN_UIDVALIDITY",
    "Connection",
    "FolderRecord",
    "Lag",
    "MailboxKey",
    "all_mailbox_keys",
    "annotated",
    "annotation_changes",
    "annotations_of",
    "at_one_moment",
    "chain_keys",
    "chain_or_empty",
    "chains_of",
    "content_hash_of_guid",
    "content_hash_of_uid",
    "count_annotations",
    "empty_chain",
    "entry_at",
    "entry_of",
    "fingerprints",
    "folder",
    "folder_name",
    "folders",
    "folders_in_sight",
    "had_annotations",
    "is_subscribed",
    "key_of",
    "lag",
    "log_after",
    "log_collected",
    "log_context",
    "log_counts",
    "log_end",
    "log_settled",
    "log_start",
    "log_waiting",
    "mailbox_changes",
    "mailbox_keys",
    "mailbox_rows",
    "messages",
    "ordered_folders",
    "row_of_guid",
    "rows",
    "shows_whole",
    "stamp_time",
    "subscriptions",
    "tree_changes",
    "tree_rows",
    "tree_state",
    "uid_of_guid",
    "uids_between",
    "uidvalidities",
    "uidvalidity",
    "users",
    "users_after",
    "view",
    "watched_folder",
    "watched_folders",
]
