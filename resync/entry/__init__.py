"""Log entries, of which a mailbox's history consists (design sections 2 and 6).

An entry is an ordered batch of changes to one mailbox, or to one user's folder tree, which is a chain of its own under
an id that follows from the user's name. Entries name messages by UID: an entry applies only on its predecessor, and
there a UID names one message.

Shapes: ids and GUIDs are 16 bytes, content hashes 32, times milliseconds since the epoch, sizes bytes.

`changes` has what an entry can change, `packing` turns that into bytes and back. All code imports them from here.
"""

from __future__ import annotations

from resync.entry.changes import (
    NOWHERE,
    AnnotationState,
    Change,
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
    Merge,
    Raise,
    SubscriptionState,
    TreeMerge,
    TreeRow,
)
from resync.entry.entry import DIGEST_BYTES, ID_BYTES, Entry, anchor, tree_id
from resync.entry.packing import (
    annotation_from,
    checked,
    pack_change,
    pack_values,
    placements_from,
    row_from,
    unpack_change,
    unpack_values,
)

__all__ = [
    "DIGEST_BYTES",
    "ID_BYTES",
    "NOWHERE",
    "AnnotationState",
    "Change",
    "Entry",
    "FlagAdd",
    "FlagDel",
    "FolderAnnotate",
    "FolderCreate",
    "FolderDelete",
    "FolderRename",
    "FolderState",
    "FolderSubscribe",
    "MailAdd",
    "MailDel",
    "Merge",
    "Raise",
    "SubscriptionState",
    "TreeMerge",
    "TreeRow",
    "anchor",
    "annotation_from",
    "checked",
    "pack_change",
    "pack_values",
    "placements_from",
    "row_from",
    "tree_id",
    "unpack_change",
    "unpack_values",
]
