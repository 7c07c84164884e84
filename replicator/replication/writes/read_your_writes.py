"""Clients that go from one node to another, and there see what they have heard OK for (design section 8).

An OK means that the change is shown at the client's node and is on the disks of some nodes, of which this one may not
be one. So before a client looks at a mailbox here, this node asks the others which head they show, and waits until it
shows those heads too. A master that has done so once asks nobody for as long as it alone numbers the mailbox. Nobody
waits for long, and nobody for a node that is out of reach: then clients see what is here.
"""

from __future__ import annotations

import trio

from protocol.commands import Done, Mismatch
from replicator.replication import timing
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.writes.head_exchange import ask
from replicator.store.db import queries
from replicator.store.db.queries import MailboxKey
from replicator.store.store import Store


class ReadYourWrites:
    """Belongs to the event loop."""

    def __init__(self, store: Store, mastership: Mastership) -> None:
        self._store = store
        self._mastership = mastership

    async def catch_up(self, *keys: MailboxKey) -> bool:
        """Return once this node shows, of these mailboxes and trees, what all nodes in reach showed at the call.

        Return False if a node did not answer, or if it takes longer than `READ_YOUR_WRITES_PATIENCE_S`.
        """
        lacking = [key for key in keys if not self._has_everything(key)] if self._others() else []
        if not lacking:
            return True
        caught_up: list[bool] = []

        async def catch_up_with_all(key: MailboxKey) -> None:
            caught_up.append(await self._catch_up_with_all(key))

        with trio.move_on_after(timing.READ_YOUR_WRITES_PATIENCE_S) as scope:
            async with trio.open_nursery() as nursery:
                for key in lacking:
                    nursery.start_soon(catch_up_with_all, key)
        return all(caught_up) and not scope.cancelled_caught

    def _others(self) -> list[str]:
        """Return the other nodes in reach."""
        return [sid for sid in self._mastership.table.component if sid != self._mastership.sid]

    def _has_everything(self, key: MailboxKey) -> bool:
        """Return True without asking if this node alone numbers the mailbox and shows everything there is of it.

        A waiting entry may be of a branch that another node shows meanwhile.
        """
        return self._mastership.shows_all(key) and not self._store.has_waiting(key.mailbox_id)

    async def _catch_up_with_all(self, key: MailboxKey) -> bool:
        """Return True once this node shows what all nodes in reach show; False if one of them did not answer."""
        answered: list[bool] = []

        async def catch_up_with(sid: str) -> None:
            # A state without a head is no news to the other node, which says what its own is.
            reply = await ask(self._mastership.toward(sid), sid, key, queries.empty_chain(key))
            answered.append(isinstance(reply, Done | Mismatch))
            if isinstance(reply, Mismatch) and reply.head is not None:
                await self._store.wait_applied(reply.head, key.mailbox_id)

        ready = self._mastership.readiness(key)
        async with trio.open_nursery() as nursery:
            for sid in self._others():
                nursery.start_soon(catch_up_with, sid)
        if all(answered) and ready is not None:
            self._mastership.note_shows_all(key, ready)
        return all(answered)
