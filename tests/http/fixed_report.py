"""The status of a node, with fixed figures that a test may change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from replicator.errors import UnavailableError
from replicator.mail.mailstore import INBOX, Folder
from replicator.runtime.files.disk_room import DiskRoom
from replicator.status import (
    CertificateStatus,
    CheckpointStatus,
    LinkStatus,
    MailboxStatus,
    NodeStatus,
    NoRoom,
    SearchTextStatus,
)

UIDVALIDITY = 77


@dataclass
class FixedReport:
    """Figures of a node. `reasons` says why the node is not healthy, `digest` is that of its state."""

    sid: str = "dc1"
    digest: str = "d1" * 16
    clock_ms: int = 91_000
    component: tuple[str, ...] = ("dc1", "dc2")
    master: str | None = "dc1"
    error: str = "connection refused"
    mailboxes_total: int = 2
    log_entries: int = 9
    copies_reachable: int = 3
    when_short: str = "proceed"
    lag_entries: int | None = 0  # of dc2, which is linked
    has_until: int | None = 40  # it has
    log_end: int = 40
    lag_s: float | None = 0.0
    is_lag_known: bool = True
    needs_sync: bool = False
    not_serving: tuple[str, ...] = ()
    no_room: tuple[NoRoom, ...] = ()
    certificates: tuple[CertificateStatus, ...] = ()
    search_texts: SearchTextStatus | None = None
    dovecots: tuple[str, ...] = ()
    postponed: int = 0
    texts_lacking: int = 0
    overdue: tuple[str, ...] = ()
    written_ms: int | None = None  # when the next checkpoints are written; None if nothing has changed
    checkpoint: CheckpointStatus = field(
        default_factory=partial(CheckpointStatus, 80_000, 4, waits_for=("dc2",), log_bytes=4096)
    )
    unsaved: bool = False
    reasons: list[str] = field(default_factory=list)

    async def node_status(self) -> NodeStatus:
        up = LinkStatus(
            "dc2", "127.0.0.1:4421", up=True, since_ms=1_000, round_trip_us=250,
            lag_entries=self.lag_entries, lag_bytes=0, lag_s=self.lag_s, error=None, needs_sync=False,
            has_until=self.has_until,
        )  # fmt: skip
        down = LinkStatus(
            "dc3", "127.0.0.1:4422", up=False, since_ms=None, round_trip_us=None,
            lag_entries=7, lag_bytes=2048, lag_s=1.5, error=self.error, needs_sync=self.needs_sync,
        )  # fmt: skip
        if not self.is_lag_known:
            down = replace(down, lag_entries=None, lag_bytes=None, lag_s=None)
        return NodeStatus(
            sid=self.sid,
            origin=f"{self.sid}.1",
            cluster="mail",
            version="0.1.0",
            started_ms=1_000,
            clock_ms=self.clock_ms,
            component=self.component,
            root="dc1",
            term=3,
            mailboxes=self.mailboxes_total,
            mastered=1,
            log_entries=self.log_entries,
            log_keep_s=86400.0,
            log_max_size_bytes=1 << 30,
            checkpoint=self.checkpoint_status(),
            transfer_done=0,
            transfer_total=0,
            postponed=self.postponed,
            texts_lacking=self.texts_lacking,
            expunged_messages=5,
            expunged_bytes=6_000,
            attachments=3,
            attachments_bytes=300_000,
            attachments_to_heal=0,
            waiting_entries=len(self.overdue),
            stray_folders=0,
            overdue=dict.fromkeys(self.overdue, 1),
            unsettled={"dc1": 0, "dc2": 0, "dc3": 7},
            digest=self.digest,
            copies=2,
            when_short=self.when_short,
            copies_reachable=self.copies_reachable,
            not_serving=self.not_serving,
            no_room=self.no_room,
            certificates=self.certificates,
            search_texts=self.search_texts,
            links=(up, down),
            edges={"dc1": ("dc2",), "dc2": ("dc1",)},
            disks=(DiskRoom("/srv/dc1", 1 << 30, 100 << 30, is_short=True),),
            dovecots=self.dovecots,
            log_end=self.log_end,
        )

    async def checkpoint_now(self) -> CheckpointStatus:
        if self.checkpoint.error is not None:
            raise UnavailableError(self.checkpoint.error)
        if self.written_ms is not None:
            self.checkpoint = replace(self.checkpoint, made_ms=self.written_ms, saved=3, saved_bytes=2048)
        return self.checkpoint

    async def has_unsaved(self) -> bool:
        return self.unsaved

    def checkpoint_status(self) -> CheckpointStatus:
        return self.checkpoint

    async def mailboxes(self, user: str | None) -> Sequence[MailboxStatus]:
        rows = [
            MailboxStatus(name, INBOX, "ab" * 16, UIDVALIDITY, 5, 9, 4, 1, 4096, "dc1.1 9", self.digest, self.master)
            for name in ("alice", "bob")
        ]
        return [row for row in rows if user in (None, row.user)]

    async def master_of(self, folder: Folder) -> str | None:
        return self.master if folder.name == INBOX else None

    async def move_to(self, folder: Folder, node: str) -> None:
        if node not in self.component:
            raise UnavailableError(f"{node} cannot be reached from {self.sid}")
        assert folder.user
        self.master = node

    async def healthy(self) -> Sequence[str]:
        return self.reasons


@dataclass
class FixedSearchTexts:
    """Search texts of a node that there are not, and how often they were begun anew."""

    status: SearchTextStatus | None = None
    begun: int = 0

    def begin_anew(self) -> None:
        self.begun += 1
