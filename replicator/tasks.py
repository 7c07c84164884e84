"""Tasks: what a node can be asked to do that takes long. What to do, how far it is, and what came of it.

These are the shapes behind `replicator check`, `scrub`, `resync`, `undelete`, `inventory` and `apply`, and of the JSON
API; `replication/tasks` runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self, TypeAlias

from protocol.values import Dot

TaskName: TypeAlias = Literal["check", "scrub", "resync", "undelete", "inventory", "apply"]
TaskState: TypeAlias = Literal["running", "done", "cancelled", "failed"]

RATE_MAX = 10**9  # rows a second; more than any machine reads
PLANNED_MAX, HEADS_MAX = 1_000, 10_000  # mailboxes of one apply, and their heads: read in 35 ms of the event loop
TIME_MAX_MS = 1 << 48  # beyond it no entry is stamped


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Compare what the node shows with its log. `rate`: rows a second at most; None: as fast as it goes."""

    name: ClassVar[TaskName] = "check"
    repair: bool = False
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class ScrubOptions:
    """Read all texts, and get what is damaged from other nodes. `rate`: texts and rows a second at most."""

    name: ClassVar[TaskName] = "scrub"
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class ResyncOptions:
    """Compare with other nodes, and make equal what differs.

    One folder of a `user`, with the folder tree; all of a user's, if `mailbox` is None; all there is, if both are.
    `peer`: with this node only; None: with all that can be reached. `dry_run`: change nothing. `rate`: rows a second.
    """

    name: ClassVar[TaskName] = "resync"
    user: str | None = None
    mailbox: str | None = None
    peer: str | None = None
    dry_run: bool = False
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class UndeleteOptions:
    """Bring back what was expunged from a user's folder, or from deleted ones of its name.

    `since_ms`: when it was expunged at the earliest; None: all that is kept. `dry_run`: change nothing.
    """

    name: ClassVar[TaskName] = "undelete"
    user: str
    mailbox: str
    since_ms: int | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class InventoryOptions:
    """Write all that the node shows as Parquet (docs/inventory.md).

    `to`: an absolute path on the node's machine, or `s3://bucket/prefix` at the `endpoint`; None: at that of
    `checkpoint.endpoint`, if it is configured, else at Amazon's. `overwrite`: in place of an inventory that is not
    whole.
    """

    name: ClassVar[TaskName] = "inventory"
    to: str
    endpoint: str | None = None
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class PlannedMailbox:
    """A mailbox or folder tree of a repair plan (`resync.plan`), and what the plan's nodes showed of it.

    `mailbox`: its id, hexadecimal. `uidvalidity` 0: a folder tree. `heads`: by SID; None: that node showed nothing of
    it. `damaged`: the plan says so, and nothing is done about it.
    """

    user: str
    mailbox: str
    uidvalidity: int
    heads: Mapping[str, Dot | None]
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """Make mailboxes of a plan equal at its nodes, where none of these has gone on since.

    `dry_run`: change nothing. `rate`: mailboxes a second. `texts`: in the end wait for the texts of what has come.
    """

    name: ClassVar[TaskName] = "apply"
    mailboxes: tuple[PlannedMailbox, ...]
    dry_run: bool = False
    rate: int | None = None
    texts: bool = False


TaskOptions: TypeAlias = CheckOptions | ScrubOptions | ResyncOptions | UndeleteOptions | InventoryOptions | ApplyOptions


@dataclass(slots=True, kw_only=True)
class TaskStatus:
    """How it is with a task, the present or the last one of its kind. Who does it changes it; others get copies.

    `done` counts towards `total`, as far as that can be told, in what the task is about.
    """

    task: TaskName
    rate: int | None
    state: TaskState = "running"
    started_ms: int = 0
    ended_ms: int | None = None
    done: int = 0
    total: int = 0
    error: str | None = None  # why it failed

    @property
    def is_running(self) -> bool:
        """Whether it goes on."""
        return self.state == "running"

    def count(self, amount: int) -> None:
        """So much more is done."""
        self.done += amount
        self.total = max(self.total, self.done)

    def summary(self) -> str:
        """What came of it, for the log."""
        return f"{self.done} of {self.total}"

    def copy(self) -> Self:
        """As it is now."""
        return replace(self)


@dataclass(frozen=True, slots=True)
class ShownAt:
    """A message, by where it is shown. `folder`: its name, or the mailbox id where no name is known."""

    user: str | None
    folder: str
    uid: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong in a node's database, and what was done about it.

    `kind` is the table in which it is: by_uid, by_guid, chain (a mailbox's or tree's counters), folder, subscription,
    content, attachment or log.
    """

    kind: str
    user: str | None
    folder: str | None  # its name, or the mailbox id where no name is known
    uid: int | None
    guid: str | None  # hexadecimal; of a content or an attachment the SHA-256 of a text that has it
    what: str
    done: str | None  # how it was mended; None: it was not
    also: tuple[ShownAt, ...] = ()  # other messages of the same text, a few
    more: int = 0  # messages of it beyond those


@dataclass(slots=True, kw_only=True)
class CheckStatus(TaskStatus):
    """A check or a scrub. `done` counts rows and contents that were read."""

    repair: bool
    mailboxes: int = 0  # and folder trees
    rows: int = 0
    contents: int = 0
    damage: dict[str, int] = field(default_factory=dict)  # findings of each kind
    repaired: int = 0
    unrepaired: int = 0
    tidied: int = 0  # things that crashes have left among the attachments; no damage
    unproven: int = 0  # mailboxes and trees whose past is elsewhere until their next checkpoint: nothing was compared
    findings: list[Finding] = field(default_factory=list)  # in copies none while it is running
    left_out: int = 0  # findings beyond those that are listed

    def summary(self) -> str:
        """What came of it, for the log."""
        return f"{self.repaired + self.unrepaired} damages, {self.repaired} mended"

    def copy(self) -> Self:
        """As it is now."""
        return replace(self, damage=dict(self.damage), findings=[] if self.is_running else list(self.findings))


@dataclass(frozen=True, slots=True)
class Difference:
    """A mailbox or folder tree that another node shows otherwise, and what was done about it.

    `folder`: its name, or the mailbox id where no name is known; None: the folder tree. `user` None: all, because the
    other node could not be asked. `differed`: how much of each kind, see `resync.differing`. Without `done`, `why_not`
    says why; nothing does in a dry run.
    """

    peer: str
    user: str | None
    folder: str | None
    differed: dict[str, int]
    done: str | None
    why_not: str | None


@dataclass(slots=True, kw_only=True)
class ResyncStatus(TaskStatus):
    """A resync. `done` counts mailboxes and trees, once for each node that they were compared with."""

    user: str | None
    mailbox: str | None
    dry_run: bool
    peers: list[str] = field(default_factory=list)  # that this node was or is to be compared with
    rows: int = 0
    differed: dict[str, int] = field(default_factory=dict)  # of all differences
    mended: int = 0  # differences that are no more
    unmended: int = 0
    differences: list[Difference] = field(default_factory=list)  # in copies none while it is running
    left_out: int = 0  # differences beyond those that are listed

    def summary(self) -> str:
        """What came of it, for the log."""
        return f"{self.mended + self.unmended} differences, {self.mended} mended"

    def copy(self) -> Self:
        """As it is now."""
        listed = [] if self.is_running else list(self.differences)
        return replace(self, differed=dict(self.differed), peers=list(self.peers), differences=listed)


@dataclass(frozen=True, slots=True)
class Undeleted:
    """A message that was expunged, and whether it came back, or in a dry run would; if not, `why_not` says why.

    `uid` is of the past: what comes back gets another one.
    """

    guid: str  # hexadecimal
    uid: int
    received_ms: int
    expunged_ms: int
    size_bytes: int
    why_not: str | None


@dataclass(slots=True, kw_only=True)
class UndeleteStatus(TaskStatus):
    """An undelete. `done` counts messages that are kept."""

    user: str
    mailbox: str
    since_ms: int | None
    dry_run: bool
    restored: int = 0  # in a dry run: that would be
    restored_bytes: int = 0
    present: int = 0  # left, because the folder has them
    elsewhere: int = 0  # left, because another folder of the user has them: they were moved
    textless: int = 0  # left, because no node that can be reached has their text
    messages: list[Undeleted] = field(default_factory=list)  # in copies none while it is running
    left_out: int = 0  # messages beyond those that are listed

    def summary(self) -> str:
        """What came of it, for the log."""
        left = self.present + self.elsewhere + self.textless
        return f"{self.restored} messages {'would come' if self.dry_run else 'came'} back, {left} were left"

    def copy(self) -> Self:
        """As it is now."""
        return replace(self, messages=[] if self.is_running else list(self.messages))


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row that makes no sense and is not in an inventory. `key` names it in its table."""

    table: str
    key: str
    what: str


@dataclass(slots=True, kw_only=True)
class InventoryStatus(TaskStatus):
    """An inventory. `done` counts rows that were read. It is whole once there is a `taken_ms`."""

    to: str
    taken_ms: int | None = None  # when the node showed what it has
    rows: dict[str, int] = field(default_factory=dict)  # of each table; until the end: that were read
    files: int = 0
    size_bytes: int = 0
    damage: dict[str, int] = field(default_factory=dict)  # rows of each table that are not in it
    unreadable: list[UnreadableRow] = field(default_factory=list)  # in copies none while it is running
    left_out: int = 0  # such rows beyond those that are listed

    def summary(self) -> str:
        """What came of it, for the log."""
        return f"{self.done} rows to {self.to}, {sum(self.damage.values())} of them unreadable"

    def copy(self) -> Self:
        """As it is now."""
        listed = [] if self.is_running else list(self.unreadable)
        return replace(self, rows=dict(self.rows), damage=dict(self.damage), unreadable=listed)


ApplyOutcome: TypeAlias = Literal["repaired", "equal", "moved", "unreachable", "damaged", "failed"]
"""What became of a planned mailbox.

All nodes of the plan show the same of it: `repaired`, because this task has seen to it (in a dry run: would see), or
`equal`, as they did before. They do not: it is left alone because some have gone on since it was compared (`moved`),
cannot be asked (`unreachable`), or show what cannot be (`damaged`); or making them equal has `failed`.
"""


@dataclass(frozen=True, slots=True)
class Undone:
    """A planned mailbox or folder tree that is not equal, and why. `folder` as in `Difference`."""

    user: str | None  # None: nobody knows
    folder: str | None
    mailbox: str  # its id, hexadecimal
    outcome: ApplyOutcome
    why: str


@dataclass(slots=True, kw_only=True)
class ApplyStatus(TaskStatus):
    """An apply. `done` counts planned mailboxes."""

    dry_run: bool
    outcomes: dict[ApplyOutcome, int] = field(default_factory=dict)
    undone: list[Undone] = field(default_factory=list)  # in copies none while it is running
    texts_lacking: int | None = None  # at this node, of all that it shows, when it was last looked; None: it was not

    def summary(self) -> str:
        """What came of it, for the log."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items())
        return f"{self.done} mailboxes{' (dry run)' if self.dry_run else ''}: {counts or 'none'}"

    def copy(self) -> Self:
        """As it is now."""
        return replace(self, outcomes=dict(self.outcomes), undone=[] if self.is_running else list(self.undone))
