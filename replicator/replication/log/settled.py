"""What each node has settled, told to all the others (design section 7).

A node has settled an entry if it is in its log, with all of its origin before it, and what they did is shown. Every
`SAY_EVERY_S` a node says how far that goes, if it goes further than it said, and passes on what it has heard. Of each
node the statement with the highest sequence counts. All are on disk, for their nodes may be away for long.

What a neighbour says of itself is checked, and ends the link if it cannot be. What it passes on it may have believed in
good faith: if that cannot be, it is left out.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import trio

from master_election.links import MAX_NODES, LinkTable
from master_election.number_bounds import is_believed, may_overrule
from protocol.codec import ProtocolError
from protocol.commands import Settled
from protocol.values import Context, context_dots, covers, sid_of
from replicator.errors import MailError
from replicator.replication.links.link import PeerLink
from replicator.replication.log.sender import check_claims
from replicator.store.db import settled_rows
from replicator.store.db.transaction import Transaction
from replicator.store.store import Store

log = logging.getLogger(__name__)

SAY_EVERY_S = 10.0  # what waits for it, a checkpoint that comes into force, takes minutes anyway
MAX_CLAIMS = 1 << 18  # origins in all statements: of 50 nodes, each of 50 nodes with a hundred runs; some 30 MiB


class SettledLogs:
    """Belongs to the event loop. `clock_ms`: so that what a restarted node says counts; see `LinkTable`."""

    def __init__(
        self,
        store: Store,
        table: LinkTable,
        *,
        clock_ms: Callable[[], int],
        peers: Iterable[str],
        links: Callable[[], Iterable[PeerLink]],
    ) -> None:
        self._store = store
        self._table = table
        self._clock_ms = clock_ms
        self._peers = tuple(peers)
        self._links = links
        self._said = {table.sid: Settled(table.sid, clock_ms(), context_dots(store.settled()))}
        self._news: dict[str, str] = {}  # SID whose statement is to be written and passed on -> who has sent it

    # ---- questions

    def known(self) -> dict[str, Context]:
        """Each node that was ever heard of -> what it has settled; of one that has said nothing, nothing."""
        sids = {*self._peers, *self._table.sids, *map(sid_of, self._store.context)}
        said = {sid: {dot.origin: dot.seq for dot in one.context} for sid, one in self._said.items()}
        return {**{sid: {} for sid in sids}, **said, self._table.sid: self._store.settled()}

    def lacking(self, context: Context) -> list[str]:
        """Nodes of which it is not known that they have settled all of this.

        This one counts as such while an entry waits here, and until it has itself settled what the others say that they
        have: a node may have numbered a branch before it settled the context, and the branch be on its way.
        """
        known = self.known()
        lacking = {sid for sid, settled in known.items() if not covers(settled, context)}
        own = known[self._table.sid]
        if not all(covers(own, settled) for settled in (*known.values(), self._store.context)):
            lacking.add(self._table.sid)
        return sorted(lacking)

    def unsettled(self) -> dict[str, int]:
        """Each known node -> how many entries of this node's log it is not known to have settled."""
        context, collected = self._store.context.items(), self._store.collected
        return {
            sid: sum(max(0, seq - max(settled.get(origin, 0), collected.get(origin, 0))) for origin, seq in context)
            for sid, settled in sorted(self.known().items())
        }

    # ---- events

    def link_up(self, link: PeerLink) -> None:
        """A neighbour is told all that is known."""
        for said in self._said.values():
            link.post(said)

    def received(self, link: PeerLink, said: Settled) -> None:
        """A neighbour speaks, for itself or others. Raises ProtocolError for what it cannot say of itself.

        Who has heard less of a node than is known here is told that: so a node hears of what it has to go above.
        """
        if not is_believed(said.sequence, self._clock_ms()):
            log.info("what %s says of %s is left out: no node counts up to %d", link.sid, said.sid, said.sequence)
            return
        try:
            check_claims(self._store, said.context)
        except ProtocolError as error:
            if said.sid == link.sid:
                raise
            log.info("what %s passes on of %s is left out: %s", link.sid, said.sid, error)
            return
        known = self._said.get(said.sid)
        if known is not None and said.sequence < known.sequence:
            link.post(known)
        self._take(said, link.sid)

    async def run(self) -> None:
        """Speak, pass on and write until cancelled."""
        for said in await self._store.read(settled_rows.load):
            self._take(said, said.sid)
        while True:
            await trio.sleep(SAY_EVERY_S)
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
        """Our own from a past run, whose clock was ahead of ours, or a lie: go above it, if others take that in."""
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
        """To all but who passed it on here. Who spoke of itself hears it back: it may have come as another thing."""
        for link in self._links():
            for sid, sender in self._news.items():
                if sender != link.sid or sid == link.sid:
                    link.post(self._said[sid])

    async def _write(self) -> None:
        """What the disk does not take is passed on and written again the next time."""
        news, self._news = self._news, {}
        if not news:
            return
        try:
            await self._store.write(partial(_save, [self._said[sid] for sid in news]))
        except (MailError, sqlite3.Error) as error:
            log.warning("what nodes have settled is not written: %s", error)
            self._news = {**news, **self._news}


def _save(said: list[Settled], tx: Transaction) -> None:
    settled_rows.save(tx.connection, said)
