"""Making one mailbox or tree what it is at another node too (design sections 3 and 7).

Where this node is merely behind, it steps to the other's head. Where both have gone on, the mailbox's master joins the
two branches by a merge. What another branch shows follows from the log, if that is short; else a node that shows it is
asked (SYNC); if there is none, the log is replayed however long it is, or from a checkpoint on.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from enum import Enum
from functools import partial
from typing import TypeVar

import trio

from protocol.commands import Done, Mismatch
from protocol.values import Dot, context_dots, covers
from replicator.config import UidConflict
from replicator.errors import HistoryError, MailboxFullError, MailError, UnavailableError
from replicator.replication import syncing
from replicator.replication.bases import BaseSource
from replicator.replication.comparison import NOT_LOGGED, ask
from replicator.replication.link import LinkDownError
from replicator.replication.mastership import Mastership
from replicator.replication.syncing import Learned, State
from replicator.store import branches, history, reading
from replicator.store import chain as chains
from replicator.store.adopting import Adoption, DamageError, adopt
from replicator.store.chain import Chain
from replicator.store.past import Base
from replicator.store.reading import MailboxKey
from replicator.store.store import Store
from replicator.store.transaction import Transaction
from resync.bulk import Item
from resync.entry import FolderState, Merge, SubscriptionState, TreeMerge
from resync.row import Row
from resync.state import ContradictionError

log = logging.getLogger(__name__)

T = TypeVar("T")

PLANS_MAX = 3  # of one merge, while the mailbox goes on; then the writer waits for it
SHORT_MODSEQ = 2000  # a history of so many entries is replayed in the time of a few round trips
LEARN_AT_ONCE = 4  # mailboxes whose rows are in memory; a node that answers slowly must not hold up all others
LOG_FIRST_S = 0.5  # entries that are on their way need no SYNC
TRIES = 5  # of a mailbox that goes on here while it is compared


class Outcome(Enum):
    """What came of comparing a mailbox with another node."""

    SAME = "same"
    ADOPTED = "adopted"  # this node was behind, and shows now what the other one shows
    MERGED = "merged"
    AHEAD = "ahead"  # the other node has seen nothing that this one has not
    NOT_OURS = "not ours"  # the mailbox has forked, and its master, another node, has been told
    APART = "apart"  # it has forked, and cannot be joined
    DAMAGED = "damaged"  # one of them does not show what it has seen: `replicator check` at both


class Joiner:
    """Belongs to the event loop."""

    def __init__(self, store: Store, mastership: Mastership, bases: BaseSource, uid: UidConflict) -> None:
        self._store = store
        self._mastership = mastership
        self._bases = bases
        self._uid = uid
        self._hopeless: set[Dot] = set()  # heads of branches that no honest node has; no more than there are entries
        self._joining: dict[bytes, trio.Event] = {}
        self._learning = trio.Semaphore(LEARN_AT_ONCE)
        self._reading = trio.Lock()  # of histories and mailboxes: the store's other reader is left to clients

    async def catch_up(self, key: MailboxKey) -> None:
        """Ask all nodes of the component for the head of one mailbox; take what they have more, or join it.

        For its master only. Waits as long as a node that has more can be reached. Raises MailError or sqlite3.Error if
        a branch cannot be joined, such as on a full disk.
        """
        failures: list[MailError | sqlite3.Error] = []

        async def try_to_catch_up_with(sid: str) -> None:
            try:
                await self._catch_up_with(sid, key)
            except (MailError, sqlite3.Error) as error:  # a nursery would hide what it is from those who handle it
                failures.append(error)
            except LinkDownError:
                return

        async with trio.open_nursery() as nursery:
            for sid in self._mastership.table.component:
                if sid != self._mastership.sid:
                    nursery.start_soon(try_to_catch_up_with, sid)
        if failures:
            raise failures[0]

    async def _catch_up_with(self, sid: str, key: MailboxKey) -> None:
        mine = await self._chain(key)
        reply = await ask(self._mastership.toward(sid), sid, key, mine)
        if not isinstance(reply, Mismatch) or reply.head is None:
            return
        with trio.move_on_after(LOG_FIRST_S):
            await self._store.wait_logged(reply.head)
        while not (await self._chain(key)).has_seen(reply.head):
            await self.join_branches(key)
            outcome = await self.reconcile(key, sid)
            if outcome in {Outcome.APART, Outcome.DAMAGED, Outcome.NOT_OURS}:
                return

    async def reconcile(self, key: MailboxKey, sid: str) -> Outcome:
        """Compare one mailbox with one node, and take over or join what differs.

        Raises UnavailableError if the node cannot be asked, or the mailbox does not keep still; LinkDownError;
        MailError or sqlite3.Error if that cannot be written.
        """
        async with self._alone(key):
            for _ in range(TRIES):
                outcome = await self._reconcile(key, sid)
                if outcome is not None:
                    return outcome
        raise UnavailableError(f"{await self.name(key)} changes faster than it can be compared")

    async def _reconcile(self, key: MailboxKey, sid: str) -> Outcome | None:
        """None: the mailbox has gone on meanwhile."""
        mine = await self._chain(key)
        reply = await ask(self._mastership.toward(sid), sid, key, mine)
        if isinstance(reply, Done) or (isinstance(reply, Mismatch) and reply.fields == (NOT_LOGGED,)):
            return Outcome.SAME
        if not isinstance(reply, Mismatch):
            raise UnavailableError(f"{sid} does not say what it shows of {await self.name(key)}")
        theirs = {dot.origin: dot.seq for dot in reply.context}
        if covers(mine.context, theirs):
            return await self._damaged(key, sid, mine) if covers(theirs, mine.context) else Outcome.AHEAD
        if covers(theirs, mine.context):
            return await self._adopt(key, sid)  # if it still is so when both have been read
        if reply.head in self._hopeless:
            return Outcome.APART
        if not self._mastership.is_ours(key):
            return await self._tell_master(key, mine)
        return await self._join_shown(key, sid)

    async def _damaged(self, key: MailboxKey, sid: str, mine: Chain) -> Outcome | None:
        if (await self._chain(key)).digest() != mine.digest():
            return None
        log.warning(
            "%s is damaged at this node or at %s, which have seen the same of it: run `replicator check --repair` at"
            " both", await self.name(key), sid,
        )  # fmt: skip
        return Outcome.DAMAGED

    async def _tell_master(self, key: MailboxKey, mine: Chain) -> Outcome | None:
        master = await self._mastership.find(key)
        if master == self._mastership.sid:
            return None
        await ask(self._mastership.toward(master), master, key, mine)
        return Outcome.NOT_OURS

    async def _adopt(self, key: MailboxKey, sid: str) -> Outcome | None:
        learned = await syncing.learn(self._store, self._mastership, sid, key)
        if learned is None or not _is_behind(learned.ours.chain, learned.theirs):
            return None
        ours = learned.ours
        adoption = Adoption(key, ours.chain.head, learned.theirs, _step(learned), is_damaged=not ours.adds_up)
        try:
            adopted = await self._store.write(partial(adopt, adoption=adoption))
        except (HistoryError, DamageError, sqlite3.IntegrityError) as error:
            log.warning("%s is not taken over from %s: %s; run `replicator check --repair` at both",
                        await self.name(key), sid, error)  # fmt: skip
            return Outcome.DAMAGED
        return Outcome.ADOPTED if adopted else None

    # ---- forks

    async def join_branches(self, key: MailboxKey) -> None:
        """Join all branches of a mailbox that are in the log whole. For its master only."""
        async with self._alone(key):
            for head in await self._store.read(partial(branches.branch_heads, chain_id=key.mailbox_id)):
                if head not in self._hopeless:
                    await self._join_branch(key, head)

    async def _join_branch(self, key: MailboxKey, head: Dot) -> None:
        entry = await self._store.read(partial(reading.entry_at, dot=head))
        is_short = entry is not None and entry.modseq <= SHORT_MODSEQ
        ways = (self._join_replayed, self._join_shown_anywhere)
        for way in (*(ways if is_short else reversed(ways)), self._join_replayed_from_checkpoint):
            if await way(key, head) is not None:
                return

    async def _join_replayed(self, key: MailboxKey, head: Dot, base: Base | None = None) -> Outcome | None:
        """None: the log does not tell what the branch shows, or this node has gone on."""
        term = self._mastership.masters.term
        try:
            async with self._reading:
                branch = await self._store.read(partial(branches.replay_branch, head=head, base=base))
        except ContradictionError as error:
            return await self._keep_apart(key, head, error)
        return await self._join(key, head, branch, term) if branch is not None else None

    async def _join_replayed_from_checkpoint(self, key: MailboxKey, head: Dot) -> Outcome | None:
        """None: there is none that leads there, or it cannot be read now, or this node has gone on."""
        base = await self._bases.base_of(key.mailbox_id, head)
        return await self._join_replayed(key, head, base) if base is not None else None

    async def _join_shown_anywhere(self, key: MailboxKey, head: Dot) -> Outcome | None:
        """None: no node shows the branch, or one that does or this one has gone on."""
        for sid in await self._who_shows(key, head):
            with suppress(UnavailableError, LinkDownError):
                outcome = await self._join_shown(key, sid)
                if outcome is not None:
                    return outcome
        return None

    async def _who_shows(self, key: MailboxKey, head: Dot) -> list[str]:
        """Nodes that can be reached and have seen the branch, but not what this node shows."""
        mine = await self._chain(key)
        found = []
        for sid in self._mastership.table.component:
            if sid != self._mastership.sid:
                reply = await ask(self._mastership.toward(sid), sid, key, mine)
                if isinstance(reply, Mismatch):
                    theirs = {dot.origin: dot.seq for dot in reply.context}
                    if theirs.get(head.origin, 0) >= head.seq and not covers(theirs, mine.context):
                        found.append(sid)
        return found

    async def _join_shown(self, key: MailboxKey, sid: str) -> Outcome | None:
        """Join what another node shows. None: it or this node has gone on."""
        term = self._mastership.masters.term
        async with self._learning:
            learned = await syncing.learn(self._store, self._mastership, sid, key, with_rows=True)
        if learned is None:
            return None
        head, context = learned.theirs.head, learned.theirs.context
        assert head is not None
        check = partial(branches.check_apart, chain_id=key.mailbox_id, head=head, context=context)
        own = Dot(self._store.origin, self._store.context.get(self._store.origin, 0))
        wrong = history.why_not_shown(_step(learned), own)
        if wrong:
            return await self._keep_apart(key, head, f"{sid} shows {wrong}")
        try:
            await self._store.read(check)
        except ContradictionError as error:
            return await self._keep_apart(key, head, error)
        return await self._join(key, head, learned.state(), term)

    async def _join(self, key: MailboxKey, head: Dot, branch: State, term: int) -> Outcome | None:
        """Join a branch to what this node shows. None if that was done meanwhile, or is not this node's to do."""
        try:
            joined = await self._merge(key, head, branch, term)
        except (ContradictionError, MailboxFullError) as error:
            return await self._keep_apart(key, head, error)
        if not joined:
            return None
        log.info("joined two branches of %s", await self.name(key))
        return Outcome.MERGED

    async def _keep_apart(self, key: MailboxKey, head: Dot, why: Exception | str) -> Outcome:
        log.warning("a branch of %s is not joined and stays apart: %s", await self.name(key), why)
        self._hopeless.add(head)
        return Outcome.APART

    async def _merge(self, key: MailboxKey, head: Dot, branch: State, term: int) -> bool:
        """Whether the branch was joined here and now. Raises ContradictionError, MailboxFullError."""
        for _ in range(PLANS_MAX):
            async with self._reading:
                plan = await self._store.read(
                    partial(branches.plan_merge, key=key, head=head, branch=branch, uid=self._uid)
                )
            if plan is None or not self._is_still_ours(key, term):
                return False
            if await self._write(key, term, partial(branches.carry_out, plan=plan)):
                return True
        return await self._write(
            key, term, partial(branches.merge_branch, key=key, head=head, branch=branch, uid=self._uid)
        )

    async def _write(self, key: MailboxKey, term: int, join: Callable[[Transaction], Dot | None]) -> bool:
        """Whether the branches were joined: not if, in the writer's turn, the mailbox is another node's to number."""
        return await self._store.write(lambda tx: self._is_still_ours(key, term) and join(tx) is not None)

    def _is_still_ours(self, key: MailboxKey, term: int) -> bool:
        """Any thread may ask."""
        return self._mastership.masters.term == term and self._mastership.is_ours(key)

    # ---- helpers

    async def name(self, key: MailboxKey) -> str:
        """As operators know it."""
        if key.uidvalidity == 0:
            return f"the folder tree of {key.user}"
        with suppress(sqlite3.Error):
            name = await self._store.read(partial(reading.folder_name, mailbox_id=key.mailbox_id))
            if name is not None:
                return f"folder {name!r} of {key.user}"
        return f"mailbox {key.mailbox_id.hex()} of {key.user}"

    async def _chain(self, key: MailboxKey) -> Chain:
        chain = await self._store.read(partial(chains.load, chain_id=key.mailbox_id))
        return chain or Chain(key.mailbox_id, key.user, key.uidvalidity)

    @asynccontextmanager
    async def _alone(self, key: MailboxKey) -> AsyncIterator[None]:
        """One at a time joins a mailbox."""
        while (joining := self._joining.get(key.mailbox_id)) is not None:
            await joining.wait()
        joined = self._joining[key.mailbox_id] = trio.Event()
        try:
            yield
        finally:
            del self._joining[key.mailbox_id]
            joined.set()


def _is_behind(ours: Chain, theirs: Chain) -> bool:
    """Whether the other node has seen all that this one has, and more."""
    return covers(theirs.context, ours.context) and not covers(ours.context, theirs.context)


def _step(learned: Learned) -> Merge | TreeMerge:
    """What takes this node from its head to the other's."""
    theirs, items = learned.theirs, learned.items.values()
    context = context_dots(theirs.context)
    if theirs.uidvalidity == 0:
        return TreeMerge(context, tuple(_of(items, FolderState)), tuple(_of(items, SubscriptionState)))
    rows = sorted(_of(items, Row), key=lambda row: row.uid)
    return Merge(theirs.uidnext, theirs.risen, context, tuple(rows), tuple(sorted(learned.gone)))


def _of(items: Iterable[Item], kind: type[T]) -> list[T]:
    return [item for item in items if isinstance(item, kind)]
