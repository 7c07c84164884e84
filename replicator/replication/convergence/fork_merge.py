"""Joins the branches of one mailbox or tree by a merge, at its master (design section 3).

The state of another branch is replayed from the log if that is short; otherwise a node that shows the branch is asked
(SYNC); if there is none, the log is replayed at any length, or from a checkpoint.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import trio

from protocol.commands import Mismatch
from protocol.values import Dot, context_dots, context_of, covers
from replicator.config import UidConflict
from replicator.errors import DatabaseFailedError, HistoryError, MailboxFullError, UnavailableError
from replicator.replication import timing
from replicator.replication.checkpoints.checkpoint_reader import ReplayBases
from replicator.replication.convergence import sync_client
from replicator.replication.convergence.sync_client import Learned
from replicator.replication.links.link import LinkDownError
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.writes.head_exchange import ask
from replicator.store.db import entry_validation, queries
from replicator.store.db.chain import Chain
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log import forks
from replicator.store.log.forks import Branch, MiscountedError
from replicator.store.log.replay import Base
from replicator.store.store import Store
from resync.entry import Merge, TreeMerge
from resync.row import Row
from resync.state import ContradictionError

log = logging.getLogger(__name__)

T = TypeVar("T")

PLANS_MAX = 3  # plans of one merge, while the mailbox changes; after that the writer waits for the merge
SHORT_MODSEQ = 2000  # MODSEQ up to which a history can be replayed in the time of a few round trips
APART_MAX = 10_000  # number of such branches remembered
LEARN_AT_ONCE = 4  # mailboxes with rows in memory at once; a node that is slow to answer must not block others


@dataclass(frozen=True, slots=True)
class _Apart:
    """A branch that cannot be joined for now, and the time until which that is assumed."""

    chain_id: bytes
    why: str
    until: float
    pause_s: float


class ForkMerger:
    """The merger of branches, with one task at a time per mailbox. Belongs to the event loop."""

    def __init__(self, store: Store, mastership: Mastership, bases: ReplayBases, uid: UidConflict) -> None:
        self._store = store
        self._mastership = mastership
        self._bases = bases
        self._uid = uid
        self._apart: dict[Dot, _Apart] = {}  # by branch head; no honest node has such branches
        self._damaged: dict[bytes, float] = {}  # mailboxes whose rows do not add up -> time of the next try
        self._joining: dict[bytes, trio.Event] = {}
        self._learning = trio.Semaphore(LEARN_AT_ONCE)
        self._reading = trio.Lock()  # one long read at a time, so that the store's other reader is free for clients

    async def join_branches(self, key: MailboxKey) -> None:
        """Join all branches of a mailbox that are completely in the log. Only its master calls this.

        While the rows that this node shows are damaged, the branches stay apart.
        """
        if trio.current_time() < self._damaged.get(key.mailbox_id, -math.inf):
            return
        with suppress(MiscountedError):
            async with self.alone(key):
                for head in await self._store.read(partial(forks.branch_heads, chain_id=key.mailbox_id)):
                    if not self.is_hopeless(head):
                        await self._join_branch(key, head)

    async def can_replay(self, key: MailboxKey) -> bool:
        """Return True if a branch can be replayed from the log, with or without a checkpoint. Raises MailError."""
        for head in await self._store.read(partial(forks.branch_heads, chain_id=key.mailbox_id)):
            for base in (None, await self._bases.base_of(key.mailbox_id, head)):
                with suppress(ContradictionError):
                    async with self._reading:
                        if await self._store.read(partial(forks.replay_branch, head=head, base=base)) is not None:
                            return True
        return False

    def is_hopeless(self, head: Dot | None) -> bool:
        """Return True if the branch with that head could not be joined recently; it is tried again later."""
        apart = self._apart.get(head) if head is not None else None
        return apart is not None and trio.current_time() < apart.until

    def doubt(self, key: MailboxKey) -> None:
        """Allow an immediate new try at the mailbox's branches and rows, whatever earlier tries found."""
        self._apart = {
            head: replace(apart, until=-math.inf) if apart.chain_id == key.mailbox_id else apart
            for head, apart in self._apart.items()
        }

    def why_apart(self, chain_id: bytes) -> str | None:
        """Return why a waiting branch of the mailbox or tree could not be joined at the last try."""
        waiting = (apart for head, apart in self._apart.items() if self._store.is_waiting(head))
        return next((apart.why for apart in waiting if apart.chain_id == chain_id), None)

    async def _join_branch(self, key: MailboxKey, head: Dot) -> None:
        entry = await self._store.read(partial(queries.entry_at, dot=head))
        is_short = entry is not None and entry.modseq <= SHORT_MODSEQ
        ways = (self._join_replayed, self._join_shown_anywhere)
        for way in (*(ways if is_short else reversed(ways)), self._join_replayed_from_checkpoint):
            if await way(key, head) is not None:
                return

    async def _join_replayed(self, key: MailboxKey, head: Dot, base: Base | None = None) -> bool | None:
        """Join a branch replayed from the log; None: the log does not lead to it, or this node has moved on."""
        term = self._mastership.masters.term
        try:
            async with self._reading:
                branch = await self._store.read(partial(forks.replay_branch, head=head, base=base))
        except ContradictionError as error:
            return await self._keep_apart(key, head, error)
        return await self._join(key, branch, term) if branch is not None else None

    async def _join_replayed_from_checkpoint(self, key: MailboxKey, head: Dot) -> bool | None:
        """Join a branch replayed from a checkpoint.

        None: no checkpoint leads to it or can be read now, or this node has moved on.
        """
        base = await self._bases.base_of(key.mailbox_id, head)
        return await self._join_replayed(key, head, base) if base is not None else None

    async def _join_shown_anywhere(self, key: MailboxKey, head: Dot) -> bool | None:
        """Join a branch that another node shows; None: no node shows it, or either node has moved on."""
        for sid in await self._who_shows(key, head):
            try:
                joined = await self.join_shown(key, sid)
            except MiscountedError:
                raise
            except (UnavailableError, LinkDownError):
                continue
            if joined is not None:
                return joined
        return None

    async def _who_shows(self, key: MailboxKey, head: Dot) -> list[str]:
        """Return the reachable nodes that have seen the branch but not everything that this node shows."""
        mine = await chain_of(self._store, key)
        found = []
        for sid in self._mastership.table.component:
            if sid != self._mastership.sid:
                reply = await ask(self._mastership.toward(sid), sid, key, mine)
                if isinstance(reply, Mismatch):
                    theirs = context_of(reply.context)
                    if theirs.get(head.origin, 0) >= head.seq and not covers(theirs, mine.context):
                        found.append(sid)
        return found

    async def join_shown(self, key: MailboxKey, sid: str) -> bool | None:
        """Join what another node shows; return True if joined, False if that is impossible.

        None: one of the two nodes has moved on. Raises UnavailableError or LinkDownError if the other node cannot be
        asked, MiscountedError if this node's rows are damaged.
        """
        term = self._mastership.masters.term
        async with self._learning:
            learned = await sync_client.learn(self._store, self._mastership, sid, key, with_rows=True)
        if learned is None:
            return None
        head, context = learned.theirs.head, learned.theirs.context
        assert head is not None
        check = partial(forks.check_apart, chain_id=key.mailbox_id, head=head, context=context)
        own = Dot(self._store.origin, self._store.context.get(self._store.origin, 0))
        wrong = entry_validation.why_not_shown(learned_step(learned), own)
        if wrong:
            return await self._keep_apart(key, head, f"{sid} shows {wrong}")
        try:
            since = await self._store.read(check)
        except ContradictionError as error:
            return await self._keep_apart(key, head, error)
        branch = Branch(head, learned.theirs.history, learned.state(), learned.time, since)
        return await self._join(key, branch, term)

    async def join_histories(self, key: MailboxKey, head: Dot, history: bytes) -> bool:
        """Join another history of the head that this node shows; return False if this node has moved on.

        Only its master calls this.
        """
        term = self._mastership.masters.term
        merging = partial(forks.merge_histories, key=key, head=head, history=history)
        if not await self._write(key, term, merging):
            return False
        log.warning(
            "%s had two histories with the same content, now joined: one of the nodes was damaged or has had bodies"
            " corrected; run `replicator check` at all nodes", await name_of(self._store, key),
        )  # fmt: skip
        return True

    async def _join(self, key: MailboxKey, branch: Branch, term: int) -> bool | None:
        """Join a branch to what this node shows; return True if joined, False if that is impossible.

        None: already joined, or not this node's task. Raises MiscountedError.
        """
        try:
            joined = await self._merge(key, branch, term)
        except (ContradictionError, MailboxFullError) as error:
            return await self._keep_apart(key, branch.head, error)
        except HistoryError as error:  # the asking node was wrong; the branch itself may be fine
            log.warning("not merging branches of %s: %s", await name_of(self._store, key), error)
            return False
        except MiscountedError as error:
            now = trio.current_time()
            if now >= self._damaged.get(key.mailbox_id, -math.inf):  # log once per interval, not per request
                self._damaged[key.mailbox_id] = now + timing.FORK_MERGE_DAMAGED_EVERY_S
                log.warning(
                    "branches of %s cannot be merged and stay apart: %s", await name_of(self._store, key), error
                )
            raise
        self._damaged.pop(key.mailbox_id, None)
        self._apart.pop(branch.head, None)
        if not joined:
            return None
        log.info("merged two branches of %s", await name_of(self._store, key))
        return True

    async def _keep_apart(self, key: MailboxKey, head: Dot, why: Exception | str) -> bool:
        known = self._apart.get(head)
        if known is None or known.why != str(why):
            log.warning("cannot merge a branch of %s, which stays apart: %s", await name_of(self._store, key), why)
        pause_s = timing.FORK_MERGE_APART_S if known is None else min(2 * known.pause_s, timing.FORK_MERGE_APART_MAX_S)
        self._apart[head] = _Apart(key.mailbox_id, str(why), trio.current_time() + pause_s, pause_s)
        while len(self._apart) > APART_MAX:
            del self._apart[next(iter(self._apart))]
        return False

    async def _merge(self, key: MailboxKey, branch: Branch, term: int) -> bool:
        """Merge the branch; return True if it was joined here and now.

        Raises ContradictionError and the errors of `forks.plan_merge`.
        """
        planned = partial(forks.plan_merge, key=key, branch=branch, uid=self._uid)
        for _ in range(PLANS_MAX):
            async with self._reading:
                plan = await self._store.read(planned)
            if plan is None or not self._is_still_ours(key, term):
                return False
            if await self._write(key, term, partial(forks.carry_out, plan=plan)):
                return True
        merged = partial(forks.merge_branch, key=key, branch=branch, uid=self._uid)
        return await self._write(key, term, merged)

    async def _write(self, key: MailboxKey, term: int, join: Callable[[Transaction], Dot | None]) -> bool:
        """Write the merge; return False if, in the writer's turn, another node has become the mailbox's master."""
        return await self._store.write(lambda tx: self._is_still_ours(key, term) and join(tx) is not None)

    def _is_still_ours(self, key: MailboxKey, term: int) -> bool:
        """Return True if this node is still the mailbox's master in that term. Safe in any thread."""
        return self._mastership.masters.term == term and self._mastership.is_ours(key)

    @asynccontextmanager
    async def alone(self, key: MailboxKey) -> AsyncIterator[None]:
        """Lock the mailbox, so that one task at a time joins it or compares it with another node."""
        while (joining := self._joining.get(key.mailbox_id)) is not None:
            await joining.wait()
        joined = self._joining[key.mailbox_id] = trio.Event()
        try:
            yield
        finally:
            del self._joining[key.mailbox_id]
            joined.set()


async def name_of(store: Store, key: MailboxKey) -> str:
    """Return a mailbox's or tree's name for operators."""
    if key.uidvalidity == 0:
        return f"the folder tree of {key.user}"
    with suppress(DatabaseFailedError):
        name = await store.read(partial(queries.folder_name, mailbox_id=key.mailbox_id))
        if name is not None:
            return f"folder {name!r} of {key.user}"
    return f"mailbox {key.mailbox_id.hex()} of {key.user}"


async def chain_of(store: Store, key: MailboxKey) -> Chain:
    """Return this node's chain of a mailbox or tree, or an empty one. Raises DatabaseFailedError."""
    return await store.read(partial(queries.chain_or_empty, key=key))


def learned_step(learned: Learned) -> Merge | TreeMerge:
    """Return the change that takes this node from its head to the other node's."""
    theirs, items = learned.theirs, learned.items.values()
    context = context_dots(theirs.context)
    if theirs.uidvalidity == 0:
        return TreeMerge.of(context, items)
    rows = sorted((item for item in items if isinstance(item, Row)), key=lambda row: row.uid)
    return Merge(theirs.uidnext, theirs.risen, context, tuple(rows), tuple(sorted(learned.gone)))
