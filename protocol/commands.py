r"""Every command and reply that nodes exchange, as typed values (design section 4).

A request travels with a tag and is answered by one reply with the same tag. A log entry travels as one command
for each of its changes, every one with the `EntryHeader` that places it in its mailbox's history; such commands
carry no tag and get no reply but, later, an `Ack`.

Shapes: a mailbox id and a GUID are 16 bytes, a content hash is 32 (SHA-256), times are milliseconds since the
epoch, sizes are bytes, flags are IMAP flags as text (`\Seen`, `$Forwarded`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.values import Dot, UidSet

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """Where a change stands in history. Only the node that numbered the change sends it.

    `change` counts the entry's changes from 0 and `changes` is how many there are: an entry is complete, and may
    be applied, when all have arrived. `modseq` is the MODSEQ that the entry gives. A first entry has no
    predecessor, a MERGE has two.
    """

    dot: Dot
    predecessors: tuple[Dot, ...]
    time: int  # of the stamp; its SID is the dot's
    modseq: int
    change: int = 0
    changes: int = 1


# ---- links -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """First command of either side. Refused: wrong cluster, same SID, other version, clocks over 5 minutes apart."""

    version: int
    sid: str
    origin: str
    cluster: str
    capabilities: tuple[str, ...]
    clock_ms: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Heartbeat; its `Done` proves that the link lives and measures it."""


@dataclass(frozen=True, slots=True)
class LinkAdvert:
    """What one node says of itself and its links. The highest `sequence` of a SID is the valid one."""

    sid: str
    priority: int
    sequence: int
    neighbours: tuple[tuple[str, int], ...]  # (SID, round trip in microseconds), those that are up


@dataclass(frozen=True, slots=True)
class Links:
    """Link-state advertisements, flooded (design section 5). No reply."""

    adverts: tuple[LinkAdvert, ...]


# ---- masters ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Root:
    """A new term begins under `root`: forget cached masters and answer with `Dropped`."""

    term: int
    root: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """`sid` masters nothing from before `term`; `context` is what it has."""

    term: int
    sid: str
    context: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Who:
    """Who masters `scope` in this term? If nobody does, `candidate` from now on. Answered by `Master`.

    `former` hands it over: if that node masters it as far as the root knows, `candidate` does from now on.
    """

    term: int
    scope: str
    candidate: str
    former: str | None = None


@dataclass(frozen=True, slots=True)
class MasterMove:
    """Let `destination` master the mailbox. Answered by `Moved`, or by `Refused` if its master is using it.

    `now`: an operator wants it, whoever uses it.
    """

    mailbox: int
    term: int
    destination: str
    now: bool = False


# ---- mailboxes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mbox:
    """Gives a mailbox its number on this connection in this direction, and says what the sender's looks like.

    As a request it compares: answered by `Done` if the receiver's looks the same, else by `Mismatch`. A user's
    folder tree is the mailbox with the empty name and UIDVALIDITY 0. `destination` is the node that is to compare.
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


@dataclass(frozen=True, slots=True)
class Save:
    """A message for one or more mailboxes. From a master, `uid` and `entry` are given and there is one mailbox.

    Answered by `Saved`. Tried again with the same GUID, it gives the UID that the message already has.
    """

    mailboxes: tuple[int, ...]
    received_ms: int
    guid: bytes
    flags: tuple[str, ...]
    message: bytes = field(repr=False)
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


# ---- content and catching up -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SyncNode:
    """Compare all mailboxes and folder trees. Answered by `Snapshot`, whose context is that of the log."""

    destination: str | None = None


@dataclass(frozen=True, slots=True)
class SyncMailbox:
    """Compare one mailbox or folder tree, by its number. Answered by `Snapshot`."""

    mailbox: int
    destination: str | None = None


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
class Log:
    """Send what `context` lacks from here on. Answered by `Done`, then entries; or by `Refused` TOO-OLD."""

    context: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """All of `origin` up to `seq` is on the disk of `sid`, or of the sender. No reply."""

    origin: str
    seq: int
    sid: str | None = None


# ---- replies ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """Done; `dot` names the entry that did it, if one did."""

    dot: Dot | None = None


@dataclass(frozen=True, slots=True)
class Master:
    """The scope's master; `covering` is the wider scope, if it masters it as part of that one."""

    sid: str
    covering: str | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """Handed over, at this head of the mailbox. `scope` is the mailbox's, or a wider one that covers it."""

    scope: str
    head: Dot | None


@dataclass(frozen=True, slots=True)
class Saved:
    """One UID and entry for each mailbox of the request, in its order; `master` if it is not the one asked."""

    uids: tuple[int, ...]
    dots: tuple[Dot, ...]
    master: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """`refused`: those on which nothing was done. `dot`: the entry, or the head if nothing changed; None: no entries.

    UNCHANGEDSINCE kept them from changing, or they are no messages any more: expunged, or under another UID by a merge.
    """

    refused: UidSet
    modseq: int
    dot: Dot | None = None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The receiver's mailbox differs in the named `fields`; its own head and context follow."""

    fields: tuple[str, ...]
    head: Dot | None
    context: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a node shows of a mailbox at this moment, or of all of them; `number` names it for `Ranges` and `Rows`.

    `size` and `total`: how many rows there are, and the sum of their 128-bit hashes.
    """

    number: int
    uidnext: int
    modseq: int
    risen: int
    head: Dot | None
    context: tuple[Dot, ...]
    digest: bytes
    size: int
    total: bytes


@dataclass(frozen=True, slots=True)
class Content:
    """Message text, or what `Ranges` and `Rows` ask for."""

    message: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The command was understood and is not done. `code` is one of `RefusalCode`; `text` is for people."""

    code: str
    text: str


class RefusalCode:
    """The codes of `Refused`."""

    CLUSTER = "CLUSTER"
    SAME_SID = "SAME-SID"
    VERSION = "VERSION"
    UNKNOWN_SID = "UNKNOWN-SID"
    POLICY = "POLICY"
    CLOCK = "CLOCK"
    TOO_OLD = "TOO-OLD"
    NOT_FOUND = "NOT-FOUND"
    EXISTS = "EXISTS"
    INVALID = "INVALID"
    UNAVAILABLE = "UNAVAILABLE"
    DURABILITY = "DURABILITY"
    DISK_FULL = "DISK-FULL"
    LIMIT = "LIMIT"
    NO_CONTENT = "NO-CONTENT"
    UNSUPPORTED = "UNSUPPORTED"
    NOT_MASTER = "NOT-MASTER"


EntryCommand = Save | Copy | Expunge | Store | Create | Rename | Delete | Subscribe | Merge
"""Commands that may carry an entry header."""

Command = (
    Hello | Ping | Links | Root | Dropped | Who | MasterMove | Mbox | EntryCommand
    | SyncNode | SyncMailbox | Ranges | Rows | SyncEnd | FetchUid | FetchGuid | FetchHash | Log | Ack
)  # fmt: skip

Reply = Hello | Done | Master | Moved | Saved | Stored | Mismatch | Snapshot | Content | Refused
