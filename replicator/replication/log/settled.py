"""Flooding of SETTLED: how far each node has settled the log (design section 7).

A node has settled an entry if the entry and all earlier ones of its origin are in the node's log, and their effects are
shown. Every `SETTLED_SAY_EVERY_S` a node says how far it has settled, if that has changed, and passes on the
statements that it has received. Of each node the statement with the highest sequence counts. All statements are kept
on disk, because their nodes may be away for long.

A neighbour's statement about itself is checked, and an impossible one ends the link. Impossible statements about other
nodes are ignored, because the neighbour may have passed them on in good faith.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

import trio

from master_election.links import MAX_NODES, LinkTable
from master_election.number_bounds import is_believed, may_overrule
from protocol.commands import Settled
from protocol.stream_codec import ProtocolError
from protocol.values import Context, context_dots, context_of, covers, sid_of
from replicator.errors import MailError
from replicator.replication import timing
from replicator.replication.links.link import PeerLink
from replicator.replication.log.sender import check_claims
from replicator.store.db.rows import settled_rows
from replicator.store.db.transaction import Transaction
from replicator.store.store import Store

log = logging.getLogger(__name__)

MAX_CLAIMS = 1 << 18  # origins in all statements: 50 nodes that each name 50 nodes with 100 runs; about 30 MiB


class SettledLogs:
    """The statements of all nodes. Belongs to the event loop.

    Sequences start from `clock_ms`, so that the statements of a restarted node count; see `LinkTable`. `peers`: the
    nodes of the configuration, now and later.
    """

    def __init__(
        self,
        store: Store,
        table: LinkTable,
        *,
        clock_ms: Callable[[], int],
        peers: AbstractSet[str],
        links: Callable[[], Iterable[PeerLink]],
    ) -> None:
        self._store = store
        self._table = table
        self._clock_ms = clock_ms
        self._peers = peers
        self._links = links
        self._said = {table.sid: Settled(table.sid, clock_ms(), context_dots(store.settled()))}
        self.remembers = trio.Event()  # set once the statements that were written before this run are known
        self._news: dict[str, str] = {}  # SID whose statement is to be written and passed on -> SID of its sender

    # ---- questions

    def known(self) -> dict[str, Context]:
        """Return SID -> settled context for each node ever heard of and not gone; empty if it has said nothing.

        The statements of a node that is gone are kept, and count again if it comes back with the disk that it had. One
        that comes back with another disk replaces them as soon as it is linked.
        """
        sids = {*self._peers, *self._table.sids, *map(sid_of, self._store.context)}
        said = {sid: context_of(one.context) for sid, one in self._said.items()}
        known = {**{sid: {} for sid in sids}, **said, self._table.sid: self._store.settled()}
        return {sid: context for sid, context in known.items() if not self._table.is_gone(sid)}

    def lacking(self, context: Context) -> list[str]:
        """Return the nodes that are not known to have settled all of the context.

        This node is one of them while an entry waits here, and until it has settled all that the others say they have:
        a node may have numbered a branch before it settled the context, and the branch may still be on its way.
        """
        known = self.known()
        lacking = {sid for sid, settled in known.items() if not covers(settled, context)}
        own = known[self._table.sid]
        if not all(covers(own, settled) for settled in (*known.values(), self._store.context)):
            lacking.add(self._table.sid)
        return sorted(lacking)

    def unsettled(self) -> dict[str, int]:
        """Return known node -> number of entries in this node's log that it is not known to have settled."""
        context, collected = self._store.context.items(), self._store.collected
        return {
            sid: sum(max(0, seq - max(settled.get(origin, 0), collected.get(origin, 0))) for origin, seq in context)
            for sid, settled in sorted(self.known().items())
        }

    # ---- events

    def link_up(self, link: PeerLink) -> None:
        """Send all known statements to a new neighbour."""
        for said in self._said.values():
            link.post(said)

    def received(self, link: PeerLink, said: Settled) -> None:
        """Take a neighbour's statement about itself or another node.

        Raises ProtocolError if the neighbour says something impossible of itself. A neighbour whose statement is older
        than the one known here is sent the newer one: so a restarted node learns the sequence that it must exceed.
        """
        if not is_believed(said.sequence, self._clock_ms()):
            log.info(
                "ignoring what %s reports of %s: its sequence number %d is impossibly high",
                link.sid,
                said.sid,
                said.sequence,
            )
            return
        try:
            check_claims(self._store, said.context)
        except ProtocolError as error:
            if said.sid == link.sid:
                raise
            log.info("ignoring what %s passes on of %s: %s", link.sid, said.sid, error)
            return
        known = self._said.get(said.sid)
        if known is not None and said.sequence < known.sequence:
            link.post(known)
        self._take(said, link.sid)

    async def run(self) -> None:
        """Make, pass on and write statements until cancelled."""
        for said in await self._store.read(settled_rows.load):
            self._take(said, said.sid)
        self.remembers.set()
        while True:
            await trio.sleep(timing.SETTLED_SAY_EVERY_S)
            self._say()
            self._pass_on()
            await self._write()

    # ---- statements

    def _take(self, said: Settled, sender: str) -> None:
        known = self._said.get(said.sid)
        if said.sid == self._table.sid:
            self._overrule(said)
        elif (known is None or said.sequence > known.sequence) and self._has_room(said):
            self._said[said.sid] = said
            self._news[said.sid] = sender

    def _has_room(self, said: Settled) -> bool:
        others = [len(one.context) for sid, one in self._said.items() if sid != said.sid]
        return len(others) < MAX_NODES and sum(others) + len(said.context) <= MAX_CLAIMS

    def _overrule(self, past: Settled) -> None:
        """Exceed the sequence of a statement in this node's name, if other nodes will accept the higher one.

        The statement is from a past run whose clock was ahead, or forged.
        """
        sid = self._table.sid
        own = self._said[sid]
        if past != own and past.sequence >= own.sequence and may_overrule(past.sequence, self._clock_ms()):
            self._said[sid] = replace(own, sequence=past.sequence + 1)
            self._news[sid] = sid

    def _say(self) -> None:
        sid = self._table.sid
        own, settled = self._said[sid], context_dots(self._store.settled())
        if settled != own.context:
            self._said[sid] = Settled(sid, own.sequence + 1, settled)
            self._news[sid] = sid

    def _pass_on(self) -> None:
        """Post each new statement to all neighbours but the one that passed it on here.

        A neighbour that spoke of itself gets its statement back: it may have been altered in transit.
        """
        for link in self._links():
            for sid, sender in self._news.items():
                if sender != link.sid or sid == link.sid:
                    link.post(self._said[sid])

    async def _write(self) -> None:
        """Write the new statements; those that the disk does not take are passed on and written again next time."""
        news, self._news = self._news, {}
        if not news:
            return
        try:
            await self._store.write(partial(_save, [self._said[sid] for sid in news]))
        except MailError as error:
            log.warning("cannot save what nodes have settled: %s", error)
            self._news = {**news, **self._news}


def _save(said: list[Settled], tx: Transaction) -> None:
    settled_rows.save(tx.connection, said)
