"""Commands that number, offer and change mailboxes: requests without, log entries with an `EntryHeader`."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.values import Dot, UidSet


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """A change's place in history. Only the node that numbered the change sends it.

    `changes` is the number of changes in the entry and `change` is this one's index, from 0: an entry is complete, and
    may be applied, when all have arrived. `modseq` is the MODSEQ that the entry gives. A first entry has no
    predecessor, a MERGE has two. `digest` is that of the whole entry, 16 bytes, in the header of each of its changes
    (`resync.entry.Entry.digest`): a receiver whose copy has another digest discards the whole entry. `histories` are
    those of the predecessors, 16 bytes each; None if an earlier version has numbered the entry. `dated`: the messages
    that it adds have a save date, the time of its stamp; False if an earlier version has numbered it.
    """

    dot: Dot
    predecessors: tuple[Dot, ...]
    time: int  # of the stamp; its SID is the dot's
    modseq: int
    digest: bytes
    change: int = 0
    changes: int = 1
    histories: tuple[bytes, ...] | None = None
    dated: bool = False


@dataclass(frozen=True, slots=True)
class Mbox:
    """Give a mailbox its number on this connection in this direction, and describe the sender's state of it.

    As a request it compares: the receiver answers `Done` if its mailbox looks the same, else `Mismatch`. A user's
    folder tree is the mailbox with the empty name and UIDVALIDITY 0. `destination` is the node that is to compare.
    `texts`: before it compares, that node replaces bodies that are not the ones that count for their messages.
    `to_master`: the sender takes that node for the mailbox's master, which has to catch up with the head. It answers
    `Refused` if it is not the master as far as it knows, and asks the root.
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
    to_master: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """A message that travels whole, with its SHA-256: a receiver refuses octets that do not match it.

    The hash is the one that the message got when it came in from its client.
    """

    content_hash: bytes
    octets: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Parts:
    """A message that is assembled by its recipe from octets in the recipe and from parts, which `FetchPart` fetches.

    `content_hash` and `size` are of the whole message. The recipe is MessagePack (design section 6, "content").
    """

    content_hash: bytes
    size: int
    recipe: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Offer:
    """Ask the peer to fetch a message's parts and hold them for a while, since its entry follows.

    Answered by `Done` once the parts are held.

    While an entry waits for its parts, all later entries of its origin wait too.
    """

    message: Parts


@dataclass(frozen=True, slots=True)
class Save:
    """Add a message to one or more mailboxes. From a master, `uid` and `entry` are given and there is one mailbox.

    Answered by `Saved`. A retry with the same GUID gets the UID that the message already has. In a request, `uid` is
    the UID that the message has at another server: it gets this one, unless UIDNEXT is above it.
    """

    mailboxes: tuple[int, ...]
    received_ms: int
    guid: bytes
    flags: tuple[str, ...]
    message: Text | Parts = field(repr=False)
    uid: int | None = None
    entry: EntryHeader | None = None


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One of the messages of a `SaveAll`. `uid` as in a `Save` without an entry."""

    received_ms: int
    guid: bytes
    flags: tuple[str, ...]
    message: Text = field(repr=False)
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class SaveAll:
    """Ask the master to add small messages to a mailbox by one entry, in this order.

    Answered by `Saved`. In a retry, messages whose GUIDs the mailbox has get the UIDs that they already have.
    """

    mailbox: int
    messages: tuple[NewMessage, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Add the messages that `source` shows under `source_uids`, which must have these GUIDs: all or none, as in `Save`.

    The master takes date and flags from the source. From a master there is one message, and the entry is
    self-contained: it has no UIDs of the source, the GUID of the new placement (a fresh one if the destination already
    held the source's), and `content_hash` and `size`, so that a node can apply it without the source.

    `once`: a message that the destination already holds is not copied again; the answer has its UID there.
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

    `head`: the head at which the sender, if it is not the master, sees these UIDs; on another branch they may be other
    messages.
    """

    mailbox: int
    uids: UidSet
    head: Dot | None = None
    entry: EntryHeader | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """Change flags. Answered by `Stored`.

    `unchanged_since`: RFC 7162 section 3.1.3; messages changed after it are refused. `head`: as in `Expunge`.
    """

    mailbox: int
    uids: UidSet
    added: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged_since: int | None = None
    head: Dot | None = None
    entry: EntryHeader | None = None


@dataclass(frozen=True, slots=True)
class Renumber:
    """Give messages, each named by its UID and its GUID, these UIDs in their place, in one entry. Answered by `Saved`.

    A message that is gone is left out. A UID below UIDNEXT cannot be given: its message gets the next one.
    """

    mailbox: int
    uids: UidSet
    guids: tuple[bytes, ...]
    wanted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise UIDNEXT and HIGHESTMODSEQ to at least these numbers. Answered by `Done`.

    `modseq` is given in a request alone: an entry has its MODSEQ in its header.
    """

    mailbox: int
    uidnext: int
    modseq: int | None = None
    entry: EntryHeader | None = None


@dataclass(frozen=True, slots=True)
class Create:
    """Add a folder to the user's tree.

    `use`: in a request, the special uses with which the folder begins (RFC 6154 section 3), separated by spaces.
    """

    user: str
    name: str
    mailbox_id: bytes
    uidvalidity: int
    entry: EntryHeader | None = None
    use: str | None = None


@dataclass(frozen=True, slots=True)
class Rename:
    """Give the folder `mailbox_id` the name `name`."""

    user: str
    mailbox_id: bytes
    name: str
    entry: EntryHeader | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the folder `mailbox_id` from the user's tree."""

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
class Annotate:
    """Set or remove annotations of the folder `mailbox_id` or, if that is empty, of the account (RFC 5464).

    All change or none.     `values` is MessagePack (`resync.entry.pack_values`).
    """

    user: str
    mailbox_id: bytes
    values: bytes = field(repr=False)
    entry: EntryHeader | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """Absolute rows of everything that differs between two heads. `rows` is MessagePack."""

    mailbox: int
    entry: EntryHeader
    rows: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Remote:
    """An entry of many changes that lies in an object of the store that both nodes share (design section 6).

    `entry` is the header of change 0, with the digest that the object's entry must have.
    """

    mailbox: int
    entry: EntryHeader
    name: str
