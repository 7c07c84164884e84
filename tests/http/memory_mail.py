"""A mail store in memory, enough of one for the HTTP door, and a node that reports fixed figures."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from protocol.values import Dot, UidSet
from replicator.errors import FolderExistsError, FolderNotFoundError, InvalidNameError, MailError
from replicator.mailstore import (
    INBOX,
    CopiedMessages,
    Folder,
    FolderStatus,
    NewMessage,
    SavedMessage,
    StoreResult,
)
from replicator.status import LinkStatus, MailboxStatus, NodeStatus
from replicator.view import MailboxView, Message, ViewChange

UIDVALIDITY = 77


@dataclass
class MemoryMail:
    """`failure`, while set, is what `save` raises. The first saves wait until `together` are under way at once."""

    failure: MailError | None = None
    together: int = 0
    views: dict[tuple[str, str], MailboxView] = field(default_factory=dict)
    texts: dict[bytes, bytes] = field(default_factory=dict)

    async def folders(self, user: str) -> Sequence[Folder]:
        return [await self.folder(user, name) for owner, name in self.views if owner == user]

    async def folder(self, user: str, name: str) -> Folder:
        if (user, name) not in self.views:
            if name != INBOX:
                raise FolderNotFoundError(f"{user} has no folder {name!r}")
            return await self.create_folder(user, name)
        return Folder(user, name, self.views[user, name].mailbox_id, UIDVALIDITY)

    async def subscriptions(self, user: str) -> frozenset[str]:
        raise NotImplementedError(user)

    async def create_folder(self, user: str, name: str) -> Folder:
        if not name or "\r" in name:
            raise InvalidNameError(f"{name!r} cannot be a folder's name")
        if (user, name) in self.views:
            raise FolderExistsError(f"{user} has a folder {name!r} already")
        mailbox_id = hashlib.md5(f"{user} {name}".encode()).digest()
        self.views[user, name] = MailboxView(mailbox_id, user, UIDVALIDITY, uidnext=1, highestmodseq=0)
        return Folder(user, name, mailbox_id, UIDVALIDITY)

    async def rename_folder(self, user: str, old: str, new: str) -> None:
        raise NotImplementedError(user, old, new)

    async def delete_folder(self, user: str, name: str) -> None:
        raise NotImplementedError(user, name)

    async def subscribe(self, user: str, name: str, *, subscribed: bool) -> None:
        raise NotImplementedError(user, name, subscribed)

    async def status(self, folder: Folder) -> FolderStatus:
        raise NotImplementedError(folder)

    async def open_mailbox(self, folder: Folder) -> MailboxView:
        return self.views[folder.user, folder.name]

    async def claim_recent(self, folder: Folder) -> int:
        raise NotImplementedError(folder)

    async def save(self, folder: Folder, message: NewMessage) -> SavedMessage:
        if self.failure is not None:
            raise self.failure
        self.together -= 1
        while self.together > 0:
            await trio.lowlevel.checkpoint()
        view = self.views[folder.user, folder.name]
        uid, modseq = view.uidnext, view.highestmodseq + 1
        content_hash = hashlib.sha256(message.text).digest()
        self.texts[content_hash] = message.text
        row = Message(
            uid=uid,
            guid=uid.to_bytes(16, "big"),
            modseq=modseq,
            flags=message.flags,
            received_ms=message.received_ms or 0,
            size_bytes=len(message.text),
            content_hash=content_hash,
            dot=Dot("dc1.1", modseq),
            change=0,
        )
        view.apply(ViewChange(view.mailbox_id, modseq, uid + 1, changed=(row,)))
        return SavedMessage(UIDVALIDITY, uid)

    async def copy(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        raise NotImplementedError(source, uids, destination)

    async def move(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        raise NotImplementedError(source, uids, destination)

    async def store_flags(
        self,
        mailbox: MailboxView,
        uids: UidSet,
        *,
        added: frozenset[str] = frozenset(),
        removed: frozenset[str] = frozenset(),
        unchanged_since: int | None = None,
    ) -> StoreResult:
        raise NotImplementedError(mailbox, uids, added, removed, unchanged_since)

    async def expunge(self, mailbox: MailboxView, uids: UidSet) -> None:
        raise NotImplementedError(mailbox, uids)

    async def read_content(self, message: Message) -> bytes:
        return self.texts[message.content_hash]


@dataclass
class FixedReport:
    """`reasons` is why the node is not healthy; `digest` is its state's."""

    sid: str = "dc1"
    digest: str = "d1" * 16
    clock_ms: int = 91_000
    component: tuple[str, ...] = ("dc1", "dc2")
    master: str | None = "dc1"
    error: str = "connection refused"
    mailboxes_total: int = 2
    log_entries: int = 9
    reasons: list[str] = field(default_factory=list)

    async def node_status(self) -> NodeStatus:
        up = LinkStatus("dc2", "127.0.0.1:4421", True, 1_000, 250, 0, 0, 0.0, None)  # noqa: FBT003  as in the shape
        down = LinkStatus("dc3", "127.0.0.1:4422", False, None, None, 7, 2048, 1.5, self.error)  # noqa: FBT003
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
            waiting_entries=0,
            digest=self.digest,
            copies=2,
            copies_reachable=3,
            links=(up, down),
        )

    async def mailboxes(self, user: str | None) -> Sequence[MailboxStatus]:
        rows = [
            MailboxStatus(name, INBOX, "ab" * 16, UIDVALIDITY, 5, 9, 4, 1, 4096, "dc1.1 9", self.digest, self.master)
            for name in ("alice", "bob")
        ]
        return [row for row in rows if user in (None, row.user)]

    async def healthy(self) -> Sequence[str]:
        return self.reasons


class FixedUsers:
    def find(self, name: str) -> str | None:
        return name if name in {"alice", "bob", "ann@example.org"} else None
