"""Resolves messages for which nodes have different bodies under one GUID and a common placement.

A body that was changed in transit is refused nowadays (`links.entry_codec`), but databases may hold older ones.
Contexts cannot tell which body is right: the one at the node that numbered the message wins; if that node cannot be
asked, the one at most nodes, and of equally frequent ones the smallest hash. Each node corrects its own messages only,
and none whose winning body it cannot fetch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from protocol.commands import Done
from replicator.errors import UnavailableError
from replicator.replication.bodies import Bodies
from replicator.replication.convergence import sync_client
from replicator.replication.convergence.fork_merge import ForkMerger, chain_of, name_of
from replicator.replication.convergence.sync_client import Learned
from replicator.replication.convergence.sync_server import items_of
from replicator.replication.links.link import LinkDownError
from replicator.replication.mastership.mastership import Mastership
from replicator.replication.writes.head_exchange import ask
from replicator.store.bodies.body_rows import is_here, write_body
from replicator.store.db.entry_validation import is_body
from replicator.store.db.queries import MailboxKey
from replicator.store.repair.row_repair import OtherBody, entries_with, put_right
from replicator.store.store import Store
from resync.row import Row, age, shares_placement

log = logging.getLogger(__name__)

LOGGED_MAX = 20  # messages of one mailbox that are logged one by one


class BodyOf(NamedTuple):
    """The body of a message, as reported by a node."""

    content_hash: bytes
    size_bytes: int


class BodyConflicts:
    """The detection and correction of conflicting bodies. Belongs to the event loop."""

    def __init__(self, store: Store, mastership: Mastership, bodies: Bodies, fork_merger: ForkMerger) -> None:
        self._store = store
        self._mastership = mastership
        self._bodies = bodies
        self._fork_merger = fork_merger

    async def put_right(self, key: MailboxKey) -> int:
        """Correct the bodies of this node's messages by asking all reachable nodes; return the number corrected.

        Raises UnavailableError, or another MailError if the change cannot be written.
        """
        if not key.uidvalidity:
            return 0
        async with self._fork_merger.alone(key):
            wrong = [one for one in await self._wrong(key) if await self._is_brought(one)]
            if not wrong:
                return 0
            dots = await self._store.read(partial(entries_with, mailbox_id=key.mailbox_id, others=wrong))
            done = await self._store.write(partial(put_right, key=key, others=wrong, dots=dots))
        name = await name_of(self._store, key)
        for one in done[:LOGGED_MAX]:
            log.warning(
                "%s, UID %d: replaced body %s with %s, which counts at all nodes; clients may have cached the old"
                " body",
                name, one.row.uid, one.row.content_hash.hex(), one.content_hash.hex(),
            )  # fmt: skip
        if len(done) > LOGGED_MAX:
            log.warning("%s: replaced the bodies of %d more messages, too", name, len(done) - LOGGED_MAX)
        return len(done)

    async def put_right_at(self, key: MailboxKey, sid: str) -> bool:
        """Have another node correct its bodies, if possible; return True if it then shows what this node shows."""
        mine = await chain_of(self._store, key)
        reply = await ask(self._mastership.toward(sid), sid, key, mine, bodies=True)
        return isinstance(reply, Done)

    async def _wrong(self, key: MailboxKey) -> list[OtherBody]:
        learned: dict[str, Learned] = {}
        for sid in sorted(set(self._mastership.table.component) - {self._mastership.sid}):
            try:
                found = await sync_client.learn(self._store, self._mastership, sid, key)
            except (UnavailableError, LinkDownError) as error:
                log.warning(
                    "%s: choosing between conflicting bodies without an answer from %s: %s",
                    await name_of(self._store, key),
                    sid,
                    error,
                )
                continue
            if found is not None and not found.ours.adds_up:
                raise UnavailableError("rows are damaged at this node; run `replicator check --repair` first")
            if found is not None:
                learned[sid] = found
        wanted = {guid for one in learned.values() for guid in one.items}
        rows = await self._store.read(partial(items_of, key=key, keys=wanted))
        others = (_other_body(row, learned, self._mastership.sid) for row in rows.values() if isinstance(row, Row))
        return [other for other in others if other is not None]

    async def _is_brought(self, one: OtherBody) -> bool:
        """Fetch the winning body unless it is here; return True if it is here now, as it must be before it is shown."""
        wanted = one.content_hash
        if await self._store.read(partial(is_here, content_hash=wanted)):
            return True
        try:
            return await self._bodies.fetch(wanted, lambda stored, tx: write_body(tx.connection, stored))
        except UnavailableError:
            return False


def _other_body(row: Row, learned: Mapping[str, Learned], own: str) -> OtherBody | None:
    """Return the winning body of the message; None: the message has it already."""
    ours = BodyOf(row.content_hash, row.size_bytes)
    said = {own: ours}
    for sid, one in learned.items():
        theirs = one.items.get(row.guid)
        if isinstance(theirs, Row) and shares_placement(theirs, row):
            said[sid] = BodyOf(theirs.content_hash, theirs.size_bytes)
        elif theirs is None and row.guid not in one.gone:
            said[sid] = ours
    counts = that_counts(said, _author(row, learned))
    return None if counts == ours or not is_body(*counts) else OtherBody(row, *counts)


def _author(row: Row, learned: Mapping[str, Learned]) -> str:
    """Return the node that numbered the earliest placement of all versions that share one with this row."""
    theirs = (one.items.get(row.guid) for one in learned.values())
    shared = [other for other in theirs if isinstance(other, Row) and shares_placement(other, row)]
    dot, _ = min((one for other in [row, *shared] for one in other.placements()), key=age)
    return dot.sid


def that_counts(said: Mapping[str, BodyOf], author: str) -> BodyOf:
    """Return the winning body: the author's, if known, else the most frequent one, preferring the smallest hash."""
    counted = Counter(said.values())
    return said.get(author) or min(counted, key=lambda body: (-counted[body], body))
