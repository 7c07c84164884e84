r"""Every command and reply that nodes exchange, as typed values (design section 4).

A request travels with a tag and is answered by one reply with the same tag. A log entry travels as one command per
change; each of them has the `EntryHeader` that places it in its mailbox's history. Small entries may travel together,
as `Entries`. Such commands have no tag and get no reply, only an `Ack` later.

Shapes: a mailbox id and a GUID are 16 bytes, a content hash is 32 (SHA-256), times are milliseconds since the epoch,
sizes are bytes, flags are IMAP flags as text (`\Seen`, `$Forwarded`).
"""

from __future__ import annotations

from protocol.commands.catching_up import (
    Ack,
    Entries,
    FetchBodies,
    FetchCheckpoints,
    FetchGuid,
    FetchHash,
    FetchPart,
    FetchUid,
    Log,
    Ranges,
    Rows,
    Settled,
    SyncEnd,
    SyncMailbox,
    SyncNode,
)
from protocol.commands.links import Hello, LinkAdvert, Links, Ping
from protocol.commands.mailboxes import (
    Annotate,
    Copy,
    Create,
    Delete,
    EntryHeader,
    Expunge,
    Mbox,
    Merge,
    NewMessage,
    Offer,
    Parts,
    Raise,
    Remote,
    Rename,
    Renumber,
    Save,
    SaveAll,
    Store,
    Subscribe,
    Text,
)
from protocol.commands.masters import Dropped, MasterMove, Root, Who
from protocol.commands.replies import (
    Content,
    Done,
    Master,
    Mismatch,
    Moved,
    RefusalCode,
    Refused,
    Saved,
    Snapshot,
    Stored,
)

__all__ = [
    "PROTOCOL_VERSION",
    "Ack",
    "Annotate",
    "Command",
    "Content",
    "Copy",
    "Create",
    "Delete",
    "Done",
    "Dropped",
    "Entries",
    "EntryCommand",
    "EntryHeader",
    "Expunge",
    "FetchBodies",
    "FetchCheckpoints",
    "FetchGuid",
    "FetchHash",
    "FetchPart",
    "FetchUid",
    "Hello",
    "LinkAdvert",
    "Links",
    "Log",
    "Master",
    "MasterMove",
    "Mbox",
    "Merge",
    "Mismatch",
    "Moved",
    "NewMessage",
    "Offer",
    "Parts",
    "Ping",
    "Raise",
    "Ranges",
    "RefusalCode",
    "Refused",
    "Remote",
    "Rename",
    "Renumber",
    "Reply",
    "Root",
    "Rows",
    "Save",
    "SaveAll",
    "Saved",
    "Settled",
    "Snapshot",
    "Store",
    "Stored",
    "Subscribe",
    "SyncEnd",
    "SyncMailbox",
    "SyncNode",
    "Text",
    "Who",
]

PROTOCOL_VERSION = 7

EntryCommand = Save | Copy | Expunge | Store | Raise | Create | Rename | Delete | Subscribe | Annotate | Merge
"""Commands that may carry an entry header."""

Command = (
    Hello | Ping | Links | Root | Dropped | Who | MasterMove | Mbox | Offer | SaveAll | Renumber | EntryCommand | Remote
    | SyncNode | SyncMailbox | Ranges | Rows | SyncEnd | FetchUid | FetchGuid | FetchHash | FetchBodies
    | FetchCheckpoints | FetchPart | Log | Entries | Ack | Settled
)  # fmt: skip

Reply = Hello | Done | Master | Moved | Saved | Stored | Mismatch | Snapshot | Content | Parts | Refused
