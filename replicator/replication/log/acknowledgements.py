"""Acknowledgements by other nodes, in ACK and LOG: counted as copies, and passed on to the entries' authors."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.commands import Ack
from protocol.values import Dot, sid_of
from replicator.replication.links.link import PeerLink
from replicator.replication.log.feeds import Feeds
from replicator.replication.log.sender import check_claims
from replicator.replication.mastership.elections import Elections
from replicator.replication.writes.durability import Durability
from replicator.store.store import Store


class Acknowledgements:
    """The acknowledgements that reach this node. Belongs to the event loop."""

    def __init__(self, store: Store, elections: Elections, feeds: Feeds, durability: Durability) -> None:
        self._store = store
        self._elections = elections
        self._feeds = feeds
        self._durability = durability

    def received(self, link: PeerLink, ack: Ack) -> None:
        """Count an ACK, and pass it on if the entry's author is reached over this node. Raises ProtocolError."""
        claim = Dot(ack.origin, ack.seq)
        check_claims(self._store, (claim,))
        if ack.sid is None:
            self._feeds.on(link).sender.acked(ack)
        holder, author, table = ack.sid or link.sid, sid_of(ack.origin), self._elections.table
        if holder not in table.component:
            return
        self.count(holder, (claim,))
        is_on_the_way = table.next_hop_from(link.sid, author) == table.sid
        if is_on_the_way and (onward := self._elections.toward(author)) is not None:
            onward.post(Ack(ack.origin, ack.seq, holder))

    def count(self, sid: str, claims: Iterable[Dot]) -> None:
        """Count the claims as on a node's disk.

        Claims of origins unknown here are dropped, to save memory: no client waits for their entries.
        """
        self._durability.acknowledged(sid, {origin: seq for origin, seq in claims if origin in self._store.context})
