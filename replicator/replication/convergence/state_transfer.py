"""Transfers state to a node that lacks entries which its peers no longer have in their logs (design section 7).

Every mailbox and tree that this node and one peer show differently is compared with that peer, and adopted or joined.
After all of them, this node shows the effect of the collected entries, so its log begins after them, and it asks for
LOG again. Until then it serves what it has. An interrupted transfer begins again, with less left to do.

A mailbox that cannot be made equal, or not within `ROUNDS`, must not block the others. It is recorded on disk, shown in
the status, and compared again every minute; until it is equal, this node does not report the skipped entries as
settled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import trio

from protocol.values import Context, covers
from replicator.errors import MailError, UnavailableError
from replicator.replication import timing
from replicator.replication.checkpoints import peer_checkpoints
from replicator.replication.convergence import sync_client
from replicator.replication.convergence.fork_merge import name_of
from replicator.replication.convergence.reconciliation import Outcome, Reconciliation
from replicator.replication.links.handshake import CHECKPOINTS
from replicator.replication.links.link import LinkDownError
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.parallel import in_turns
from replicator.runtime.signals import Signal
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Transaction
from replicator.store.log import pending_resync
from replicator.store.log.entry_removal import collect
from replicator.store.log.pending_resync import EVERYTHING
from replicator.store.store import Store

log = logging.getLogger(__name__)

AT_ONCE = 8  # mailboxes in parallel: some wait for answers while others read and write
ROUNDS = 30  # rounds of comparison; mailboxes still unjoined by other nodes are postponed

_DONE = {Outcome.SAME, Outcome.ADOPTED, Outcome.MERGED, Outcome.AHEAD}
_STAYS_APART = {Outcome.APART, Outcome.DAMAGED}


class StateTransfer:
    """The transfer of state from peers. Belongs to the event loop.

    `ask_again` sends LOG to all peers; `settled` returns the contexts that nodes report as settled; `claimed` that of
    which a neighbour has said that it is on its disk.
    """

    def __init__(
        self,
        store: Store,
        mastership: Mastership,
        reconciliation: Reconciliation,
        ask_again: Callable[[], None],
        settled: Callable[[], Mapping[str, Context]],
        *,
        claimed: Callable[[str], Context],
    ) -> None:
        self._store = store
        self._mastership = mastership
        self._reconciliation = reconciliation
        self._ask_again = ask_again
        self._settled = settled
        self._claimed = claimed
        self._peers: dict[str, None] = {}  # SIDs of peers whose logs do not reach back far enough
        self._wanted = Signal()
        self.done = self.total = 0  # mailboxes and trees of the current transfer

    @property
    def is_running(self) -> bool:
        """True if this node's log ends before a peer's begins."""
        return bool(self._peers)

    def begin(self, sid: str) -> None:
        """Request a transfer from a peer whose log begins after what this node has."""
        self._peers[sid] = None
        self._wanted.set()

    async def run(self) -> None:
        """Take over state from one peer after the other, until cancelled."""
        while True:
            with trio.move_on_after(timing.STATE_TRANSFER_LEFT_EVERY_S):
                await self._wanted.wait()
            self._wanted.clear()
            with suppress(MailError):
                await self._look_at_what_was_left()
            peers = list(self._peers)
            for sid in peers:
                try:
                    await self._take_over(sid)
                except (MailError, LinkDownError) as error:
                    log.warning("cannot take over the state of %s yet: %s", sid, error)
                    await trio.sleep(timing.STATE_TRANSFER_RETRY_S)
                # A peer whose log still begins too late refuses LOG again, unless its link is gone.
                del self._peers[sid]
            if peers:
                self._ask_again()

    async def _take_over(self, sid: str) -> None:
        """Take over what one peer shows. Raises MailError or LinkDownError."""
        await self._take_over_missing(sid)
        async with sync_client.node_difference(self._store, self._mastership, sid) as difference:
            collected, remaining = difference.collected, await difference.keys()
        if not covers(self._claimed(sid), collected):
            # This node would never take the entries of that name when they are numbered. An ACK is repeated, this not.
            raise UnavailableError(f"{sid} claims to have removed entries from its log that it has not acknowledged")
        self.done, self.total = 0, len(remaining)
        log.info("the log of %s no longer has entries that this node lacks: comparing %d mailboxes and trees with it",
                 sid, self.total)  # fmt: skip
        left: list[MailboxKey] = []
        for _ in range(ROUNDS):
            remaining = await self._compare(sid, remaining, left)
            if not remaining:
                break
            await trio.sleep(timing.STATE_TRANSFER_RETRY_S)
        for key in left:
            log.error("%s could not be made equal to its state at %s: it is compared again every %d s; see"
                      " `replicator resync %s`",
                      await name_of(self._store, key), sid, timing.STATE_TRANSFER_LEFT_EVERY_S, key.user)  # fmt: skip
        for key in remaining:  # busy, or being joined by other nodes
            log.warning("%s does not equal its state at %s yet: it is compared again every %d s; if this lasts, see"
                        " `replicator resync %s`",
                        await name_of(self._store, key), sid, timing.STATE_TRANSFER_LEFT_EVERY_S, key.user)  # fmt: skip
        # That node may itself have postponed state that it does not show yet.
        everything = () if self._has_settled(sid, collected) else (EVERYTHING,)
        await self._begin_log_after(collected, (*left, *remaining, *everything), is_proof=bool(left))
        log.info("this node now shows everything else that %s has removed from its log", sid)

    async def _take_over_missing(self, sid: str) -> None:
        """Take over mailboxes and trees of which this node has nothing, as far as a neighbour has checkpoints of them.

        Raises MailError or LinkDownError.
        """
        link = self._mastership.toward(sid)
        if link is None or link.sid != sid or CHECKPOINTS not in link.hello.capabilities:
            return
        async with sync_client.node_difference(self._store, self._mastership, sid) as difference:
            missing = await difference.missing_trees_first()
        self.done, self.total = 0, len(missing)
        if missing:
            log.info("taking over %d mailboxes and trees that this node lacks from %s", self.total, sid)
            await peer_checkpoints.take_over(self._store, link, missing, self._note_done)

    def _note_done(self, count: int) -> None:
        self.done += count

    async def _compare(self, sid: str, keys: Iterable[MailboxKey], left: list[MailboxKey]) -> list[MailboxKey]:
        """Compare mailboxes, and return those to look at again; append the hopeless ones to `left`.

        Raises the first error.
        """
        again = list[MailboxKey]()

        async def compare(key: MailboxKey) -> None:
            try:
                outcome = await self._reconciliation.reconcile(key, sid)
                if outcome is Outcome.NOT_OURS:
                    await self._follow_master(key, sid)
            except sync_client.DamagedError as error:
                log.warning("cannot take over %s: %s", await name_of(self._store, key), error)
                outcome = Outcome.DAMAGED
            except UnavailableError:  # one mailbox that is unreadable at the peer must not block the others
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
        """Reconcile with the mailbox's master.

        The master's merges may never come by a log, and `sid` may be waiting for them, too. Raises MailError,
        DatabaseFailedError.
        """
        master = self._mastership.known_master(key)
        if master not in {None, sid, self._mastership.sid}:
            with suppress(UnavailableError, LinkDownError):
                await self._reconciliation.reconcile(key, master)

    async def _look_at_what_was_left(self) -> None:
        """Compare postponed mailboxes again; nothing else does, since the log no longer brings their entries.

        Any node may have the missing state, but only a node that has settled the skipped entries proves that none is
        missing.
        """
        others = [sid for sid in self._mastership.table.component if sid != self._mastership.sid]
        for key, passed in await self._store.read(pending_resync.load):
            for sid in others:
                with suppress(MailError, LinkDownError):
                    if await self._is_equal(key, sid) and self._has_settled(sid, passed):
                        await self._store.write(partial(pending_resync.forget, key=key))
                        if key != EVERYTHING:
                            log.info("%s now equals its state at %s", await name_of(self._store, key), sid)
                        break

    async def _is_equal(self, key: MailboxKey, sid: str) -> bool:
        """Return True if this node now shows at least what that node shows.

        Raises MailError, LinkDownError.
        """
        if key != EVERYTHING:
            return await self._reconciliation.reconcile(key, sid) in _DONE
        left = list[MailboxKey]()
        keys = await sync_client.differing_chains(self._store, self._mastership, sid)
        return not await self._compare(sid, keys, left) and not left

    def _has_settled(self, sid: str, passed: Context) -> bool:
        return covers(self._settled().get(sid, {}), passed)

    async def _begin_log_after(self, passed: Context, left: Sequence[MailboxKey], *, is_proof: bool) -> None:
        """Delete the skipped entries that are still here, in slices, then begin the log after them.

        With `is_proof`, the entries stay, since they may prove what was damaged.
        """
        while not is_proof and (await self._store.write(partial(collect, upto=passed))).entries:
            pass
        await self._store.write(partial(_begin_log_after, passed=passed, left=left))


def _begin_log_after(tx: Transaction, passed: Context, left: Sequence[MailboxKey]) -> None:
    if left:
        pending_resync.postpone(tx, left, passed)
    tx.begin_log_after(passed)
