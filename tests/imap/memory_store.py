"""A mail store of one node in memory: the interface's promises, built on the real view, without disks and peers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import trio

from protocol.values import Dot, UidSet
from replicator.errors import (
    ContentUnavailableError,
    FolderExistsError,
    FolderNotFoundError,
    InvalidNameError,
    MailError,
)
from replicator.mailstore import (
    INBOX,
    SEPARATOR,
    CopiedMessages,
    Folder,
    FolderStatus,
    NewMessage,
    SavedMessage,
    StoreResult,
)
from replicator.view import MailboxView, Message, ViewChange

ARRIVED_MS = 1_577_880_000_000  # 1 January 2020, 12:00 UTC


@dataclass
class MemoryMailStore:
    trees: dict[str, dict[str, Folder]] = field(default_factory=dict)
    views: dict[bytes, MailboxView] = field(default_factory=dict)
    subscribed: dict[str, set[str]] = field(default_factory=dict)
    claimed: dict[bytes, int] = field(default_factory=dict)
    content: dict[bytes, bytes] = field(default_factory=dict)
    failing: MailError | None = None  # raised by everything that writes
    names_given: int = 0

    # ---- folders ----

    async def folders(self, user: str) -> Sequence[Folder]:
        tree = self._tree(user)
        return [tree[name] for name in sorted(tree, key=lambda name: (name != INBOX, name))]

    async def folder(self, user: str, name: str) -> Folder:
        await trio.lowlevel.checkpoint()
        if (folder := self._tree(user).get(name)) is None:
            raise FolderNotFoundError(f"There is no folder {name}")
        return folder

    async def subscriptions(self, user: str) -> frozenset[str]:
        return frozenset(self.subscribed.get(user, ()))

    async def create_folder(self, user: str, name: str) -> Folder:
        await self._write()
        tree = self._tree(user)
        if not name or name.startswith(SEPARATOR):
            raise InvalidNameError(f"{name!r} cannot be the name of a folder")
        if name in tree:
            raise FolderExistsError(f"There is a folder {name} already")
        levels = name.split(SEPARATOR)
        for depth in range(1, len(levels) + 1):
            path = SEPARATOR.join(levels[:depth])
            if path not in tree:
                tree[path] = self._new_folder(user, path)
        return tree[name]

    async def rename_folder(self, user: str, old: str, new: str) -> None:
        await self._write()
        tree = self._tree(user)
        folder = await self.folder(user, old)
        if new in tree:
            raise FolderExistsError(f"There is a folder {new} already")
        if old == INBOX:
            destination = await self.create_folder(user, new)
            view = self.views[folder.mailbox_id]
            await self.move(view, UidSet.of(view.messages), destination)
            return
        for name in [name for name in tree if name == old or name.startswith(old + SEPARATOR)]:
            moved = tree.pop(name)
            tree[new + name[len(old) :]] = replace(moved, name=new + name[len(old) :])

    async def delete_folder(self, user: str, name: str) -> None:
        await self._write()
        folder = await self.folder(user, name)
        del self._tree(user)[name]
        self.views[folder.mailbox_id].end()

    async def subscribe(self, user: str, name: str, *, subscribed: bool) -> None:
        await self._write()
        names = self.subscribed.setdefault(user, set())
        (names.add if subscribed else names.discard)(name)

    async def status(self, folder: Folder) -> FolderStatus:
        view = self.views[folder.mailbox_id]
        recent = sum(uid >= self.claimed.get(folder.mailbox_id, 1) for uid in view.messages)
        size = sum(message.size_bytes for message in view.messages.values())
        return FolderStatus(folder, len(view.messages), view.unseen, view.uidnext, view.highestmodseq, size, recent)

    # ---- messages ----

    async def open_mailbox(self, folder: Folder) -> MailboxView:
        await trio.lowlevel.checkpoint()
        return self.views[folder.mailbox_id]

    async def claim_recent(self, folder: Folder) -> int:
        await self._write()
        answer = self.claimed.get(folder.mailbox_id, 1)
        self.claimed[folder.mailbox_id] = self.views[folder.mailbox_id].uidnext
        return answer

    async def save(self, folder: Folder, message: NewMessage) -> SavedMessage:
        await self._write()
        if (await self.folder(folder.user, folder.name)).mailbox_id != folder.mailbox_id:
            raise FolderNotFoundError(f"{folder.name} was deleted")
        received_ms = ARRIVED_MS if message.received_ms is None else message.received_ms
        digest = hashlib.sha256(message.text).digest()
        self.content[digest] = message.text
        return SavedMessage(
            folder.uidvalidity, self._add(folder, digest, len(message.text), message.flags, received_ms)
        )

    async def copy(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        await self._write()
        rows = [source.messages[uid] for uid in uids if uid in source.messages]
        pairs = [
            (row.uid, self._add(destination, row.content_hash, row.size_bytes, row.flags, row.received_ms))
            for row in rows
        ]
        return CopiedMessages(destination.uidvalidity, tuple(pairs))

    async def move(self, source: MailboxView, uids: UidSet, destination: Folder) -> CopiedMessages:
        copied = await self.copy(source, uids, destination)
        await self.expunge(source, UidSet.of(uid for uid, _ in copied.uids))
        return copied

    async def store_flags(
        self,
        mailbox: MailboxView,
        uids: UidSet,
        *,
        added: frozenset[str] = frozenset(),
        removed: frozenset[str] = frozenset(),
        unchanged_since: int | None = None,
    ) -> StoreResult:
        await self._write()
        assert unchanged_since is None
        modseq = mailbox.highestmodseq + 1
        rows = [mailbox.messages[uid] for uid in uids if uid in mailbox.messages]
        new = [row._replace(flags=(row.flags - removed) | added, modseq=modseq) for row in rows]
        self._change(mailbox, changed=tuple(row for row, old in zip(new, rows, strict=True) if row.flags != old.flags))
        return StoreResult(UidSet())

    async def expunge(self, mailbox: MailboxView, uids: UidSet) -> None:
        await self._write()
        self._change(mailbox, expunged=tuple(uid for uid in uids if uid in mailbox.messages))

    async def read_content(self, message: Message) -> bytes:
        await trio.lowlevel.checkpoint()
        if message.content_hash not in self.content:
            raise ContentUnavailableError(f"The text of message {message.uid} is nowhere")
        return self.content[message.content_hash]

    # ---- inside ----

    async def _write(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.failing is not None:
            raise self.failing

    def _tree(self, user: str) -> dict[str, Folder]:
        if user not in self.trees:
            self.trees[user] = {INBOX: self._new_folder(user, INBOX)}
        return self.trees[user]

    def _new_folder(self, user: str, name: str) -> Folder:
        self.names_given += 1
        folder = Folder(user, name, self.names_given.to_bytes(16, "big"), 1000 + self.names_given)
        self.views[folder.mailbox_id] = MailboxView.build(
            mailbox_id=folder.mailbox_id,
            user=user,
            uidvalidity=folder.uidvalidity,
            uidnext=1,
            highestmodseq=1,
            rows=(),
        )
        return folder

    def _add(self, folder: Folder, digest: bytes, size: int, flags: frozenset[str], received_ms: int) -> int:
        view = self.views[folder.mailbox_id]
        self.names_given += 1
        guid = self.names_given.to_bytes(16, "big")
        dot = Dot("dc1.1", self.names_given)
        uid = view.uidnext
        row = Message(uid, guid, view.highestmodseq + 1, flags, received_ms, size, digest, dot, 0)
        self._change(view, changed=(row,))
        return uid

    def _change(
        self,
        view: MailboxView,
        changed: tuple[Message, ...] = (),
        expunged: tuple[int, ...] = (),
    ) -> None:
        uidnext = max([view.uidnext, *(row.uid + 1 for row in changed)])
        view.apply(ViewChange(view.mailbox_id, view.highestmodseq + 1, uidnext, changed, expunged))
