"""Arguments and results of a mail store's methods: folders, and messages that are stored."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.values import UidSet
from replicator.mail.mailstore.bodies import ReceivedBody
from replicator.users import QuotaLimits


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of a user. `uidvalidity` is as clients see it; `own`: that of the tree, if clients see another one."""

    user: str
    name: str
    mailbox_id: bytes
    uidvalidity: int
    own: int | None = None


@dataclass(frozen=True, slots=True)
class FolderStatus:
    """Counters of a folder (RFC 3501 section 6.3.10, RFC 8438)."""

    folder: Folder
    messages: int
    unseen: int
    uidnext: int
    highestmodseq: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Quota:
    """Contents of all folders of a user, as this node shows them, and the most that they may hold (RFC 9208)."""

    storage_bytes: int
    messages: int
    limits: QuotaLimits


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be stored. If `received_ms` is None, it is received now.

    `uid`: the UID that it has at another server; it gets this one, unless UIDNEXT is above it. `guid` is its EMAILID
    (RFC 8474); with None, one follows from the UID and the body, or, without a UID, it gets a new one. A message whose
    GUID the folder holds is not stored again.
    """

    body: bytes | ReceivedBody = field(repr=False)
    flags: frozenset[str] = frozenset()
    received_ms: int | None = None
    uid: int | None = None
    guid: bytes | None = None


@dataclass(frozen=True, slots=True)
class SavedMessage:
    """UIDVALIDITY and UID of a stored message (RFC 4315 APPENDUID).

    If not `shown`, this node does not show the message yet and may show another one under that UID: the client must not
    be told the UID. `entry`: the name of the entry that has brought it, by which the logs of all nodes call it.
    """

    uidvalidity: int
    uid: int
    shown: bool = True
    entry: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class CopiedMessages:
    """Pairs (source UID as the caller named it, destination UID), ascending by source (RFC 4315 COPYUID).

    `shown` as in `SavedMessage`.
    """

    uidvalidity: int
    uids: tuple[tuple[int, int], ...]
    shown: bool = True


@dataclass(frozen=True, slots=True)
class StoreResult:
    """UIDs that UNCHANGEDSINCE protected from the change, or that were gone by then (RFC 7162 section 3.1.3)."""

    refused: UidSet
