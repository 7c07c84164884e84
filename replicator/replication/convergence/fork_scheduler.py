"""Schedules the joining of branches at the master of a mailbox whose history has forked (design section 3).

Entries of another branch wait in every node's log. Each node that has such a branch completely asks for the mailbox's
master; only the master joins the branch, the most recently used mailboxes first, and ships the merge like any other
entry. Until the merge arrives, every other node goes on showing its own branch. If the log does not bring a branch, the
master learns of it from a node that shows it.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from protocol.commands import Reply
from protocol.values import UidSet
from replicator.errors import DatabaseFailedError, MailError, UnavailableError
from replicator.replication import timing
from replicator.replication.convergence.fork_merge import ForkMerger, name_of
from replicator.replication.convergence.reconciliation import Outcome, Reconciliation
from replicator.replication.links.link import LinkDownError
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.writes.requests import ChangeRequest, CopyRequest, ExpungeRequest
from replicator.runtime.signals import Signal
from replicator.store.db import chain as chains
from replicator.store.db.queries import Connection, MailboxKey
from replicator.store.db.transaction import Commit
from replicator.store.log import forks
from replicator.store.store import Store
from resync.entry import Entry, FolderCreate, FolderRename, MailAdd, Merge, TreeMerge

log = logging.getLogger(__name__)

T = TypeVar("T")

Submit = Callable[[ChangeRequest], Awaitable[Reply]]
"""The signature of `Coordinator.carry_out`."""

AT_ONCE = 8  # mailboxes in parallel: some wait for answers while others read or write; two states in memory each
TOLD_AT_ONCE = 4  # mailboxes that other nodes report, in parallel; separate workers, since they may take long
TOLD_MAX = 100_000  # reported mailboxes that wait for their turn, about 200 bytes each; others are reported again
GATHER_AT_ONCE = 5000  # messages per entry
GONE_MAX = 10_000  # folders deleted lately, 100 bytes each; mail that comes to others is found by the regular look
WARNED_MAX = 1000  # mailboxes whose history was found to differ, in the log of one run


@dataclass(slots=True)
class _Growth:
    """Arrival times of the first and last waiting entry of a mailbox."""

    first: float
    last: float

    def goes_on(self, now: float) -> bool:
        return (
            now - self.last < timing.FORK_SCHEDULER_QUIET_S and now - self.first < timing.FORK_SCHEDULER_GROWING_MAX_S
        )


class ForkScheduler:
    """The scheduler of joins, for several mailboxes in parallel. Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        mastership: Mastership,
        fork_merger: ForkMerger,
        reconciliation: Reconciliation,
        submit: Submit,
        *,
        new_guid: Callable[[], bytes],
    ) -> None:
        self._store = store
        self._mastership = mastership
        self._fork_merger = fork_merger
        self._reconciliation = reconciliation
        self._submit = submit
        self._new_guid = new_guid
        self._shown_elsewhere: set[MailboxKey] = set()  # mailboxes that may be mastered here, of which others show more
        self._tell, self._told = trio.open_memory_channel[MailboxKey](math.inf)  # bounded by `_shown_elsewhere`
        self._growing: dict[bytes, _Growth] = {}
        self._warned: set[bytes] = set()  # mailboxes and trees of which an entry names another history
        self._refused: dict[bytes, float] = {}  # mailboxes that have lost their rows -> time of the next try
        self._users: OrderedDict[str, None] = OrderedDict()  # users with folders that may have become one
        self._gone: OrderedDict[bytes, None] = OrderedDict()  # mailboxes whose folder is gone; the latest last
        self._suspects: OrderedDict[MailboxKey, None] = OrderedDict()  # most recently used last
        self._found = Signal()
        store.listeners.append(self._note_commit)

    async def run(self, heartbeat_s: float) -> None:
        """Handle mailboxes with waiting entries, several at once, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._remember)
            nursery.start_soon(self._watch_for_strays)
            nursery.start_soon(self._work, heartbeat_s)
            for _ in range(TOLD_AT_ONCE):
                nursery.start_soon(self._catch_up)

    async def _remember(self) -> None:
        """Suspect all chains whose entries were waiting when this node last stopped."""
        for key in reversed(await self._read(forks.waiting_chains)):
            self._suspect(key)

    async def _watch_for_strays(self) -> None:
        """Suspect users with mail in deleted folders, where a client that has one open may add mail at any time."""
        while True:
            for user in await self._read(forks.users_with_strays):
                self._suspect_strays(user)
            await trio.sleep(timing.FORK_SCHEDULER_STRAYS_EVERY_S)

    async def _read(self, query: Callable[[Connection], T]) -> T:
        """Read as `Store.read` does, retrying for as long as the database fails."""
        while True:
            try:
                return await self._store.read(query)
            except DatabaseFailedError as error:
                log.warning("cannot look for forks: the database failed: %s", error)
                await trio.sleep(timing.FORK_SCHEDULER_RETRY_S)

    async def _work(self, heartbeat_s: float) -> None:
        while True:
            await self._found.wait()
            await trio.sleep(timing.FORK_SCHEDULER_PATIENCE_S)
            self._found.clear()
            undone: list[str | MailboxKey] = []
            async with trio.open_nursery() as nursery:
                for _ in range(AT_ONCE):
                    nursery.start_soon(self._take_turns, undone)
            for item in undone:
                if isinstance(item, str):
                    self._users.setdefault(item)
                else:
                    self._suspects.setdefault(item)
            if undone:
                with trio.move_on_after(timing.FORK_SCHEDULER_QUIET_S if self._growing else heartbeat_s):
                    await self._found.wait()
                self._found.set()

    async def _take_turns(self, undone: list[str | MailboxKey]) -> None:
        """Handle what was found until nothing is left; add to `undone` what must be looked at again later."""
        while self._users or self._suspects:
            item: str | MailboxKey
            if self._users:
                item, _ = self._users.popitem(last=False)
                work = partial(self._gather, item)
            else:
                item, _ = self._suspects.popitem()
                work = partial(self._look_after, item)
            try:
                if not await work():
                    undone.append(item)
            except MailError as error:
                what = f"the folders of {item}" if isinstance(item, str) else await name_of(self._store, item)
                log.warning("cannot merge branches of %s yet: %s", what, error)
                undone.append(item)

    async def _gather(self, user: str) -> bool:
        """Move stray mail to the folders that bear its folders' names now, as far as this node masters its mailboxes.

        Branches are joined first, so that a copy does not bring back what another branch has expunged. Returns True if
        no stray mail is left.
        """
        for source in dict.fromkeys(stray.source for stray in await self._strays(user)):
            if not await self._is_ours(source) or self._store.has_waiting(source.mailbox_id):
                continue
            for stray in await self._strays(user, source):
                await self._move(stray)
        return not await self._strays(user)

    async def _strays(self, user: str, source: MailboxKey | None = None) -> list[forks.StrayMail]:
        """Return the user's stray mail, of one folder or all. Raises DatabaseFailedError."""
        found = await self._store.read(partial(forks.strays, user=user))
        return [stray for stray in found if source in {None, stray.source}]

    async def _move(self, stray: forks.StrayMail) -> None:
        """Copy stray mail, and expunge what is in the destination by a later placement when all is copied."""
        await self._copy(stray, stray.to_copy)
        await self._copy(stray, stray.to_copy_anew, anew=True)
        anew = {guid for _, guid in stray.to_copy_anew}
        for now in await self._strays(stray.source.user, stray.source):
            if now.destination != stray.destination:
                continue
            safe = [*now.to_expunge, *(one for one in now.to_copy_anew if one[1] in anew)]
            for start in range(0, len(safe), GATHER_AT_ONCE):
                some = UidSet.of(uid for uid, _ in safe[start : start + GATHER_AT_ONCE])
                await self._submit(ExpungeRequest(stray.source, some, now.head))

    async def _copy(self, stray: forks.StrayMail, mail: Sequence[tuple[int, bytes]], *, anew: bool = False) -> None:
        for start in range(0, len(mail), GATHER_AT_ONCE):
            uids, guids = zip(*mail[start : start + GATHER_AT_ONCE], strict=True)
            # With spare GUIDs equal to the GUIDs, a retry before the first try is shown here adds no copy.
            spares = tuple(self._new_guid() for _ in guids) if anew else guids
            await self._submit(CopyRequest(stray.source, stray.destination, UidSet.of(uids), guids, spares))

    @property
    def to_compare(self) -> int:
        """Number of mailboxes and trees that other nodes have reported and that wait for their turn, or have it."""
        return len(self._shown_elsewhere)

    def lacks(self, key: MailboxKey) -> None:
        """Note that another node shows something that this node, perhaps the mailbox's master, has not seen.

        The other node repeats its report until the master has seen it.
        """
        if key not in self._shown_elsewhere and len(self._shown_elsewhere) < TOLD_MAX:
            self._shown_elsewhere.add(key)
            self._tell.send_nowait(key)

    def suspect(self, key: MailboxKey) -> None:
        """Look at the mailbox soon, since it has waiting entries."""
        self._suspect(key)

    async def _catch_up(self) -> None:
        """Catch up with the nodes that reported something, one mailbox after the other, until cancelled."""
        async for key in self._told:
            self._mastership.doubt(key)  # the node that reports it takes this one for the master
            try:
                if await self._is_ours(key):
                    with trio.move_on_after(timing.FORK_SCHEDULER_CATCH_UP_S):
                        await self._reconciliation.catch_up(key)
            except MailError as error:
                log.warning("cannot merge branches of %s yet: %s", await name_of(self._store, key), error)
            self._shown_elsewhere.discard(key)
            self._suspect(key)

    async def _look_after(self, key: MailboxKey) -> bool:
        """Handle a mailbox; return True if none of its entries wait any more."""
        if not self._store.has_waiting(key.mailbox_id):
            self._growing.pop(key.mailbox_id, None)
            return True
        doubted = await self._store.read(partial(forks.is_history_doubted, chain_id=key.mailbox_id))
        growth = self._growing.get(key.mailbox_id)
        if not doubted and growth is not None and growth.goes_on(trio.current_time()):  # no growth ends a doubt
            return False
        self._growing.pop(key.mailbox_id, None)
        if await self._store.read(partial(chains.is_lost, chain_id=key.mailbox_id)):
            await self._take_over(key)
            return not self._store.has_waiting(key.mailbox_id)
        if not await self._store.read(partial(forks.branch_heads, chain_id=key.mailbox_id)):
            return False
        if await self._is_ours(key):
            await self._fork_merger.join_branches(key)
        elif doubted:
            await self._follow_master(key)
        return not self._store.has_waiting(key.mailbox_id)

    async def _follow_master(self, key: MailboxKey) -> None:
        """Take over what the master shows, with its history: the log does not lead there from this node's."""
        master = self._mastership.known_master(key)
        if master is not None:
            with suppress(UnavailableError, LinkDownError):
                await self._reconciliation.reconcile(key, master)

    async def _take_over(self, key: MailboxKey) -> None:
        """Adopt a mailbox whose row is lost from any node that has seen all that was shown here."""
        if trio.current_time() < self._refused.get(key.mailbox_id, -math.inf):
            return
        for sid in [sid for sid in self._mastership.table.component if sid != self._mastership.sid]:
            with suppress(UnavailableError, LinkDownError):
                outcome = await self._reconciliation.reconcile(key, sid)
                if outcome is Outcome.ADOPTED:
                    self._refused.pop(key.mailbox_id, None)
                    return
                if outcome is Outcome.DAMAGED:  # already logged
                    self._refused[key.mailbox_id] = trio.current_time() + timing.FORK_SCHEDULER_LOST_EVERY_S

    async def _is_ours(self, key: MailboxKey) -> bool:
        """Return True if this node masters the mailbox, after it has seen what the other nodes have of it."""
        master = None
        with trio.move_on_after(timing.RECONCILIATION_FIND_TIMEOUT_S):
            master = await self._mastership.find(key)
        if master != self._mastership.sid:
            return False
        if not self._mastership.may_number(key):
            await self._mastership.get_ready(key)
        return True

    def _note_commit(self, commit: Commit) -> None:
        for entry in commit.mismatched.values():
            self._warn_of_history(entry)
        self._note_gone(commit.retired)
        applied = {entry.dot for entry in commit.applied}
        for entry in commit.applied:
            if _may_leave_strays(entry) or (entry.mailbox_id in self._gone and _adds_mail(entry)):
                self._suspect_strays(entry.user)
        for item in commit.logged:
            entry = item.entry
            if entry.dot not in applied:
                now = trio.current_time()
                self._growing.setdefault(entry.mailbox_id, _Growth(now, now)).last = now
                self._suspect(MailboxKey.of(entry))

    def _note_gone(self, mailbox_ids: Sequence[bytes]) -> None:
        """Note mailboxes to which clients that have them open may still add mail, which is stray then."""
        for mailbox_id in mailbox_ids:
            self._gone[mailbox_id] = None
            self._gone.move_to_end(mailbox_id)
        while len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)

    def _warn_of_history(self, entry: Entry) -> None:
        """Log an entry that names another history than this node's, once for each mailbox or tree."""
        if entry.mailbox_id in self._warned or len(self._warned) >= WARNED_MAX:
            return
        self._warned.add(entry.mailbox_id)
        log.warning(
            "entry %d of %s names another history of %s %s of %s than this node has: a node was damaged or changes what"
            " it passes on; the nodes become equal by themselves; run `replicator check` at all of them",
            entry.dot.seq, entry.dot.origin, "the tree" if entry.is_tree else "mailbox", entry.mailbox_id.hex(),
            entry.user,
        )  # fmt: skip

    def _suspect(self, key: MailboxKey) -> None:
        self._suspects[key] = None
        self._suspects.move_to_end(key)
        self._found.set()

    def _suspect_strays(self, user: str) -> None:
        self._users[user] = None
        self._found.set()


def _may_leave_strays(entry: Entry) -> bool:
    """Return True if a folder may have the name of a deleted one now. A user's first folders have nobody's."""
    if not entry.predecessors and not entry.is_merge:
        return False
    return any(isinstance(change, Merge | TreeMerge | FolderCreate | FolderRename) for change in entry.changes)


def _adds_mail(entry: Entry) -> bool:
    return any(isinstance(change, MailAdd) for change in entry.changes)
