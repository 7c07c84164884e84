"""Routes a change to the mailbox's master, over any number of nodes, and waits until it is on enough disks.

`perform` brings an operation to the master. If this node is the master, the store numbers the change (a large message
only after other nodes have its attachments), and the reply waits until enough disks have it. Otherwise the operation
goes to the next node on the route to the master, and the reply comes back the same way. The caller is never told to try
another node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Never, TypeVar

import trio

from protocol.commands import RefusalCode, Refused, Reply, Saved
from protocol.values import Dot
from replicator.errors import DiskFullError, FolderNotFoundError, MailError, UnavailableError
from replicator.replication import timing
from replicator.replication.links.entry_codec import error_of
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.mastership.handover import Handover
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.mastership.request_loops import RequestLoops
from replicator.replication.writes import head_exchange
from replicator.replication.writes.durability import Durability
from replicator.replication.writes.prestage import Prestage
from replicator.replication.writes.requests import ChangeRequest, NotHereYetError, dots_of, parts_of, transfer_s
from replicator.runtime.metrics import ChangeMetrics
from replicator.store.db import queries
from replicator.store.db.damage import DatabaseDamagedError
from replicator.store.db.queries import MailboxKey
from replicator.store.db.transaction import Commit, Transaction
from replicator.store.store import Store

T = TypeVar("T")


class _NotOursError(MailError):
    """The change was not numbered, because the term has ended or the mailbox has another master now."""


class NotMasterError(MailError):
    """The change goes back to the node that sent it, which knows only a former master."""


class _Search:
    """The search for a change's master: how long it took so far, without the time for which masters were at work."""

    def __init__(self) -> None:
        self.took_s = 0.0

    async def until(self, found: Awaitable[T]) -> T:
        """Return what this returns, as a part of the search."""
        began = trio.current_time()
        try:
            return await found
        finally:
            self.took_s += trio.current_time() - began


class Router:
    """The routing of changes to their masters. Belongs to the event loop."""

    def __init__(
        self,
        store: Store,
        mastership: Mastership,
        handover: Handover,
        durability: Durability,
        prestage: Prestage,
        *,
        met_others: trio.Event,
        wait_to_number: Callable[[MailboxKey], Awaitable[None]],
        metrics: ChangeMetrics,
    ) -> None:
        """Create a router that begins no change before `met_others`. For `wait_to_number` see `Readiness`."""
        self._store = store
        self._mastership = mastership
        self._handover = handover
        self._durability = durability
        self._prestage = prestage
        self._wait_to_number = wait_to_number
        self._metrics = metrics
        self._forwarded = RequestLoops()
        self._met_others = met_others
        self._committed = trio.Event()
        store.listeners.append(self._note_commit)

    async def carry_out(self, operation: ChangeRequest) -> Reply:
        """Make a change; return when it is durable and this node shows it. Raises MailError.

        If this node is too far behind to show the change soon, return without that.
        """
        reply: Reply | None = None
        with trio.move_on_after(timing.REQUEST_TIMEOUT_S + transfer_s(parts_of(operation))):
            reply = await self.perform(operation)
        if reply is not None:
            # The change is made and durable: a node that is far behind must not make its client retry.
            with trio.move_on_after(timing.ROUTER_SHOW_TIMEOUT_S):
                for dot in dots_of(reply):
                    await self._store.wait_applied(dot, operation.key.mailbox_id)
            return reply
        raise UnavailableError("the change was not confirmed in time; it may or may not have been made; try again")

    async def claim_new(self, tree: MailboxKey, mailbox: MailboxKey) -> None:
        """Find the master of a tree and, at the same time, claim a mailbox that is to be created there.

        Return without that if it takes too long: whoever numbers the first change there asks again.
        """
        with trio.move_on_after(timing.REQUEST_TIMEOUT_S):
            await self._met_others.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._mastership.find, tree)
                nursery.start_soon(self._mastership.claim_new, mailbox)

    async def perform(self, operation: ChangeRequest, came_from: PeerLink | None = None) -> Reply:
        """Bring an operation to its master and return its reply. Raises MailError. Waits without a time limit."""
        search = _Search()
        try:
            return await self._perform(operation, came_from, search)
        finally:
            self._metrics.master_wait.observe(search.took_s)

    async def _perform(self, operation: ChangeRequest, came_from: PeerLink | None, search: _Search) -> Reply:
        key = operation.key
        # A node that has just started may be behind: it numbers only after it has had time to meet the other nodes.
        if not self._met_others.is_set():
            await self._met_others.wait()
        to_offer = parts_of(operation)
        if to_offer is not None and not self._prestage.is_for(to_offer):
            to_offer = None
        while True:
            master = await search.until(self._mastership.find(key))
            if master == self._mastership.sid:
                if self._mastership.is_retiring:
                    await self._refuse_at_the_end(came_from)
                await self._wait_to_number(key)
                is_ready = self._mastership.may_number(key)
                if is_ready and to_offer is not None:
                    self._durability.check()
                    await self._prestage.offer(to_offer)
                    to_offer = None
                    continue  # the master may have changed during the offer
                try:
                    if is_ready:
                        return await self._number(operation)
                    await self._mastership.get_ready(key)
                except _NotOursError:
                    pass
                except (DiskFullError, DatabaseDamagedError):
                    if came_from is None:
                        raise
                    await self._handover.resign(key, came_from.sid)
                    raise NotMasterError from None
                continue
            link = self._mastership.toward(master)
            if link is not None and came_from is not None and (link is came_from or operation in self._forwarded):
                self._mastership.bounced(key)
                raise NotMasterError
            reply = await self._forward(operation, link, master) if link else None
            if reply is not None:
                return reply
            self._mastership.bounced(key)
            await trio.sleep(timing.MASTERSHIP_RETRY_S)
            search.took_s += timing.MASTERSHIP_RETRY_S

    @staticmethod
    async def _refuse_at_the_end(came_from: PeerLink | None) -> Never:
        """Refuse a change at a node that stops. A peer asks again, until there is a new master.

        The node's own clients wait for the end of their connections, and ask elsewhere. Raises NotMasterError.
        """
        if came_from is not None:
            raise NotMasterError
        await trio.sleep_forever()

    async def _forward(self, operation: ChangeRequest, link: PeerLink, master: str) -> Reply | None:
        """Return the reply of the master to which this link leads; None if there is none and a retry is safe."""
        term = self._mastership.masters.term
        try:
            with self._forwarded.passing(operation):
                reply = await link.request(operation.command)
        except LinkDownError:
            if operation.can_repeat:
                return None
            raise UnavailableError("the link broke; the change may or may not have been made") from None
        match reply:
            case Refused(code=RefusalCode.NOT_MASTER | RefusalCode.GARBLED):
                return None
            case Refused():
                raise error_of(reply)
            case Saved(master=None):
                return replace(reply, master=master)
            case Saved(master=str(named)) if named != master:
                self._mastership.named(operation.key, named, term)
                return reply
            case _:
                return reply

    async def _number(self, operation: ChangeRequest) -> Reply:
        self._durability.check()
        began = trio.current_time()
        reply = await self._run(operation)
        try:
            while True:
                for dot in dots_of(reply):
                    await self._wait_durable(operation.key, dot)
                # If this node has stood still since, it has no links, and too few nodes may seem reachable for a while.
                if self._mastership.has_met:
                    return reply
                await self._mastership.meet()
        finally:
            self._metrics.durable.observe(trio.current_time() - began)

    async def _wait_durable(self, key: MailboxKey, dot: Dot) -> None:
        """Wait until an entry is on enough disks.

        A change that was there already rests on another node's entry, whose ACKs go to that node: so the other nodes
        are asked. This node's disk counts once its log has the entry, or once it shows the entry's effect with all
        bodies: mail of an installed state may lack them.
        """
        shown = partial(queries.shows_whole, key=key, dot=dot)
        while self._store.context.get(dot.origin, 0) < dot.seq and not await self._store.read(shown):
            with trio.move_on_after(timing.ROUTER_ASK_EVERY_S):
                await self._store.wait_logged(dot)
        while dot.origin != self._store.origin:
            with trio.move_on_after(timing.ROUTER_ASK_EVERY_S):
                return await self._durability.wait(dot)
            with trio.move_on_after(timing.ROUTER_ASK_TIMEOUT_S):
                await head_exchange.ask_who_has(self._store, self._mastership, self._durability, key)
        return await self._durability.wait(dot)

    async def _run(self, operation: ChangeRequest) -> Reply:
        mastership = self._mastership
        term = mastership.masters.term

        def run(tx: Transaction) -> Reply:
            # Checked in the writer's turn: after the flush that ends a term or a move nothing more may be numbered.
            if mastership.masters.term != term or not mastership.is_ours(operation.key):
                raise _NotOursError
            _check_mailbox(tx, operation.key)
            return operation.run(tx)

        until = trio.current_time() + timing.ROUTER_SOURCE_TIMEOUT_S
        while True:
            committed = self._committed  # taken before the attempt: a commit during it must not be missed
            with suppress(NotHereYetError):
                return await self._store.write(run)  # however slow the disk is
            with trio.move_on_at(until):
                await committed.wait()
                continue
            raise UnavailableError(
                "a message of the request is gone, or has not reached the mailbox's master; try again"
            )

    def _note_commit(self, commit: Commit) -> None:
        if commit.applied:
            self._committed.set()
            self._committed = trio.Event()


def _check_mailbox(tx: Transaction, key: MailboxKey) -> None:
    """Check the folder's UIDVALIDITY and owner. Raises FolderNotFoundError if the request's UIDs are outdated."""
    chain = tx.chain(key.mailbox_id)
    if chain is None:
        return
    uidvalidity = queries.uidvalidity(tx.connection, key.mailbox_id) or chain.uidvalidity
    if chain.user != key.user or uidvalidity > key.uidvalidity:
        raise FolderNotFoundError("the folder has been replaced by another one; open it again")
