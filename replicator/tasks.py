"""Long-running tasks of a node: their options, progress and results.

These are the data classes behind `replicator check`, `scrub`, `resync`, `undelete`, `inventory` and `apply`, and of the
JSON API; `replication/tasks` runs the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self, TypeAlias

from protocol.values import Dot

TaskName: TypeAlias = Literal["check", "scrub", "resync", "undelete", "inventory", "apply"]
TaskState: TypeAlias = Literal["running", "done", "cancelled", "failed"]

RATE_MAX = 10**9  # rows a second; more than any machine reads
PLANNED_MAX, HEADS_MAX = 1_000, 10_000  # mailboxes of one apply, and their heads: parsed in 35 ms of the event loop
TIME_MAX_MS = 1 << 48  # no entry has a later stamp


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Compare what the node shows with its log. `rate`: rows a second at most; None: as fast as it goes."""

    name: ClassVar[TaskName] = "check"
    repair: bool = False
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class ScrubOptions:
    """Read all bodies, and fetch damaged ones from other nodes. `rate`: bodies and rows a second at most."""

    name: ClassVar[TaskName] = "scrub"
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class ResyncOptions:
    """Compare this node with other nodes, and make equal what differs.

    With `user` and `mailbox`: one folder, and the user's folder tree. With `mailbox` None: everything of the user. With
    both None: all users. `peer`: compare with this node only; None: with all that can be reached. `dry_run`: change
    nothing. `rate`: rows a second.
    """

    name: ClassVar[TaskName] = "resync"
    user: str | None = None
    mailbox: str | None = None
    peer: str | None = None
    dry_run: bool = False
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class UndeleteOptions:
    """Restore expunged messages of a user's folder, or of deleted folders of that name.

    `since_ms`: earliest time of the expunge; None: all messages that are kept. `dry_run`: change nothing.
    """

    name: ClassVar[TaskName] = "undelete"
    user: str
    mailbox: str
    since_ms: int | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class InventoryOptions:
    """Write everything that the node shows as Parquet (docs/inventory.md).

    `to`: an absolute path on the node's machine, or `s3://bucket/prefix` at the `endpoint`. `endpoint` None:
    `checkpoint.endpoint` if that is configured, else Amazon. `overwrite`: replace an incomplete inventory.
    """

    name: ClassVar[TaskName] = "inventory"
    to: str
    endpoint: str | None = None
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class PlannedMailbox:
    """A mailbox or folder tree of a repair plan (`resync.plan`), with the heads that the plan's nodes showed.

    `mailbox`: its id, hexadecimal. `uidvalidity` 0: a folder tree. `heads`: by SID; None: that node showed nothing of
    it. `damaged`: the plan says that it is damaged, and it is left alone.
    """

    user: str
    mailbox: str
    uidvalidity: int
    heads: Mapping[str, Dot | None]
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """Make mailboxes of a plan equal at its nodes, if none of these has changed them since.

    `dry_run`: change nothing. `rate`: mailboxes a second. `texts`: wait at the end for the bodies of new messages.
    """

    name: ClassVar[TaskName] = "apply"
    mailboxes: tuple[PlannedMailbox, ...]
    dry_run: bool = False
    rate: int | None = None
    texts: bool = False


TaskOptions: TypeAlias = CheckOptions | ScrubOptions | ResyncOptions | UndeleteOptions | InventoryOptions | ApplyOptions


@dataclass(slots=True, kw_only=True)
class TaskStatus:
    """State of a task, the running or the last one of its kind. Only the task itself changes it; others get copies.

    `done` counts towards `total`, as far as that is known, in the units of the task.
    """

    task: TaskName
    rate: int | None
    state: TaskState = "running"
    started_ms: int = 0
    ended_ms: int | None = None
    done: int = 0
    total: int = 0
    error: str | None = None  # why the task failed

    @property
    def is_running(self) -> bool:
        """True while the task runs."""
        return self.state == "running"

    def count(self, amount: int) -> None:
        """Add to the work done."""
        self.done += amount
        self.total = max(self.total, self.done)

    def summary(self) -> str:
        """Return the result in one line, for the log."""
        return f"{self.done} of {self.total}"

    def copy(self) -> Self:
        """Return a copy of the present state."""
        return replace(self)


@dataclass(frozen=True, slots=True)
class ShownAt:
    """Place where a message is shown. `folder`: its name, or the mailbox id if the name is unknown."""

    user: str | None
    folder: str
    uid: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Damage in a node's database, and how it was repaired.

    `kind` is the damaged table: by_uid, by_guid, chain (a mailbox's or tree's counters), folder, subscription,
    annotation, content, attachment or log.
    """

    kind: str
    user: str | None
    folder: str | None  # its name, or the mailbox id if the name is unknown
    uid: int | None
    guid: str | None  # hexadecimal; for a content or an attachment the SHA-256 of a body that has it
    what: str
    done: str | None  # how it was repaired; None: it was not
    also: tuple[ShownAt, ...] = ()  # other messages with the same body, a few
    more: int = 0  # number of further messages with that body


@dataclass(slots=True, kw_only=True)
class CheckStatus(TaskStatus):
    """State of a check or a scrub. `done` counts rows and contents that were read."""

    repair: bool
    mailboxes: int = 0  # mailboxes and folder trees
    rows: int = 0
    contents: int = 0
    damage: dict[str, int] = field(default_factory=dict)  # findings of each kind
    repaired: int = 0
    unrepaired: int = 0
    tidied: int = 0  # leftovers of crashes among the attachments; no damage
    unproven: int = 0  # mailboxes and trees not compared: their history is elsewhere until their next checkpoint
    findings: list[Finding] = field(default_factory=list)  # empty in copies while the task runs
    left_out: int = 0  # findings beyond the listed ones

    def summary(self) -> str:
        """Return the result in one line, for the log."""
        return f"{self.repaired + self.unrepaired} damaged, {self.repaired} repaired"

    def copy(self) -> Self:
        """Return a copy of the present state."""
        return replace(self, damage=dict(self.damage), findings=[] if self.is_running else list(self.findings))


@dataclass(frozen=True, slots=True)
class Difference:
    """A mailbox or folder tree that another node shows differently, and how it was made equal.

    `folder`: its name, or the mailbox id if the name is unknown; None: the folder tree. `user` None: all users, because
    the other node could not be asked. `differed`: number of differences of each kind, see `resync.differing`. If `done`
    is None, `why_not` gives the reason; in a dry run both are None.
    """

    peer: str
    user: str | None
    folder: str | None
    differed: dict[str, int]
    done: str | None
    why_not: str | None


@dataclass(slots=True, kw_only=True)
class ResyncStatus(TaskStatus):
    """State of a resync. `done` counts mailboxes and trees, once for each node they were compared with."""

    user: str | None
    mailbox: str | None
    dry_run: bool
    peers: list[str] = field(default_factory=list)  # nodes to compare with, past and pending
    rows: int = 0
    differed: dict[str, int] = field(default_factory=dict)  # of all differences
    mended: int = 0  # differences that were removed
    unmended: int = 0
    differences: list[Difference] = field(default_factory=list)  # empty in copies while the task runs
    left_out: int = 0  # differences beyond the listed ones

    def summary(self) -> str:
        """Return the result in one line, for the log."""
        failed = sum(one.user is None for one in self.differences)
        nodes = f", {failed} nodes could not be compared" if failed else ""
        return f"{self.mended + self.unmended - failed} differences, {self.mended} removed{nodes}"

    def copy(self) -> Self:
        """Return a copy of the present state."""
        listed = [] if self.is_running else list(self.differences)
        return replace(self, differed=dict(self.differed), peers=list(self.peers), differences=listed)


@dataclass(frozen=True, slots=True)
class Undeleted:
    """An expunged message that was restored, or would be in a dry run; if it was left out, `why_not` says why.

    `uid` is the old one: a restored message gets a new UID.
    """

    guid: str  # hexadecimal
    uid: int
    received_ms: int
    expunged_ms: int
    size_bytes: int
    why_not: str | None


@dataclass(slots=True, kw_only=True)
class UndeleteStatus(TaskStatus):
    """State of an undelete. `done` counts kept messages."""

    user: str
    mailbox: str
    since_ms: int | None
    dry_run: bool
    restored: int = 0  # in a dry run: that would be restored
    restored_bytes: int = 0
    present: int = 0  # left out, because the folder has them
    elsewhere: int = 0  # left out, because another folder of the user has them: they were moved
    textless: int = 0  # left out, because no node that can be reached has their body
    messages: list[Undeleted] = field(default_factory=list)  # empty in copies while the task runs
    left_out: int = 0  # messages beyond the listed ones

    def summary(self) -> str:
        """Return the result in one line, for the log."""
        left = self.present + self.elsewhere + self.textless
        return f"{self.restored} messages {'would be restored' if self.dry_run else 'restored'}, {left} left out"

    def copy(self) -> Self:
        """Return a copy of the present state."""
        return replace(self, messages=[] if self.is_running else list(self.messages))


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A corrupt row that an inventory leaves out. `key` names it in its table."""

    table: str
    key: str
    what: str


@dataclass(slots=True, kw_only=True)
class InventoryStatus(TaskStatus):
    """State of an inventory. `done` counts rows that were read. The inventory is complete once `taken_ms` is set."""

    to: str
    taken_ms: int | None = None  # time of the state that the inventory holds
    rows: dict[str, int] = field(default_factory=dict)  # of each table; until the end: rows read so far
    files: int = 0
    size_bytes: int = 0
    damage: dict[str, int] = field(default_factory=dict)  # rows of each table that were left out
    unreadable: list[UnreadableRow] = field(default_factory=list)  # empty in copies while the task runs
    left_out: int = 0  # such rows beyond the listed ones

    def summary(self) -> str:
        """Return the result in one line, for the log."""
        return f"{self.done} rows to {self.to}, {sum(self.damage.values())} of them unreadable"

    def copy(self) -> Self:
        """Return a copy of the present state."""
        listed = [] if self.is_running else list(self.unreadable)
        return replace(self, rows=dict(self.rows), damage=dict(self.damage), unreadable=listed)


ApplyOutcome: TypeAlias = Literal["repaired", "equal", "moved", "unreachable", "damaged", "failed"]
"""Result for a planned mailbox.

All nodes of the plan show the same state: `repaired`, because this task made them equal (in a dry run: would make), or
`equal`, because they were equal before. Otherwise the mailbox is left alone because some nodes have changed it since it
was compared (`moved`), cannot be asked (`unreachable`), or show an impossible state (`damaged`); or making them equal
has `failed`.
"""


@dataclass(frozen=True, slots=True)
class Undone:
    """A planned mailbox or folder tree that is not equal, and why. `folder` as in `Difference`."""

    user: str | None  # None: unknown
    folder: str | None
    mailbox: str  # its id, hexadecimal
    outcome: ApplyOutcome
    why: str


@dataclass(slots=True, kw_only=True)
class ApplyStatus(TaskStatus):
    """State of an apply. `done` counts planned mailboxes."""

    dry_run: bool
    outcomes: dict[ApplyOutcome, int] = field(default_factory=dict)
    undone: list[Undone] = field(default_factory=list)  # empty in copies while the task runs
    texts_lacking: int | None = None  # bodies of shown messages missing here, when last counted

    def summary(self) -> str:
        """Return the result in one line, for the log."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items())
        return f"{self.done} mailboxes{' (dry run)' if self.dry_run else ''}: {counts or 'none'}"

    def copy(self) -> Self:
        """Return a copy of the present state."""
        return replace(self, outcomes=dict(self.outcomes), undone=[] if self.is_running else list(self.undone))
