"""Content, and how a node gets what it lacks (design section 7)."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.values import Dot


@dataclass(frozen=True, slots=True)
class SyncNode:
    """Compare all mailboxes and folder trees. Answered by `Snapshot`, whose context is that of the log."""

    destination: str | None = None


@dataclass(frozen=True, slots=True)
class SyncMailbox:
    """Compare one mailbox or folder tree, by its number. Answered by `Snapshot`.

    `anew`: hashes are computed from the rows; what lies beside them is not believed.
    """

    mailbox: int
    destination: str | None = None
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Ranges:
    """What the snapshot has in these ranges of keys (`resync.ranges`). Answered by `Content`, in MessagePack."""

    snapshot: int
    prefixes: tuple[str, ...]
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """The snapshot's rows with these keys, which are MessagePack. Answered by `Content`, in MessagePack."""

    snapshot: int
    keys: bytes = field(repr=False)
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class SyncEnd:
    """The snapshot is of no more use. Answered by `Done`."""

    snapshot: int
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class FetchUid:
    """The text of the message that a mailbox shows under this UID. Answered by `Content`."""

    mailbox: int
    uid: int


@dataclass(frozen=True, slots=True)
class FetchGuid:
    """The text of the message with this GUID. Answered by `Content`."""

    guid: bytes


@dataclass(frozen=True, slots=True)
class FetchHash:
    """Content by its hash. Answered by `Content`."""

    content_hash: bytes


@dataclass(frozen=True, slots=True)
class FetchPart:
    """A chunk of a part of messages, by the part's hash, from this octet on. Answered by `Content`.

    How large chunks are is said by whoever made the recipe (`Parts`): all are but the last, which may be smaller.
    """

    content_hash: bytes
    start: int


@dataclass(frozen=True, slots=True)
class Log:
    """Send what `context` lacks from here on. Answered by `Done`, then entries; or by `Refused` TOO-OLD.

    `inline`: whole, on this connection; an object that `Remote` has named could not be read.
    """

    context: tuple[Dot, ...]
    inline: bool = False


@dataclass(frozen=True, slots=True)
class Ack:
    """All of `origin` up to `seq` is on the disk of `sid`, or of the sender. No reply."""

    origin: str
    seq: int
    sid: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """All entries within `context` are in the log of `sid`, and its chains show them; flooded (design section 7).

    The highest `sequence` of a SID is the valid one. No reply.
    """

    sid: str
    sequence: int
    context: tuple[Dot, ...]
