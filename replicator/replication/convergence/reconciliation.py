"""Makes one mailbox or tree equal at this node and another (design sections 3 and 7).

If this node is merely behind, it adopts the other's head. If both have moved on, the mailbox's master joins the two
branches; any other node reports the fork to the master.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial

import trio

from protocol.commands import Done, Mismatch
from protocol.values import context_of, covers
from replicator.errors import HistoryError, UnavailableError
from replicator.replication import timing
from replicator.replication.convergence import sync_client
from replicator.replication.convergence.fork_merge import ForkMerger, chain_of, learned_step, name_of
from replicator.replication.convergence.sync_client import Learned
from replicator.replication.links.link import LinkDownError
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.parallel import in_turns
from replicator.replication.writes.head_exchange import ask, tell_master
from replicator.store.db.chain import Chain
from replicator.store.db.queries import MailboxKey
from replicator.store.log.forks import MiscountedError
from replicator.store.log.snapshot_install import Adoption, DamageError, adopt
from replicator.store.store import Store

log = logging.getLogger(__name__)

WARNED_MAX = 1000  # damaged mailboxes and the nodes that show them otherwise, in the log of one run
TRIES = 5  # comparisons of a mailbox that changes here meanwhile


class Outcome(Enum):
    """Result of comparing a mailbox with another node."""

    SAME = "same"
    ADOPTED = "adopted"  # this node was behind, and now shows the other node's state
    MERGED = "merged"
    AHEAD = "ahead"  # the other node has seen nothing that this node has not
    NOT_OURS = "not ours"  # the mailbox has forked; its master, another node, was told
    APART = "apart"  # the mailbox has forked and cannot be joined
    DAMAGED = "damaged"  # one of the nodes does not show what it has seen: run `replicator check` at both


class Reconciliation:
    """The comparison of mailboxes with other nodes, and their adoption or join. Belongs to the event loop."""

    def __init__(self, store: Store, mastership: Mastership, fork_merger: ForkMerger) -> None:
        self._store = store
        self._mastership = mastership
        self._fork_merger = fork_merger
        self._warned: set[tuple[bytes, str]] = set()  # mailboxes that are damaged here or at a node

    async def catch_up(self, key: MailboxKey) -> None:
        """Ask all nodes of the component for the head of one mailbox, and adopt or join what this node lacks.

        Only the mailbox's master calls this. It waits for as long as a node that has more can be reached. State that is
        unavailable because rows are damaged at either node is logged and skipped, since it must not keep clients from
        writing. Raises MailError if the state cannot be written, such as on a full disk.
        """
        others = [sid for sid in self._mastership.table.component if sid != self._mastership.sid]
        await in_turns(partial(self._try_to_catch_up_with, key), others, len(others))

    async def _try_to_catch_up_with(self, key: MailboxKey, sid: str) -> None:
        try:
            with suppress(LinkDownError):
                await self._catch_up_with(sid, key)
        except UnavailableError as error:
            name = await name_of(self._store, key)
            log.warning("%s continues here without the newer changes of %s: %s", name, sid, error)

    async def _catch_up_with(self, sid: str, key: MailboxKey) -> None:
        mine = await chain_of(self._store, key)
        reply = await ask(self._mastership.toward(sid), sid, key, mine)
        if not isinstance(reply, Mismatch) or reply.head is None:
            return
        if reply.head == mine.head:
            await self.reconcile(key, sid)
            return
        with trio.move_on_after(timing.RECONCILIATION_LOG_FIRST_S):
            await self._store.wait_logged(reply.head)
        while not (mine := await chain_of(self._store, key)).has_seen(reply.head):
            if not covers(context_of(reply.context), mine.context):
                await self._fork_merger.join_branches(key)
            outcome = await self.reconcile(key, sid)
            if outcome not in {Outcome.ADOPTED, Outcome.MERGED}:
                return  # it is unavailable now, or the node does not show the head that it named

    async def reconcile(self, key: MailboxKey, sid: str) -> Outcome:
        """Compare one mailbox with one node, and adopt or join the difference.

        Raises UnavailableError if the node cannot be asked or the mailbox keeps changing; LinkDownError; MailError
        if the result cannot be written.
        """
        async with self._fork_merger.alone(key):
            for _ in range(TRIES):
                outcome = await self._reconcile(key, sid)
                if outcome is not None:
                    return outcome
        raise UnavailableError(f"{await name_of(self._store, key)} changes faster than it can be compared")

    async def _reconcile(self, key: MailboxKey, sid: str) -> Outcome | None:
        """Compare once; None: the mailbox has changed meanwhile."""
        mine = await chain_of(self._store, key)
        if mine.head is None and (outcome := await self._adopt(key, sid)) is not None:
            return outcome  # whatever that node has is more: a new node need not ask which head it is
        reply = await ask(self._mastership.toward(sid), sid, key, mine)
        if isinstance(reply, Done):
            return Outcome.SAME
        if not isinstance(reply, Mismatch):
            raise UnavailableError(f"{sid} did not report its state of {await name_of(self._store, key)}")
        theirs = context_of(reply.context)
        if covers(mine.context, theirs):
            return await self._join_histories(key, sid, mine) if covers(theirs, mine.context) else Outcome.AHEAD
        if covers(theirs, mine.context):
            return await self._adopt(key, sid)  # checked again after both have been read
        if self._fork_merger.is_hopeless(reply.head):
            return Outcome.APART
        if not self._mastership.is_ours(key):
            return await self._tell_master(key, mine)
        try:
            joined = await self._fork_merger.join_shown(key, sid)
        except MiscountedError:  # already logged
            return Outcome.DAMAGED
        return None if joined is None else Outcome.MERGED if joined else Outcome.APART

    async def _join_histories(self, key: MailboxKey, sid: str, mine: Chain) -> Outcome | None:
        """Join two states of the same entries, which is possible if only their histories differ.

        One of the nodes has been damaged, or has got an entry from a node that had corrected bodies in it. The rows are
        the same, so it does not matter whose history is right, and the merge names both.
        """
        theirs: Chain | None = None
        with suppress(sync_client.DamagedError):
            theirs = await sync_client.head_at(self._mastership, sid, key)
            if theirs is None or theirs.context != mine.context:
                return None
        if (await chain_of(self._store, key)).digest() != mine.digest():
            return None
        if theirs is None or mine.head is None or replace(theirs, history=mine.history).digest() != mine.digest():
            return await self._damaged(key, sid)
        if not self._mastership.is_ours(key):
            await self._tell_master(key, theirs)  # the master may have the same history as this node
            return await self._tell_master(key, mine)
        joined = await self._fork_merger.join_histories(key, mine.head, theirs.history)
        return Outcome.MERGED if joined else None

    async def _damaged(self, key: MailboxKey, sid: str) -> Outcome:
        """Log, once, that the mailbox is damaged at this node or at the other."""
        if (key.mailbox_id, sid) in self._warned or len(self._warned) >= WARNED_MAX:
            return Outcome.DAMAGED
        self._warned.add((key.mailbox_id, sid))
        log.warning(
            "%s is damaged at this node or at %s: both have seen the same entries but show different content; run"
            " `replicator check --repair` at both", await name_of(self._store, key), sid,
        )  # fmt: skip
        return Outcome.DAMAGED

    async def _tell_master(self, key: MailboxKey, mine: Chain) -> Outcome | None:
        master = None
        with trio.move_on_after(timing.RECONCILIATION_FIND_TIMEOUT_S):
            master = await self._mastership.find(key)
        if master is None:
            raise UnavailableError(f"no node names the master of {await name_of(self._store, key)}")
        if master == self._mastership.sid:
            return None
        await tell_master(self._mastership, master, key, mine)
        return Outcome.NOT_OURS

    async def restore(self, key: MailboxKey, sid: str) -> Outcome:
        """Replace rows damaged here with those of a node that shows what this node's head counts (see `can_restore`).

        Raises the errors of `reconcile`.
        """
        async with self._fork_merger.alone(key):
            learned = await sync_client.learn(self._store, self._mastership, sid, key, anew=True)
            if learned is None or not can_restore(learned):
                return Outcome.DAMAGED
            return await self._take_over(learned, sid) or Outcome.DAMAGED

    async def _adopt(self, key: MailboxKey, sid: str, *, anew: bool = False) -> Outcome | None:
        """Adopt the other node's state.

        If the digests do not match, rows may be damaged; only hashing all rows reveals that, so the second try does.
        """
        learned = await sync_client.learn(self._store, self._mastership, sid, key, anew=anew)
        if learned is None or not _is_behind(learned.ours.chain, learned.theirs):
            return None
        outcome = await self._take_over(learned, sid)
        return await self._adopt(key, sid, anew=True) if outcome is Outcome.DAMAGED and not anew else outcome

    async def _take_over(self, learned: Learned, sid: str) -> Outcome | None:
        key, ours = learned.key, learned.ours
        step = learned_step(learned)
        adoption = Adoption(key, ours.chain.head, learned.theirs, step, learned.time, is_damaged=not ours.adds_up)
        try:
            adopted = await self._store.write(partial(adopt, adoption=adoption))
        except (HistoryError, DamageError) as error:
            log.warning("cannot adopt %s from %s: %s; run `replicator check --repair` at both",
                        await name_of(self._store, key), sid, error)  # fmt: skip
            return Outcome.DAMAGED
        return Outcome.ADOPTED if adopted else None


def can_restore(learned: Learned) -> bool:
    """Return True if this node's rows are damaged and the other node's digest equals what this node's head counts."""
    return not learned.ours.adds_up and learned.theirs.digest() == learned.ours.chain.digest()


def _is_behind(ours: Chain, theirs: Chain) -> bool:
    """Return True if the other node has seen everything that this node has, and more."""
    return covers(theirs.context, ours.context) and not covers(ours.context, theirs.context)
