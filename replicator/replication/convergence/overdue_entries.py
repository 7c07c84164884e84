"""Handles entries that wait for longer than is possible while all nodes are linked (design section 7).

A waiting entry's predecessor is in the log of a linked node, or a merge has to include it. If neither arrives, this
node has a wrong belief about what it sent or received, about what peers have, or about a branch. So it discards these
beliefs: it rereads the waiting entries from disk, asks all peers for their logs again, resends what they lack, and
compares the mailbox with each of them, at growing intervals, until nothing waits.

Where thousands of mailboxes have forked, each waits for its turn. So as long as others that have waited for long cease
to wait, nothing is wrong with those that still do, unless that takes very long.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from protocol.values import Dot
from replicator.errors import MailError
from replicator.replication import timing
from replicator.replication.convergence.abandoned_entries import AbandonedEntries
from replicator.replication.convergence.fork_merge import ForkMerger, name_of
from replicator.replication.convergence.fork_scheduler import ForkScheduler
from replicator.replication.convergence.reconciliation import Outcome, Reconciliation
from replicator.replication.links.link import LinkDownError
from replicator.replication.log.feeds import Feeds
from replicator.replication.mastership.handover import Handover
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.mastership.reach import Reach
from replicator.replication.parallel import in_turns
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.queries import Connection, MailboxKey
from replicator.store.log import forks
from replicator.store.store import Store

log = logging.getLogger(__name__)

NEW_AT_ONCE = 100  # new mailboxes per look
AT_ONCE = 4  # mailboxes compared in parallel


_NOTHING_MORE = {Outcome.SAME, Outcome.AHEAD}


@dataclass(slots=True)
class Case:
    """A mailbox or tree with overdue entries.

    `why` is the reason for the first of them. `is_branch`: no predecessor is missing, but a branch is not joined.
    """

    key: MailboxKey
    dots: list[Dot]
    since: float
    why: str
    is_branch: bool
    try_at: float
    pause_s: float
    is_taken_over: bool = False

    def begin_again(self) -> None:
        """Reset the pauses, so that tries start again once all nodes are linked."""
        self.try_at, self.pause_s, self.is_taken_over = -math.inf, timing.OVERDUE_PAUSE_MIN_S / 2, False


class OverdueEntries:
    """The search for overdue entries, and their handling. Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        feeds: Feeds,
        mastership: Mastership,
        reach: Reach,
        *,
        fork_merger: ForkMerger,
        reconciliation: Reconciliation,
        fork_scheduler: ForkScheduler,
        handover: Handover,
        abandoned: AbandonedEntries,
    ) -> None:
        self._store = store
        self._feeds = feeds
        self._mastership = mastership
        self._reach = reach
        self._fork_merger = fork_merger
        self._reconciliation = reconciliation
        self._fork_scheduler = fork_scheduler
        self._handover = handover
        self._abandoned = abandoned
        self._since: dict[Dot, float] = {}  # when an entry was first seen waiting with all nodes linked
        self._went_on = -math.inf  # when one that had waited for long was last seen to wait no longer
        self._cases: dict[bytes, Case] = {}
        self.doubts = 0  # how often beliefs were discarded

    def entries(self, *, of_branches: bool) -> int:
        """Return the number of overdue entries of unjoined branches, or else of those that lack a predecessor."""
        return sum(self._count(case) for case in self._cases.values() if case.is_branch is of_branches)

    @property
    def reasons(self) -> Mapping[str, int]:
        """Number of overdue entries by reason."""
        found: dict[str, int] = {}
        for case in self._cases.values():
            found[case.why] = found.get(case.why, 0) + self._count(case)
        return {why: entries for why, entries in found.items() if entries}

    async def run(self) -> None:
        """Find and handle overdue entries until cancelled."""
        while True:
            await trio.sleep(timing.OVERDUE_LOOK_EVERY_S)
            try:
                await self._look()
            except MailError as error:
                log.warning("cannot handle overdue entries now: %s", error)

    async def _look(self) -> None:
        """Handle the overdue mailboxes that are due. Raises MailError."""
        overdue, now = self._overdue(), trio.current_time()
        for chain_id, case in list(self._cases.items()):
            case.dots = overdue.get(chain_id, case.dots)
            if not self._count(case):
                del self._cases[chain_id]
                log.info("no entries of %s are overdue any more", await name_of(self._store, case.key))
        new = [chain_id for chain_id in overdue if chain_id not in self._cases][:NEW_AT_ONCE]
        due = new + [chain_id for chain_id, case in self._cases.items() if chain_id in overdue and now >= case.try_at]
        if not due:
            return
        self.doubts += 1
        await self._store.reread_waiting()
        overdue = self._overdue()
        due = [chain_id for chain_id in due if chain_id in overdue]
        for chain_id in due:
            await self._note(chain_id, overdue[chain_id])
        if due:
            self._feeds.doubt()
        await in_turns(
            self._compare, [self._cases[chain_id].key for chain_id in due if chain_id in self._cases], AT_ONCE
        )

    def _count(self, case: Case) -> int:
        """Return how many of the case's entries still wait."""
        return sum(map(self._store.is_waiting, case.dots))

    def _overdue(self) -> dict[bytes, list[Dot]]:
        """Return the overdue entries by chain, in order of arrival.

        Empty while a node is out of reach: cases that were overdue before stay open, but nothing is done about them.
        """
        waiting, now = self._store.waiting, trio.current_time()
        if not self._reach.has_all_peers():
            self._since.clear()
            for case in self._cases.values():
                case.begin_again()
            return {}
        told = {dot for case in self._cases.values() for dot in case.dots}
        went = (since for dot, since in self._since.items() if dot not in waiting and dot not in told)
        if any(now - since >= timing.OVERDUE_S / 2 for since in went):
            self._went_on = now
        self._since = {dot: self._since.get(dot, now) for dot in waiting}
        goes_on = now - self._went_on < timing.OVERDUE_S
        found: dict[bytes, list[Dot]] = {}
        for dot, since in self._since.items():
            may_be_in_turn = goes_on and waiting[dot] not in self._cases
            if now - since >= (timing.OVERDUE_AMONG_OTHERS_S if may_be_in_turn else timing.OVERDUE_S):
                found.setdefault(waiting[dot], []).append(dot)
        return found

    async def _note(self, chain_id: bytes, dots: list[Dot]) -> None:
        """Open or update the chain's case, and log a new reason. Raises DatabaseFailedError."""
        now, case = trio.current_time(), self._cases.get(chain_id)
        told = await self._store.read(partial(_first_of, chain_id=chain_id, dots=dots))
        if told is None:  # the log has lost the entries and their mailbox is unknown: only a merge can end the wait
            self._cases.pop(chain_id, None)
            self._since.update(dict.fromkeys(dots, now + timing.OVERDUE_PAUSE_MAX_S))
            return
        key, missing = told
        why = self._fork_merger.why_apart(chain_id)
        if await self._store.read(partial(forks.is_history_doubted, chain_id=chain_id)):
            why = "it names another history of its predecessor than this node has"
        if missing is not None:
            why = f"predecessor {missing.seq} of {missing.origin} is missing at this node"
        else:
            why = f"a branch cannot be merged: {why}" if why else "the master has not merged a branch"
        if case is None or case.why != why:
            log.warning(
                "%d entries of %s have waited for more than %.0f s: %s; asking all peers again",
                len(dots), await name_of(self._store, key), timing.OVERDUE_S, why,
            )  # fmt: skip
        pause_s = timing.OVERDUE_PAUSE_MIN_S if case is None else min(2 * case.pause_s, timing.OVERDUE_PAUSE_MAX_S)
        since = min(self._since.get(dot, now) for dot in dots)
        is_taken_over = case is not None and case.is_taken_over
        self._cases[chain_id] = Case(key, dots, since, why, missing is None, now + pause_s, pause_s, is_taken_over)

    async def _compare(self, key: MailboxKey) -> None:
        """Compare with all other nodes, one after the other; the mailbox's master joins what has forked.

        If the master lacks the checkpoint from which a branch can be replayed, a node that has it becomes the master.
        If no node has one, and none shows the branch, its entries are abandoned.
        """
        self._fork_merger.doubt(key)
        outcomes: list[Outcome] = []
        others = [sid for sid in self._mastership.table.component if sid != self._mastership.sid]
        for sid in others:
            with suppress(MailError, LinkDownError), trio.move_on_after(timing.OVERDUE_COMPARE_S):
                outcomes.append(await self._reconciliation.reconcile(key, sid))
            if not self._store.has_waiting(key.mailbox_id):
                return
        case = self._cases.get(key.mailbox_id)
        if await self._fork_merger.can_replay(key):
            if case is not None and not case.is_taken_over:
                case.is_taken_over = await self._handover.take_over(key)
        elif len(outcomes) == len(others) and _NOTHING_MORE.issuperset(outcomes):
            await self._abandon(key)
        self._fork_scheduler.suspect(key)

    async def _abandon(self, key: MailboxKey) -> None:
        """Abandon the chain's entries when due, since no node shows them and no reachable node can replay them."""
        case, overdue = self._cases.get(key.mailbox_id), self._overdue().get(key.mailbox_id, [])
        is_time = case is not None and trio.current_time() >= case.since + timing.OVERDUE_ABANDON_S
        # If a node that others know were out of reach, or being rebuilt, it might have what the entries lack.
        if not (overdue and is_time and self._reach.has_all_nodes()):
            return
        try:
            done = await self._abandoned.abandon(key, overdue)
        except MailError as error:
            log.warning("cannot abandon overdue entries yet, trying again: %s", error)
            return
        name = await name_of(self._store, key)
        if done.are_abandoned:
            log.warning(
                "abandoned %d entries of %s because no node still has what they depend on: %d messages or folders"
                " were saved again, and %d other changes are lost",
                len(overdue), name, done.brought, done.changes,
            )  # fmt: skip
        else:
            log.warning(
                "%d entries of %s wait still, although no node still has what they depend on: %d messages or"
                " folders were saved again, and %d could not be; trying again",
                len(overdue), name, done.brought, done.not_brought,
            )  # fmt: skip


def _first_of(connection: Connection, chain_id: bytes, dots: Iterable[Dot]) -> tuple[MailboxKey, Dot | None] | None:
    """Return the mailbox, and the missing predecessor of its first readable entry; None: no entry is readable."""
    chain = chains.load(connection, chain_id)
    entries = [entry for dot in dots if (entry := queries.entry_at(connection, dot)) is not None]
    for entry in sorted(entries, key=lambda entry: (entry.modseq, entry.dot)):
        key = MailboxKey.of(entry)
        for before in entry.predecessors:
            is_shown = chain is not None and chain.has_seen(before)
            if not is_shown and queries.entry_at(connection, before) is None:
                return key, before
        return key, None
    return None
