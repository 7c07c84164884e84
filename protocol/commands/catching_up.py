"""Commands that fetch content, and those by which a node catches up (design section 7)."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.values import Dot


@dataclass(frozen=True, slots=True)
class SyncNode:
    """Start a comparison of all mailboxes and folder trees.

    Answered by `Snapshot`, whose context is that of the log.
    """

    destination: str | None = None


@dataclass(frozen=True, slots=True)
class SyncMailbox:
    """Start a comparison of one mailbox or folder tree, by its number. Answered by `Snapshot`.

    `anew`: compute hashes from the rows instead of trusting the stored ones.
    """

    mailbox: int
    destination: str | None = None
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ask for the snapshot's contents in these ranges of keys (`resync.ranges`).

    Answered by `Content`, in MessagePack.
    """

    snapshot: int
    prefixes: tuple[str, ...]
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Ask for the snapshot's rows with these keys, which are MessagePack. Answered by `Content`, in MessagePack."""

    snapshot: int
    keys: bytes = field(repr=False)
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class SyncEnd:
    """Release the snapshot. Answered by `Done`."""

    snapshot: int
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class FetchUid:
    """Fetch the body of the message that a mailbox shows under this UID. Answered by `Content`."""

    mailbox: int
    uid: int


@dataclass(frozen=True, slots=True)
class FetchGuid:
    """Fetch the body of the message with this GUID. Answered by `Content`."""

    guid: bytes


@dataclass(frozen=True, slots=True)
class FetchHash:
    """Fetch content by its hash. Answered by `Content`."""

    content_hash: bytes


@dataclass(frozen=True, slots=True)
class FetchBodies:
    """Fetch small bodies by their hashes, which follow each other. Answered by `Content`, in MessagePack."""

    hashes: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class FetchCheckpoints:
    """Fetch small checkpoints of mailboxes and trees, by their ids, which follow each other.

    Answered by `Content`, in MessagePack.
    """

    chain_ids: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class FetchPart:
    """Fetch a chunk of a part of messages, by the part's hash, from this octet on. Answered by `Content`.

    The author of the recipe (`Parts`) sets the size of the chunks: all have it but the last, which may be smaller.
    """

    content_hash: bytes
    start: int


@dataclass(frozen=True, slots=True)
class Log:
    """Ask the peer to send the entries that `context` lacks, from here on.

    Answered by `Done` and then entries, or by `Refused` TOO-OLD.

    `inline`: send all of them on this connection, because an object that a `Remote` named could not be read.
    """

    context: tuple[Dot, ...]
    inline: bool = False


@dataclass(frozen=True, slots=True)
class Entries:
    """Consecutive small entries of the log with their bodies, in MessagePack. No reply, only an `Ack` later."""

    packed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ack:
    """All entries of `origin` up to `seq` are on the disk of `sid`, or of the sender. No reply."""

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
