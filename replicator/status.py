"""What a node says about itself: the shapes behind `replicator status`, the JSON API and the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

TaskName: TypeAlias = Literal["check", "scrub"]


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One configured peer, as this node sees it.

    Lag is what this node has and the peer has not acknowledged; None: it was not heard from since this node's start.
    """

    peer: str
    address: str
    up: bool
    since_ms: int | None  # when the link came up or went down; None: never up
    round_trip_us: int | None
    lag_entries: int | None
    lag_bytes: int | None
    lag_s: float | None  # age of the oldest entry that the peer lacks
    error: str | None  # why it is down


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
class NodeStatus:
    """One node."""

    sid: str
    origin: str
    cluster: str
    version: str
    started_ms: int
    clock_ms: int  # when this was so; ages are counted up to here, whatever the reader's clock says
    component: tuple[str, ...]  # SIDs that can be reached now, this one included
    root: str | None
    term: int
    mailboxes: int
    mastered: int  # mailboxes that this node numbers
    log_entries: int
    waiting_entries: int  # in the log but not applied: their predecessor is not here, or they are of another branch
    digest: str  # of all mailboxes and trees
    copies: int  # `durability.copies`
    when_short: str  # `durability.when_short`: "proceed" or "refuse"
    copies_reachable: int  # nodes that can have a change on disk now, this one included
    links: tuple[LinkStatus, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong in a node's database, and what was done about it.

    `kind` is the table in which it is: by_uid, by_guid, chain (a mailbox's or tree's counters), folder, subscription,
    content or log.
    """

    kind: str
    user: str | None
    folder: str | None  # its name, or the mailbox id where no name is known
    uid: int | None
    guid: str | None  # hexadecimal; of a content its SHA-256
    what: str
    done: str | None  # how it was mended; None: it was not


@dataclass(frozen=True, slots=True)
class CheckStatus:
    """A check or scrub of a node, the last or the present one of its kind."""

    task: TaskName
    state: str  # running, done, cancelled or failed
    repair: bool
    rate: int | None  # rows a second
    started_ms: int
    ended_ms: int | None
    done: int  # rows and contents that were read
    total: int  # of `done`, as far as that could be told when it began
    mailboxes: int  # and folder trees
    rows: int
    contents: int
    damage: dict[str, int]  # findings of each kind
    repaired: int
    unrepaired: int
    findings: tuple[Finding, ...]  # none while it is running
    left_out: int  # findings beyond those that are listed
    error: str | None  # why it failed

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self.state == "running"
