"""A node's report on itself: the data classes behind `replicator status`, the JSON API and the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from replicator.runtime.files.disk_room import DiskRoom

CheckpointOutcome: TypeAlias = Literal["written", "unchanged", "waiting", "running"]


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One configured peer, as this node sees it.

    The lag is the part of this node's log that the peer has not acknowledged; None: no message from the peer since this
    node's start.
    """

    peer: str
    address: str
    up: bool
    since_ms: int | None  # when the link came up or went down; None: never up
    round_trip_us: int | None
    lag_entries: int | None
    lag_bytes: int | None
    lag_s: float | None  # age of the oldest entry that the peer lacks
    error: str | None  # why the link is down
    needs_sync: bool  # the peer lacks entries that have left this log
    has_until: int | None = None  # up to this position in the log; None: not known, or `needs_sync`


@dataclass(frozen=True, slots=True)
class MailboxStatus:
    """One mailbox at this node. Two nodes agree on it if and only if their digests are equal."""

    user: str
    name: str
    mailbox_id: str  # hexadecimal, as are the others below
    uidvalidity: int
    uidnext: int
    highestmodseq: int
    messages: int
    unseen: int
    size_bytes: int
    head: str | None  # `origin seq`
    digest: str
    master: str | None  # SID, if known here


@dataclass(frozen=True, slots=True)
class FolderCounts:
    """A folder of a user, as IMAP clients see it at this node."""

    name: str
    mailbox_id: str  # hexadecimal
    uidvalidity: int
    uidnext: int
    subscribed: bool
    messages: int
    unseen: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FolderList:
    """All folders of a user: INBOX first, the rest by name. `stray_subscriptions`: names without a folder."""

    user: str
    folders: tuple[FolderCounts, ...]
    stray_subscriptions: tuple[str, ...]
    keep_expunged_s: float


@dataclass(frozen=True, slots=True)
class ChosenMail:
    """Mail of a folder that is chosen to be expunged, as `node` shows it, as far as it was looked at.

    `uids`: as a set, such as `1:3,7`; what it names is there. `unchecked`: so many more might have the Message-ID, but
    no body of theirs can be read. `after`: where to go on looking; None: all has been looked at.
    """

    node: str
    user: str
    mailbox: str
    uidvalidity: int
    uids: str
    messages: int
    size_bytes: int
    oldest_ms: int | None  # when it was received; None: there is none
    newest_ms: int | None
    unchecked: int
    after: int | None
    keep_expunged_s: float


@dataclass(frozen=True, slots=True)
class ExpungeResult:
    """Mail that was expunged. `missing`: UIDs that named none any more, or a merge has joined more to what they named.

    `until_ms`: when the node may forget what was expunged.
    """

    messages: int
    missing: int
    until_ms: int


@dataclass(slots=True)
class PurgeResult:
    """The counts of what was removed of a former user's mail. `more`: ask again, there is more."""

    user: str
    folders: int
    messages: int
    more: bool


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """Usage of a user's mail at this node, and the most that it may take; None: no limit."""

    user: str
    storage_bytes: int
    storage_limit_bytes: int | None
    messages: int
    messages_limit: int | None


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """This node's checkpoints, as in its newest manifest, and its log.

    The manifest is `in_force` once the entries that it makes superfluous may leave the log; until then it `waits_for`
    nodes.
    """

    made_ms: int | None = None  # None: there is no manifest
    mailboxes: int = 0  # mailboxes and folder trees that it lists
    in_force: bool = False
    waits_for: tuple[str, ...] = ()  # SIDs of known nodes that have not settled what the checkpoints show
    saved: int = 0  # checkpoints written by the last round since the node's start
    saved_bytes: int = 0
    log_bytes: int = 0  # without the bodies of messages, which stay when entries go
    error: str | None = None  # why none can be written now: the log is kept whole


@dataclass(frozen=True, slots=True)
class CheckpointResult(CheckpointStatus):
    """Result of a request for checkpoints, with the state after it.

    `written`: there is a new manifest. `unchanged`: there is none, because nothing has changed since the last one.
    `waiting`: changes are written once the last manifest is in force. `running`: the round takes longer than the answer
    could wait.
    """

    outcome: CheckpointOutcome = "written"


@dataclass(frozen=True, slots=True)
class NoRoom:
    """A log entry of another node that does not fit on this node's disk; later entries wait for it."""

    directory: str  # on the full disk
    free_bytes: int | None  # None: not known
    entry: str  # `origin seq`
    user: str  # owner of the mail that the entry changes
    size_bytes: int  # of the messages that the entry brings
    since_ms: int

    def __str__(self) -> str:
        """Describe the problem in words, with what to do."""
        free = "" if self.free_bytes is None else f", {self.free_bytes} bytes free"
        return (
            f"no room on the disk of {self.directory}{free} for another node's entry {self.entry} with"
            f" {self.size_bytes} bytes of mail for {self.user}; later entries wait for it: free some space"
        )


@dataclass(frozen=True, slots=True)
class SearchTextStatus:
    """The search texts of a node, by which SEARCH need not read bodies."""

    bodies: int  # with a search text, or known to have none
    waiting: int  # bodies that are read by SEARCH until they have one
    size_bytes: int  # on disk


@dataclass(frozen=True, slots=True)
class CertificateStatus:
    """A certificate that the node uses."""

    file: str
    name: str  # its common name
    expires_ms: int

    def days_left(self, now_ms: int) -> int:
        """Return the whole days until it expires; negative: it has expired."""
        return (self.expires_ms - now_ms) // 86_400_000


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node."""

    sid: str
    origin: str
    cluster: str
    version: str
    started_ms: int
    clock_ms: int  # when this report was made; ages are counted up to here, whatever the reader's clock says
    component: tuple[str, ...]  # SIDs that can be reached now, including this one
    root: str | None
    term: int
    mailboxes: int
    mastered: int  # mailboxes that this node numbers
    log_entries: int
    log_keep_s: float  # `log.keep`
    log_max_size_bytes: int  # `log.max_size`
    checkpoint: CheckpointStatus
    transfer_done: int  # mailboxes and trees taken over, from checkpoints or from a peer whose log begins too late
    transfer_total: int  # 0: none needed
    postponed: int  # mailboxes and trees that still differ from a peer's after a transfer; compared every minute
    texts_lacking: int  # bodies of messages shown already; they are fetched when read, and in the background
    expunged_messages: int  # kept for `content.keep_expunged`: `replicator undelete` restores them
    expunged_bytes: int  # of their bodies; several messages may share one
    attachments: int | None  # on this node, each once, as counted by the last sweep or scrub; None: there was none
    attachments_bytes: int | None
    attachments_to_heal: int  # known to be damaged or missing: they are fetched from other nodes
    waiting_entries: int  # in the log but not applied: their predecessor is not here, or they are of another branch
    stray_folders: int  # deleted folders with mail that is about to move to another folder of their name
    overdue: Mapping[str, int]  # reason -> entries that have waited over 30 s for it with all nodes linked
    unsettled: Mapping[str, int]  # known node -> entries of this log that it is not known to show
    digest: str  # of all mailboxes and trees
    copies: int  # `durability.copies`
    when_short: str  # `durability.when_short`: "proceed" or "refuse"
    copies_reachable: int  # nodes that can store a change now, including this one
    not_serving: tuple[str, ...]  # reasons why clients are refused, and what to do
    no_room: tuple[NoRoom, ...]  # the first blocks all the others
    links: tuple[LinkStatus, ...]
    certificates: tuple[CertificateStatus, ...] = ()
    search_texts: SearchTextStatus | None = None  # None: there are none now, so SEARCH reads bodies
    edges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # node -> those linked with it, as both say
    disks: tuple[DiskRoom, ...] = ()  # where this node writes; empty: they do not answer
    restart_for: tuple[str, ...] = ()  # keys of the configuration that changed in its file, as read at a reload
    dovecots: tuple[str, ...] = ()  # what is wrong with those that this node calls; clients are served all the same
    log_end: int = 0  # position of the last entry that this log got, from clients or peers; it only grows
