"""Mailboxes, and all that changes them: requests without, log entries with an `EntryHeader`."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.values import Dot, UidSet


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """Where a change stands in history. Only the node that numbered the change sends it.

    `change` counts the entry's changes from 0 and `changes` is how many there are: an entry is complete, and may
    be applied, when all have arrived. `modseq` is the MODSEQ that the entry gives. A first entry has no
    predecessor, a MERGE has two. `digest` is that of the whole entry, 16 bytes, in the header of each of its changes
    (`resync.entry.Entry.digest`): whoever receives another entry than it says takes nothing of it.
    """

    dot: Dot
    predecessors: tuple[Dot, ...]
    time: int  # of the stamp; its SID is the dot's
    modseq: int
    digest: bytes
    change: int = 0
    changes: int = 1


@dataclass(frozen=True, slots=True)
class Mbox:
    """Gives a mailbox its number on this connection in this direction, and says what the sender's looks like.

    As a request it compares: answered by `Done` if the receiver's looks the same, else by `Mismatch`. A user's
    folder tree is the mailbox with the empty name and UIDVALIDITY 0. `destination` is the node that is to compare.
    `texts`: where its messages have other texts than count, it puts that right before.
    """

    number: int
    user: str
    name: str
    mailbox_id: bytes
    uidvalidity: int
    uidnext: int = 1
    messages: int = 0
    highestmodseq: int = 0
    head: Dot | None = None
    digest: bytes = b""
    destination: str | None = None
    texts: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """A message that travels whole, behind its SHA-256: whoever receives other octets refuses them.

    The hash is the one that the message got when it came in from its client.
    """

    content_hash: bytes
    octets: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Parts:
    """A message that is put together as its recipe says, of octets in it and of parts, each to be had by `FetchPart`.

    `content_hash` and `size` are of the whole message. The recipe is MessagePack (design section 6, "content").
    """

    content_hash: bytes
    size: int
    recipe: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Offer:
    """Fetch a message's parts, and hold them for a while: its entry follows. Answered by `Done` once they are held.

    While an entry waits for its parts, so does all that its origin has numbered after it.
    """

    message: Parts


@dataclass(frozen=True, slots=True)
class Save:
    """A message for one or more mailboxes. From a master, `uid` and `entry` are given and there is one mailbox.

    Answered by `Saved`. Tried again with the same GUID, it gives the UID that the message already has.
    """

    mailboxes: tuple[int, ...]
    received_ms: int
    guid: bytes
    flags: tuple[str, ...]
    message: Text | Parts = field(repr=False)
    uid: int | None = None
    entry: EntryHeader | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """As `Save`, of the messages that `source` shows under `source_uids`, which must have these GUIDs: all or none.

    The master takes date and flags from the source. From a master there is one message and the entry stands for
    itself: no UIDs of the source, the GUID of the new placement (another one if the destination already held the
    source's), and `content_hash` and `size`, so that nobody needs the source to apply it.

    `once`: a message that the destination holds is not copied again, and its UID there is the answer.
    """

    source: int
    destination: int
    source_uids: UidSet
    guids: tuple[bytes, ...]
    received_ms: int
    flags: tuple[str, ...]
    uid: int | None = None
    content_hash: bytes | None = None
    size: int | None = None
    entry: EntryHeader | None = None
    once: bool = False


@dataclass(frozen=True, slots=True)
class Expunge:
    """Remove these messages. Answered by `Stored`.

    `head`: where the sender, which is not the master, sees these UIDs; on another branch they may be other messages.
    """

    mailbox: int
    uids: UidSet
    head: Dot | None = None
    entry: EntryHeader | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """Change flags. Answered by `Stored`.

    `seen_modseq`: the highest MODSEQ of these messages at the sender, which is not the master.
    `unchanged_since`: RFC 7162 section 3.1.3; messages changed after it are refused. `head`: as in `Expunge`.
    """

    mailbox: int
    uids: UidSet
    added: tuple[str, ...]
    removed: tuple[str, ...]
    seen_modseq: int | None = None
    unchanged_since: int | None = None
    head: Dot | None = None
    entry: EntryHeader | None = None


@dataclass(frozen=True, slots=True)
class Create:
    """A folder in the user's tree."""

    user: str
    name: str
    mailbox_id: bytes
    uidvalidity: int
    entry: EntryHeader | None = None


@dataclass(frozen=True, slots=True)
class Rename:
    """Give the folder `mailbox_id` the name `name`."""

    user: str
    mailbox_id: bytes
    name: str
    entry: EntryHeader | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Take the folder `mailbox_id` out of the user's tree."""

    user: str
    mailbox_id: bytes
    entry: EntryHeader | None = None


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Set or clear a subscription; the folder need not exist (RFC 3501 section 6.3.6)."""

    user: str
    name: str
    subscribed: bool
    entry: EntryHeader | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """The absolute rows of all that differs between two heads. `rows` is MessagePack."""

    mailbox: int
    entry: EntryHeader
    rows: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Remote:
    """An entry of many changes, in an object of the store that both nodes share (design section 6).

    `entry` is the header, of change 0, with the digest of what must be found there.
    """

    mailbox: int
    entry: EntryHeader
    name: str
