"""A node that lacks entries which its peers have no longer takes over what they show (design section 7).

All mailboxes and trees that it shows otherwise than one peer are compared with that peer, and taken over or joined.
When all are done, this node shows what the collected entries did, so its log goes on after them, and LOG is asked
again. Until then it serves what it has. Interrupted, it begins again, and finds less to do.

What cannot be made equal, or is not within `ROUNDS`, must not keep all else away. It is noted on disk, told in the
status, and compared again every minute; until it is equal, what was passed over is not said to be settled here.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import trio

from protocol.values import Context, covers
from replicator.errors import MailError, UnavailableError
from replicator.replication.convergence import sync_client
from replicator.replication.convergence.fork_merge import name_of
from replicator.replication.convergence.reconciliation import Outcome, Reconciliation
from replicator.replication.links.link import LinkDownError
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.parallel import in_turns
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log import pending_resync
from replicator.store.log.entry_removal import collect
from replicator.store.log.pending_resync import EVERYTHING
from replicator.store.store import Store

log = logging.getLogger(__name__)

AT_ONCE = 8  # mailboxes: some wait for an answer while others read and write
RETRY_S = 1.0  # after a failure, and between two looks at mailboxes that others are joining
ROUNDS = 30  # of looks; then what others have not joined is left for later
LEFT_EVERY_S = 60.0  # mailboxes that are damaged, or cannot be joined: somebody may have mended them

_DONE = {Outcome.SAME, Outcome.ADOPTED, Outcome.MERGED, Outcome.AHEAD}
_STAYS_APART = {Outcome.APART, Outcome.DAMAGED}


class StateTransfer:
    """Belongs to the event loop. `ask_again` sends LOG to all peers; `settled`: what nodes say they have."""

    def __init__(
        self,
        store: Store,
        mastership: Mastership,
        reconciliation: Reconciliation,
        ask_again: Callable[[], None],
        settled: Callable[[], Mapping[str, Context]],
    ) -> None:
        self._store = store
        self._mastership = mastership
        self._reconciliation = reconciliation
        self._ask_again = ask_again
        self._settled = settled
        self._peers: dict[str, None] = {}  # whose logs do not reach back far enough
        self._wanted = trio.Event()
        self.done = self.total = 0  # mailboxes and trees of the transfer that runs

    @property
    def is_running(self) -> bool:
        """Whether this node is behind the log of a peer."""
        return bool(self._peers)

    def begin(self, sid: str) -> None:
        """A peer's log begins after what this node has."""
        self._peers[sid] = None
        self._wanted.set()

    async def run(self) -> None:
        """Take over what peers show, one after the other, until cancelled."""
        while True:
            with trio.move_on_after(LEFT_EVERY_S):
                await self._wanted.wait()
            self._wanted = trio.Event()
            with suppress(MailError, sqlite3.Error):
                await self._look_at_what_was_left()
            peers = list(self._peers)
            for sid in peers:
                try:
                    await self._take_over(sid)
                except (MailError, LinkDownError, sqlite3.Error) as error:
                    log.warning("what %s shows is not taken over yet: %s", sid, error)
                    await trio.sleep(RETRY_S)
                # Whoever has nothing to say about the log now says so again, or the link is gone.
                del self._peers[sid]
            if peers:
                self._ask_again()

    async def _take_over(self, sid: str) -> None:
        """Raises MailError, LinkDownError or sqlite3.Error."""
        difference = await sync_client.differing_chains(self._store, self._mastership, sid)
        self.done, self.total = 0, len(difference.keys)
        log.info("the log of %s begins later than this node's ends: %d mailboxes and trees are compared with it",
                 sid, self.total)  # fmt: skip
        left: list[MailboxKey] = []
        remaining: list[MailboxKey] = list(difference.keys)
        for _ in range(ROUNDS):
            remaining = await self._compare(sid, remaining, left)
            if not remaining:
                break
            await trio.sleep(RETRY_S)
        for key in left:
            log.error("%s is not as %s shows it: it is compared again every %d s; see `replicator resync %s`",
                      await name_of(self._store, key), sid, LEFT_EVERY_S, key.user)  # fmt: skip
        for key in remaining:  # busy, or being joined by others
            log.warning("%s is not as %s shows it yet: it is compared again every %d s; if that lasts, see `replicator"
                        " resync %s`", await name_of(self._store, key), sid, LEFT_EVERY_S, key.user)  # fmt: skip
        # That node may itself have passed over something that it does not show yet.
        everything = () if self._has_settled(sid, difference.collected) else (EVERYTHING,)
        await self._begin_log_after(difference.collected, (*left, *remaining, *everything), is_proof=bool(left))
        log.info("all else that %s has collected of its log is shown here now", sid)

    async def _compare(self, sid: str, keys: Iterable[MailboxKey], left: list[MailboxKey]) -> list[MailboxKey]:
        """Those that must be looked at again; where that is of no use, they go to `left`. Raises the first error."""
        again = list[MailboxKey]()

        async def compare(key: MailboxKey) -> None:
            try:
                outcome = await self._reconciliation.reconcile(key, sid)
                if outcome is Outcome.NOT_OURS:
                    await self._follow_master(key, sid)
            except sync_client.DamagedError as error:
                log.warning("%s is not taken over: %s", await name_of(self._store, key), error)
                outcome = Outcome.DAMAGED
            except UnavailableError:  # one mailbox that cannot be read there must not keep all others away
                if self._mastership.toward(sid) is None:
                    raise
                again.append(key)
                return
            if outcome in _STAYS_APART:
                left.append(key)
            if outcome in _DONE | _STAYS_APART:
                self.done += 1
            else:
                again.append(key)

        await in_turns(compare, keys, AT_ONCE)
        return again

    async def _follow_master(self, key: MailboxKey, sid: str) -> None:
        """What he joins may come by no log, and `sid` may wait for it, too. Raises MailError, sqlite3.Error."""
        master = self._mastership.known_master(key)
        if master not in {None, sid, self._mastership.sid}:
            with suppress(UnavailableError, LinkDownError):
                await self._reconciliation.reconcile(key, master)

    async def _look_at_what_was_left(self) -> None:
        """Nothing else compares it again: the log brings nothing of it any more.

        Any node may have what is lacking. But that nothing is lacking any more shows a node that has settled all of it.
        """
        others = [sid for sid in self._mastership.table.component if sid != self._mastership.sid]
        for key, passed in await self._store.read(pending_resync.load):
            for sid in others:
                with suppress(MailError, LinkDownError, sqlite3.Error):
                    if await self._is_equal(key, sid) and self._has_settled(sid, passed):
                        await self._store.write(partial(pending_resync.forget, key=key))
                        if key != EVERYTHING:
                            log.info("%s is as %s shows it now", await name_of(self._store, key), sid)
                        break

    async def _is_equal(self, key: MailboxKey, sid: str) -> bool:
        """Whether it is now as that node shows it, or further. Raises MailError, LinkDownError, sqlite3.Error."""
        if key != EVERYTHING:
            return await self._reconciliation.reconcile(key, sid) in _DONE
        left = list[MailboxKey]()
        difference = await sync_client.differing_chains(self._store, self._mastership, sid)
        return not await self._compare(sid, difference.keys, left) and not left

    def _has_settled(self, sid: str, passed: Context) -> bool:
        return covers(self._settled().get(sid, {}), passed)

    async def _begin_log_after(self, passed: Context, left: Sequence[MailboxKey], *, is_proof: bool) -> None:
        """What is left of such entries here goes first, in slices; if they may prove what was damaged, they stay."""
        while not is_proof and (await self._store.write(partial(collect, upto=passed))).entries:
            pass
        await self._store.write(partial(_begin_log_after, passed=passed, left=left))


def _begin_log_after(tx: Transaction, passed: Context, left: Sequence[MailboxKey]) -> None:
    if left:
        pending_resync.postpone(tx, left, passed)
    tx.begin_log_after(passed)
