"""Joining branches: what the master of a mailbox does when its history has forked (design section 3).

Entries of another branch wait in every node's log. Each node that sees such a branch whole asks who masters the
mailbox; whoever does joins it, the most recently used mailboxes first, and ships the merge like any other entry.
Nobody else does anything: until the merge comes, a node goes on showing its own branch.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from protocol.commands import Reply
from protocol.values import Dot, UidSet
from replicator.config import UidConflict
from replicator.errors import MailError
from replicator.replication.mastership import Mastership
from replicator.replication.operations import CopyOperation, ExpungeOperation, NewId, Operation
from replicator.store import branches
from replicator.store.reading import MailboxKey
from replicator.store.store import Store
from replicator.store.transaction import Commit
from resync.entry import FolderCreate, FolderRename, Merge, TreeMerge, tree_id
from resync.state import ContradictionError

log = logging.getLogger(__name__)

Submit = Callable[[Operation], Awaitable[Reply]]
"""As `Coordinator.submit`."""

GATHER_AT_ONCE = 5000  # messages of one entry
PATIENCE_S = 0.05  # an entry whose predecessor comes by another link is no fork


class Healer:
    """Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        mastership: Mastership,
        submit: Submit,
        new_id: NewId,
        uid: UidConflict = UidConflict.RENUMBER,
    ) -> None:
        self._store = store
        self._mastership = mastership
        self._submit = submit
        self._new_id = new_id
        self._uid = uid
        self._hopeless: set[Dot] = set()  # heads of branches that no honest node has; no more than entries that wait
        self._users: set[str] = set()  # whose folders may have become one
        self._suspects: OrderedDict[MailboxKey, None] = OrderedDict()  # the most recently used last
        self._found = trio.Event()
        store.listeners.append(self._note_commit)

    async def run(self, heartbeat_s: float) -> None:
        """Look after the mailboxes with entries that wait, until cancelled."""
        for key in reversed(await self._store.read(branches.waiting_chains)):
            self._suspect(key)
        while True:
            await self._found.wait()
            await trio.sleep(PATIENCE_S)
            self._found = trio.Event()
            later: list[MailboxKey] = []
            users, self._users = self._users, set()
            for user in users:
                if not await self._gather(user):
                    self._users.add(user)
            while self._suspects:
                key, _ = self._suspects.popitem()
                try:
                    if not await self._look_after(key):
                        later.append(key)
                except (MailError, sqlite3.Error) as error:
                    log.warning("branches of %s could not be joined yet: %s", key.user, error)
                    later.append(key)
            for key in later:
                self._suspects.setdefault(key)
            if later or self._users:
                with trio.move_on_after(heartbeat_s):
                    await self._found.wait()
                self._found.set()

    async def join_branches(self, key: MailboxKey) -> None:
        """Join all branches of a mailbox that are here whole. For its master only."""
        for head in await self._store.read(partial(branches.branch_heads, chain_id=key.mailbox_id)):
            if head in self._hopeless:
                continue
            try:
                branch = await self._store.read(partial(branches.replay_branch, head=head))
            except ContradictionError as error:
                log.warning("a branch of mailbox %s of %s is not joined: %s", key.mailbox_id.hex(), key.user, error)
                self._hopeless.add(head)
                continue
            if branch is None:
                continue
            join = partial(branches.merge_branch, key=key, head=head, branch=branch, uid=self._uid)
            dot = await self._store.write(join)
            if dot is not None:
                log.info("joined two branches of mailbox %s of %s", key.mailbox_id.hex(), key.user)

    async def _gather(self, user: str) -> bool:
        """Move mail to the folder that bears its folder's name now. Whether that is done, or another node does it."""
        if not await self._store.read(partial(branches.strays, user=user)):
            return True
        if await self._mastership.find(MailboxKey(user, tree_id(user), 0)) != self._mastership.sid:
            return True
        try:
            for stray in await self._store.read(partial(branches.strays, user=user)):
                for start in range(0, len(stray.to_copy), GATHER_AT_ONCE):
                    uids, guids = zip(*stray.to_copy[start : start + GATHER_AT_ONCE], strict=True)
                    copy = CopyOperation(
                        stray.source, stray.destination, UidSet.of(uids), guids, tuple(self._new_id() for _ in uids)
                    )
                    await self._submit(copy)
                await self._submit(ExpungeOperation(stray.source, stray.to_expunge, stray.head))
        except (MailError, sqlite3.Error) as error:
            log.warning("mail of %s could not be moved to its folder yet: %s", user, error)
            return False
        return True

    async def _look_after(self, key: MailboxKey) -> bool:
        """Whether nothing of the mailbox waits any more."""
        if not self._store.has_waiting(key.mailbox_id):
            return True
        if not await self._store.read(partial(branches.branch_heads, chain_id=key.mailbox_id)):
            return False
        if await self._mastership.find(key) == self._mastership.sid:
            if not self._mastership.may_number(key):
                await self._mastership.get_ready(key)
            await self.join_branches(key)
        return not self._store.has_waiting(key.mailbox_id)

    def _note_commit(self, commit: Commit) -> None:
        applied = {entry.dot for entry in commit.applied}
        for entry in commit.applied:
            if any(isinstance(change, Merge | TreeMerge | FolderCreate | FolderRename) for change in entry.changes):
                self._users.add(entry.user)
                self._found.set()
        for item in commit.logged:
            entry = item.entry
            if entry.dot not in applied:
                self._suspect(MailboxKey(entry.user, entry.mailbox_id, entry.uidvalidity))

    def _suspect(self, key: MailboxKey) -> None:
        self._suspects[key] = None
        self._suspects.move_to_end(key)
        self._found.set()
