"""Finds state that neighbours took over without log entries, which no log delivers (design section 7).

A node that takes over a state shows it before it has the entries. If the node that numbered those entries then loses
its disk, no log has them any more, and logs that are equal tell of no difference. An election follows each such loss.
So after each one, every node compares digests with its neighbours, which takes some hundred bytes where nothing
differs, and takes over what a neighbour shows without having it in its log, or reports a fork to the mailbox's master.
It lets masters join the branches that logs have brought first, as long as they get on with that, and state transfers
end, which compare everything themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import trio

from replicator.errors import MailError
from replicator.replication import timing
from replicator.replication.convergence import sync_client
from replicator.replication.convergence.fork_merge import chain_of, name_of
from replicator.replication.convergence.reconciliation import Outcome, Reconciliation
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.parallel import in_turns
from replicator.replication.writes import head_exchange
from replicator.store.db.queries import MailboxKey
from replicator.store.store import Store

log = logging.getLogger(__name__)

AT_ONCE = 8  # mailboxes in parallel

_DONE = {Outcome.SAME, Outcome.ADOPTED, Outcome.MERGED, Outcome.AHEAD}


class AntiEntropy:
    """The comparison of this node with its neighbours. Belongs to the event loop.

    `links` returns those that are up; `is_taking_over` whether a state transfer compares everything anyway.
    """

    def __init__(
        self,
        store: Store,
        mastership: Mastership,
        reconciliation: Reconciliation,
        links: Callable[[], Sequence[PeerLink]],
        *,
        is_taking_over: Callable[[], bool],
    ) -> None:
        self._store = store
        self._mastership = mastership
        self._reconciliation = reconciliation
        self._links = links
        self._is_taking_over = is_taking_over

    async def run(self) -> None:
        """Compare with each neighbour after each election, again as long as something is left, until cancelled."""
        term: int | None = None
        look_at, pause_s = 0.0, timing.ANTI_ENTROPY_QUIET_S
        done: set[str] = set()  # origins of the neighbours that were compared in this term
        waiting = 0
        while True:
            await trio.sleep(timing.ANTI_ENTROPY_LOOK_EVERY_S)
            waited, waiting = waiting, len(self._store.waiting)
            if self._mastership.masters.term != term:
                term, pause_s = self._mastership.masters.term, timing.ANTI_ENTROPY_QUIET_S
                look_at = trio.current_time() + pause_s
                done.clear()
            if trio.current_time() < look_at or 0 < waiting < waited or self._is_taking_over():
                continue
            for link in self._links():
                if link.hello.origin not in done and await self.compare(link.sid):
                    done.add(link.hello.origin)
            pause_s = min(2 * pause_s, timing.ANTI_ENTROPY_PAUSE_MAX_S)
            look_at = trio.current_time() + pause_s

    async def compare(self, sid: str) -> bool:
        """Take over what a node shows ahead of its log. Return False if some of that is left."""
        left = list[MailboxKey]()
        try:
            keys = await sync_client.differing_chains(self._store, self._mastership, sid)
            await in_turns(partial(self._take_over, sid, left), keys, AT_ONCE)
        except (MailError, LinkDownError) as error:
            log.info("cannot compare this node with %s: %s", sid, error)
            return False
        return not left

    async def _take_over(self, sid: str, left: list[MailboxKey], key: MailboxKey) -> None:
        """Make a mailbox equal if no log does that; see `is_beyond_logs`.

        Append it to `left` if it is not equal afterwards. Raises MailError, LinkDownError.
        """
        mine = await chain_of(self._store, key)
        if not await head_exchange.is_beyond_logs(self._store, self._mastership.toward(sid), sid, key, mine):
            return
        outcome = await self._reconciliation.reconcile(key, sid)
        if outcome not in _DONE:
            left.append(key)
        if outcome in {Outcome.ADOPTED, Outcome.MERGED}:
            log.info("%s now equals its state at %s, which no log brings", await name_of(self._store, key), sid)
