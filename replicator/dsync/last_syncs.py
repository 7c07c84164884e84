"""Memory of the last sync of each mailbox with each master."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from protocol.values import UidSet

SYNCED_MAX = 100_000
"""Mailboxes whose last sync is remembered: 30 MB."""

DETAILS_MAX = 300_000
"""Changes of flags, and ranges of expunged UIDs, that are remembered of these syncs: 50 MB."""


NO_UIDS = UidSet.of(())


@dataclass(frozen=True, slots=True)
class LastSync:
    """The last sync of a mailbox with a peer: the mailbox's MODSEQ and the time as it began, and what it did.

    `folder`: the id of the node's folder; where branches join, another one may get the GUID. `common_uid`: the peer
    knows the mails up to this one. `own_changes`: flags that the sync itself has set (True) and cleared, by UID, and
    annotations by 0. `uids`: those that the peer has been told, up to the common one. `expunged`: UIDs that were known
    to be expunged as it began; a peer that remembers this sync has the `common_modseq`, and has been told of them; with
    0, it has not.
    """

    modseq: int
    at_ms: int
    folder: bytes = b""
    common_uid: int = 0
    common_modseq: int = 0
    own_changes: frozenset[tuple[int, str, bool]] = frozenset()
    expunged: UidSet = NO_UIDS
    uids: UidSet = NO_UIDS

    @property
    def details(self) -> int:
        """Number of things that are remembered of it besides."""
        return len(self.own_changes) + len(self.expunged.ranges) + len(self.uids.ranges)


@dataclass(slots=True)
class LastSyncs:
    """The last syncs of mailboxes, shared by all connections.

    Changes of flags before them are known to the peer, and those by them are its own. Kept in memory: after a restart,
    the next sync of a mailbox takes changes of flags from MODSEQs alone.
    """

    _known: OrderedDict[tuple[str, bytes], LastSync] = field(default_factory=OrderedDict)
    _details: int = 0

    def note(self, peer: str, mailbox_id: bytes, sync: LastSync) -> None:
        """Note a sync. Those that are longest ago are forgotten."""
        before = self._known.pop((peer, mailbox_id), None)
        self._details += sync.details - (0 if before is None else before.details)
        self._known[peer, mailbox_id] = sync
        while len(self._known) > SYNCED_MAX or self._details > DETAILS_MAX:
            self._details -= self._known.popitem(last=False)[1].details

    def find(self, peer: str, mailbox_id: bytes, folder: bytes) -> LastSync | None:
        """Return the last sync, if it is known, and was one of this folder."""
        found = self._known.get((peer, mailbox_id))
        return found if found is not None and found.folder == folder else None
