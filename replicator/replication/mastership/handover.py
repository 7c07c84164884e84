"""Moves masters: a scope goes to the node whose clients use it, or where an operator wants it (design section 5).

The node that wants the scope asks the present master by MASTER-MOVE, which follows the chain of former masters. The
master finishes the changes that it is numbering, hands over the mailbox's head, and forwards requests from then on;
changes wait at both ends meanwhile. Then it tells the root. An operator's node has the future master ask, if there is a
link to it. Whatever message is lost, the root's word decides in the end: a node that is directed to a node that denies
being the master asks the root again.

The mover here and the keeper of masters (`mastership`) know each other by `Keeper` alone. Both change what this node
knows of scopes, each by its own events of `KnownMasters`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

import trio

from master_election.known_masters import KnownMasters
from master_election.scope_record import Standing
from master_election.scope_usage import Usage
from master_election.scopes import wider
from protocol.commands import Master, MasterMove, Moved, RefusalCode, Refused, Reply, Who
from protocol.values import Dot
from replicator.errors import UnavailableError
from replicator.mail.mailstore import Folder
from replicator.replication import timing
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.mastership.elections import Elections
from replicator.replication.mastership.request_loops import RequestLoops
from replicator.runtime.metrics import MastershipMetrics
from replicator.store.db import chain as chains
from replicator.store.db.queries import MailboxKey
from replicator.store.store import Store

log = logging.getLogger(__name__)

ANOTHER_TERM = "another term has begun; ask again"
NO_ANSWER = "the master does not answer; try again"


class Keeper(Protocol):
    """The part that the mover knows of the keeper of masters, `Mastership`."""

    @property
    def masters(self) -> KnownMasters:
        """The record of each scope. The mover begins and ends moves there, the keeper does everything else."""

    def scope(self, key: MailboxKey) -> str:
        """Return the scope that contains the mailbox."""

    def known_master(self, key: MailboxKey) -> str | None:
        """Return the mailbox's master, if this node knows it without asking."""

    async def find(self, key: MailboxKey) -> str:
        """Return the mailbox's master, once its scope moves no more."""

    async def root_names(self, key: MailboxKey) -> str | None:
        """Return the master that the root names."""

    def bounced(self, key: MailboxKey) -> None:
        """Note that the mailbox's supposed master denies being it or cannot be reached."""

    def is_ready(self, key: MailboxKey, term: int) -> None:
        """Note that this node has, in that term, all that the previous master had of the mailbox."""


class Handover:
    """Moves of scopes to and from this node. Belongs to the event loop. `peers`: the configured ones, now and later."""

    def __init__(
        self,
        store: Store,
        elections: Elections,
        keeper: Keeper,
        *,
        peers: AbstractSet[str],
        timeout_s: float,
        metrics: MastershipMetrics,
    ) -> None:
        self._store = store
        self._elections = elections
        self._masters = keeper.masters
        self._keeper = keeper
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._peers = peers
        self._usage = Usage()
        self._forwarded = RequestLoops()  # one for each request that is at another node

    def changed(self, key: MailboxKey) -> None:
        """Note that a client of this node changes the mailbox, and ask for the scope if that happens often."""
        scope, now = self._keeper.scope(key), trio.current_time()
        self._usage.changed(scope, now)
        if self._masters.standing(scope) is Standing.ELSEWHERE and self._usage.wants(scope, now):
            master = self._masters.want(scope)
            if master is not None:
                move = MasterMove(0, self._masters.term, self._elections.sid)
                self._elections.later(partial(self._take, key, master, move))

    async def move(self, key: MailboxKey, move: MasterMove, came_from: PeerLink | None = None) -> Reply:
        """Forward a MASTER-MOVE towards the master, or carry it out if this node is the master.

        If the master is to move to this node, take the scope, for the node that asked.
        """
        if move.term != self._masters.term:
            return Refused(RefusalCode.UNAVAILABLE, ANOTHER_TERM)
        if move.destination not in self._elections.table.component:
            return Refused(RefusalCode.UNAVAILABLE, self._unreachable(move.destination))
        scope = self._keeper.scope(key)
        if came_from is not None and _wish(key, move) in self._forwarded:
            return self._not_this_way(key)
        master, moves = await self._keeper.find(key), self._masters.moves(scope)
        if move.term != self._masters.term:
            return Refused(RefusalCode.UNAVAILABLE, ANOTHER_TERM)
        if master == self._elections.sid:
            return await self._give(key, move)
        if move.destination == self._elections.sid and self._masters.want(scope):
            return await self._take(key, master, move) or Refused(RefusalCode.UNAVAILABLE, NO_ANSWER)
        link = self._elections.toward(master)
        reply = None if link is came_from else await self._request(key, master, move)
        if reply is None or (isinstance(reply, Refused) and reply.code == RefusalCode.NOT_MASTER):
            return self._not_this_way(key)  # even if the move may have been made: the asking node must ask the root
        if isinstance(reply, Moved) and reply.scope in _names(scope):
            self._masters.learn(scope, move.destination, move.term, reply.scope, moves)
        return reply

    def _not_this_way(self, key: MailboxKey) -> Refused:
        self._keeper.bounced(key)
        return Refused(RefusalCode.NOT_MASTER, "the master cannot be reached this way; ask again")

    async def resign(self, key: MailboxKey, successor: str) -> None:
        """Give the scope to another node, because this node's disk is full or damaged and it cannot number changes."""
        scope, term = self._keeper.scope(key), self._masters.term
        covering = self._masters.covering(scope) or scope
        async with self._promised(scope, covering, term) as promised:
            given = promised and self._masters.give(covering, successor, term)
        if given:
            self._given(scope, covering, successor, term, ask_again=False)

    async def run(self) -> None:
        """Let parts that are no longer in use join the wider scope again, until cancelled."""
        while True:
            await trio.sleep(timing.HANDOVER_JOIN_INTERVAL_S)
            for scope in self._masters.own_parts:
                if self._usage.may_join(scope, trio.current_time()):
                    await self._join(scope)

    # ---- for operators

    async def master_of(self, folder: Folder) -> str | None:
        """See `MasterControl`. If another node is the master, what this node remembers may be outdated by a move."""
        key = MailboxKey.of(folder)
        known = self._keeper.known_master(key)
        return known if known == self._elections.sid else await self._keeper.root_names(key) or known

    async def move_to(self, folder: Folder, node: str) -> None:
        """See `MasterControl`."""
        key, reply = MailboxKey.of(folder), None
        with trio.move_on_after(2 * self._timeout_s):
            while not isinstance(reply, Moved):
                if node not in self._elections.table.component:
                    raise UnavailableError(self._unreachable(node))
                reply = await self._try_to_move(key, node)
                await trio.sleep(0 if isinstance(reply, Moved) else timing.MASTERSHIP_RETRY_S)
        if not isinstance(reply, Moved):
            late = f"{node} has not confirmed the move in time; it may have been made"
            raise UnavailableError(reply.text if isinstance(reply, Refused) else late)

    async def take_over(self, key: MailboxKey) -> bool:
        """Try to make this node the mailbox's master, even if clients of another node use it; return True if it is."""
        reply = await self._try_to_move(key, self._elections.sid)
        return isinstance(reply, Moved)

    def _unreachable(self, node: str) -> str:
        reachable = ", ".join(sorted(self._elections.table.component))
        here = self._elections.sid
        if node not in self._peers:
            return f"no node {node} is configured at {here}, which reaches {reachable}"
        return f"{node} cannot be reached from {here}, only {reachable}; try again when it can"

    async def _try_to_move(self, key: MailboxKey, node: str) -> Reply | None:
        """Ask a neighbour to take the scope itself, so that it knows that it is the master; else ask the master."""
        move = MasterMove(0, self._masters.term, node, now=True)
        link = self._elections.toward(node)
        if link is not None and link.sid == node:
            with suppress(LinkDownError):
                reply = await link.request(lambda link: _on(link, key, move))
                if not (isinstance(reply, Refused) and reply.code == RefusalCode.NOT_MASTER):
                    return reply
        return await self.move(key, move)

    # ---- taking

    async def _take(self, key: MailboxKey, master: str, move: MasterMove) -> Reply | None:
        reply: Reply | None = None
        term = move.term
        try:
            with trio.move_on_after(self._timeout_s):
                reply = await self._request(key, master, move)
            if isinstance(reply, Moved) and reply.head is not None:
                with trio.move_on_after(self._timeout_s):
                    await self._store.wait_applied(reply.head, key.mailbox_id)
        finally:
            has_taken = self._taken(key, reply, term)
        return reply if has_taken or isinstance(reply, Refused) else None

    def _taken(self, key: MailboxKey, reply: Reply | None, term: int) -> bool:
        """Take note of the answer to the request for the scope. Return True if the scope is this node's now."""
        scope, now = self._keeper.scope(key), trio.current_time()
        match reply:
            case Moved(given, head) if given in _names(scope):
                if not self._masters.taken(scope, given, term):
                    return False
                self._usage.came(given, now)
                self._metrics.moved_here.inc()
                if self._shows(head):
                    self._keeper.is_ready(key, term)
                log.info("took over as master of %s", given)
                return True
            case Refused():
                self._usage.refused(scope, now)
                self._masters.not_taken(scope, term, refused=reply.code != RefusalCode.NOT_MASTER)
            case _:
                self._usage.refused(scope, now)
                self._masters.not_taken(scope, term, refused=False)
        return False

    async def _request(self, key: MailboxKey, master: str, move: MasterMove) -> Reply | None:
        link = self._elections.toward(master)
        try:
            with self._forwarded.passing(_wish(key, move)):
                return None if link is None else await link.request(lambda link: _on(link, key, move))
        except LinkDownError:
            return None

    def _shows(self, head: Dot | None) -> bool:
        return head is None or (
            self._store.context.get(head.origin, 0) >= head.seq and not self._store.is_waiting(head)
        )

    # ---- giving

    async def _give(self, key: MailboxKey, move: MasterMove) -> Reply:
        scope, sid, term = self._keeper.scope(key), self._elections.sid, move.term
        covering = self._masters.covering(scope) or scope
        if move.destination == sid:
            return Moved(covering, await self._head(key))
        part = covering if move.now else self._usage.offer(scope, covering, trio.current_time())
        if part is None:
            self._metrics.refused.inc()
            return Refused(
                RefusalCode.UNAVAILABLE,
                f"clients of {sid} are using the mailbox, or {sid} has only just become its master",
            )
        async with self._promised(scope, part, term) as promised:
            head = await self._head(key)
            given = promised and self._masters.give(part, move.destination, term)
        if not given:
            self._metrics.refused.inc()
            return Refused(
                RefusalCode.UNAVAILABLE, "another term has begun, or the mailbox is changing masters; ask again"
            )
        self._given(scope, part, move.destination, term, ask_again=not move.now)
        return Moved(part, head)

    def _given(self, scope: str, part: str, master: str, term: int, *, ask_again: bool) -> None:
        if not ask_again:
            self._usage.sent_away(scope, trio.current_time())
        self._elections.later(partial(self._report, part, master, term))
        self._metrics.moved_away.inc()
        log.info("%s is the master of %s now", master, part)

    @asynccontextmanager
    async def _promised(self, scope: str, part: str, term: int) -> AsyncIterator[bool]:
        """Stop numbering in the part during the block, which begins once all numbered changes are on disk.

        Yields False if this node may not give the part away. Unless it was given away, the part stays with this node.
        """
        if term != self._masters.term or not self._masters.promise(scope, part):
            yield False
            return
        try:
            await self._store.flush()
            yield True
        finally:
            self._masters.keep(part, term)

    async def _head(self, key: MailboxKey) -> Dot | None:
        chain = await self._store.read(lambda reader: chains.load(reader, key.mailbox_id))
        return None if chain is None else chain.head

    async def _report(self, part: str, master: str, term: int) -> None:
        """Tell the root of a move, until it agrees: it rejects a move while it does not know of the previous one."""
        until = trio.current_time() + self._timeout_s
        while (answer := await self._tell_root(part, master, term)) is not None:
            if answer.sid == master or trio.current_time() > until:
                break
            await trio.sleep(timing.MASTERSHIP_RETRY_S)
        self._masters.told(part, term)

    async def _tell_root(self, part: str, master: str, term: int) -> Master | None:
        """Return the root's answer, however long it takes; None if the term ends before."""
        while term == self._masters.term:
            answer = await self._elections.ask(Who(term, part, master, former=self._elections.sid))
            if answer is not None:
                return answer
            await trio.sleep(timing.MASTERSHIP_RETRY_S)
        return None

    async def _join(self, scope: str) -> None:
        """Become part of the wider scope again, whose master the root names."""
        term = self._masters.term
        async with self._promised(scope, scope, term) as promised:
            answer = await self._tell_root(scope, self._elections.sid, term) if promised else None
            if answer is not None and answer.covering == wider(scope) and self._masters.join(scope, answer.sid, term):
                if answer.sid != self._elections.sid:
                    self._metrics.moved_away.inc()
                log.info("%s is mastered by %s as part of %s again", scope, answer.sid, answer.covering)


def _on(link: PeerLink, key: MailboxKey, move: MasterMove) -> MasterMove:
    return MasterMove(link.number(key), move.term, move.destination, move.now)


def _wish(key: MailboxKey, move: MasterMove) -> tuple[MailboxKey, MasterMove]:
    """Return the identity of a move, which is the same on all links."""
    return key, replace(move, mailbox=0)


def _names(scope: str) -> tuple[str | None, ...]:
    """Return the scopes that a move of this mailbox may hand over."""
    return scope, wider(scope)
