"""The nodes that this one can reach, over any number of links, and whether it has met its peers since it started."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet

import trio

from master_election.links import LinkTable
from replicator.replication.links.handshake import REBUILDING
from replicator.replication.links.link import PeerLink


class Reach:
    """The reach of this node. Belongs to the event loop.

    `table` knows who can be reached. `peers` are always those of the present configuration, and so is `removed`, the
    nodes that have left for good. `links` returns the links that are up. `admitted` is set once the node serves.
    """

    def __init__(
        self,
        table: LinkTable,
        *,
        peers: AbstractSet[str],
        links: Callable[[], Iterable[PeerLink]],
        removed: Collection[str],
        admitted: trio.Event,
    ) -> None:
        self._table = table
        self._peers = peers
        self._links = links
        self._admitted = admitted
        self.removed = removed
        self.met_others = trio.Event()  # set once this node, which may be behind, has met its peers or had time to

    def copy_holders(self) -> list[str]:
        """Return the nodes in reach whose disks count as copies: the disk of a removed node will be discarded."""
        gone = {self._table.sid, *self.removed}
        return [sid for sid in self._table.component if sid not in gone]

    def has_all_peers(self) -> bool:
        """Return True if all configured nodes can be reached."""
        return self._peers <= set(self._table.component)

    def has_all_nodes(self) -> bool:
        """Return True if all nodes can be reached, even those linked only to others, and no peer is being rebuilt."""
        are_sound = not any(REBUILDING in link.hello.capabilities for link in self._links())
        return self.has_all_peers() and are_sound and set(self._table.sids) <= set(self._table.component)

    def changed(self) -> None:
        """Take note that nodes have come or gone, or that other peers are configured: this may set `met_others`."""
        if self._admitted.is_set() and self.has_all_peers():
            self.met_others.set()

    async def meet_others(self, timeout_s: float) -> None:
        """Return once this node has met its peers. After `timeout_s` it has had time to, and goes on without them."""
        self.changed()
        with trio.move_on_after(timeout_s):
            await self.met_others.wait()
        self.met_others.set()
