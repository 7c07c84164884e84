"""Clients' changes as requests that run at this node or are sent to another one.

A request can be sent as a command, if another node is the master, or run as a job of the writer, if this node is: both
give the same reply. Nothing here waits. `messages` and `folders` have the requests by what they change,
`from_commands` reads those of peers. All of replication imports requests from here.
"""

from __future__ import annotations

from replicator.replication.writes.requests.change_request import ChangeRequest, NotHereYetError, check_raises, dots_of
from replicator.replication.writes.requests.folders import (
    AnnotateRequest,
    CreateRequest,
    DeleteRequest,
    RenameRequest,
    SubscribeRequest,
)
from replicator.replication.writes.requests.from_commands import from_command, save_all_from, saves_from
from replicator.replication.writes.requests.messages import (
    SAVE_ALL_BYTES,
    SAVE_ALL_MAX,
    CopyRequest,
    ExpungeRequest,
    RaiseRequest,
    RenumberRequest,
    SaveAllRequest,
    SaveRequest,
    StoreRequest,
    parts_of,
    save_request,
    transfer_s,
)

__all__ = [
    "SAVE_ALL_BYTES",
    "SAVE_ALL_MAX",
    "AnnotateRequest",
    "ChangeRequest",
    "CopyRequest",
    "CreateRequest",
    "DeleteRequest",
    "ExpungeRequest",
    "NotHereYetError",
    "RaiseRequest",
    "RenameRequest",
    "RenumberRequest",
    "SaveAllRequest",
    "SaveRequest",
    "StoreRequest",
    "SubscribeRequest",
    "check_raises",
    "dots_of",
    "from_command",
    "parts_of",
    "save_all_from",
    "save_request",
    "saves_from",
    "transfer_s",
]
