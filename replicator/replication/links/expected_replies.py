"""The replies that requests to a peer have: how long they may take, and which of them are large."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.commands import (
    Command,
    FetchBodies,
    FetchCheckpoints,
    FetchGuid,
    FetchHash,
    FetchPart,
    FetchUid,
    Offer,
    Ranges,
    Rows,
    Save,
    SyncMailbox,
    SyncNode,
)
from replicator.replication import timing

_LARGE = (FetchHash, FetchBodies, FetchCheckpoints, FetchGuid, FetchUid, FetchPart, Ranges, Rows)
_PATIENCE_S: Mapping[type, float] = {
    **dict.fromkeys((*_LARGE, SyncNode, SyncMailbox), timing.LINK_REPLY_LARGE_S),
    **dict.fromkeys((Save, Offer), timing.LINK_REPLY_LONG_S),
}


def patience_s(request: Command) -> float:
    """Return the time in seconds after which the reply is overdue."""
    is_anew = isinstance(request, SyncMailbox) and request.anew
    return timing.LINK_REPLY_LONG_S if is_anew else _PATIENCE_S.get(type(request), timing.LINK_REPLY_S)


def has_large_reply(request: Command) -> bool:
    """Return True if the reply may be large, so that only few are made at once."""
    return isinstance(request, _LARGE)
