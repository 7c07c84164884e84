"""Differences between this node and another one in a mailbox or folder tree, by kind. Read-only.

Between nodes in use, some entries are always in transit. So each difference is looked at again: if neither side has
moved on, all differences stand; otherwise those that were found at every look stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from protocol.values import Dot
from replicator.replication import timing
from replicator.replication.convergence import sync_client
from replicator.replication.convergence.reconciliation import can_restore
from replicator.replication.convergence.sync_client import Learned
from replicator.replication.convergence.sync_server import Shown, items_of, shown
from replicator.replication.mastership.mastership import Mastership
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.queries import Connection, MailboxKey
from replicator.store.db.rows.message_rows import DamagedRowError
from replicator.store.store import Store
from resync import differing
from resync.bulk import Item
from resync.differing import DifferenceKind, Side
from resync.entry import FolderState

LAST_RESORT = "and if that does not repair it, `replicator rebuild --from-peers`"
LOOKS = 5  # looks at a mailbox that keeps changing


@dataclass(frozen=True, slots=True)
class NodeComparison:
    """One mailbox or tree at two nodes at one moment. Without kinds, both show the same."""

    ours: Chain
    theirs: Chain
    rows: int = 0  # number of rows compared
    by_row: Mapping[bytes, frozenset[DifferenceKind]] = field(default_factory=dict)
    by_kind: Counter[DifferenceKind] = field(default_factory=Counter)
    damage: str | None = None  # description and remedy; the nodes must not be joined
    can_restore: bool = False  # this node is damaged, and the other one still shows the undamaged rows
    other_bodies: int = 0  # messages with different bodies under one GUID
    folders: tuple[FolderState, ...] = ()  # of a tree: folders that the other node shows differently

    @property
    def heads(self) -> tuple[Dot | None, Dot | None]:
        """The two sides' heads."""
        return self.ours.head, self.theirs.head


async def standing(store: Store, mastership: Mastership, sid: str, key: MailboxKey) -> NodeComparison:
    """Look several times, and return the differences that are not merely in transit. Raises the errors of `look`."""
    last = await look(store, mastership, sid, key)
    stands = dict(last.by_row)
    for _ in range(LOOKS - 1):
        if not last.by_kind or last.damage:
            break
        await trio.sleep(timing.DIFF_LOOK_AGAIN_S)
        again = await look(store, mastership, sid, key)
        if again.heads == last.heads:
            return again
        stands = {row: some for row, some in again.by_row.items() if row in stands}
        last = again
    if not last.by_kind or last.damage:
        return last
    return replace(last, by_row=stands, by_kind=differing.count(stands))


async def look(store: Store, mastership: Mastership, sid: str, key: MailboxKey) -> NodeComparison:
    """Compare a mailbox or tree once. Raises UnavailableError, LinkDownError as `sync_client.learn`."""
    try:
        learned, rows = await _learned(store, mastership, sid, key)
    except (sync_client.DamagedError, DamagedRowError) as error:
        nothing = queries.empty_chain(key)
        return NodeComparison(nothing, nothing, by_kind=Counter({DifferenceKind.DAMAGE: 1}), damage=str(error))
    return _look(learned, rows, sid)


async def _learned(
    store: Store, mastership: Mastership, sid: str, key: MailboxKey
) -> tuple[Learned, Mapping[bytes, Item]]:
    """Return what the other node shows, and this node's rows where they differ."""
    learned = await sync_client.learn(store, mastership, sid, key, anew=True)
    if learned is not None:
        rows = await _our_rows(store, learned)
        if rows is not None:
            return learned, rows
        # This node has moved on; now keep all its rows, which takes memory in a large mailbox.
        learned = await sync_client.learn(store, mastership, sid, key, with_rows=True, anew=True)
    if learned is None:
        learned = await _all_of_ours(store, key)
    return learned, _kept(learned)


def _look(learned: Learned, rows: Mapping[bytes, Item], sid: str) -> NodeComparison:
    ours, theirs = learned.ours.chain, learned.theirs
    by_row, by_kind = differing.differing(_side(ours, rows), _side(theirs, learned.items))
    damage = None
    other_bodies = sum(differing.has_other_body(rows.get(guid), item) for guid, item in learned.items.items())
    other_bodies = other_bodies if learned.ours.adds_up else 0
    if ours.head is None and theirs.head is not None:
        pass  # no head here counts the rows, if there are any: the mailbox is new, or to be adopted
    elif not learned.ours.adds_up:
        damage = (
            f"the rows at this node do not match their counters; run `replicator check --repair` here, {LAST_RESORT}"
        )
        by_kind = Counter({DifferenceKind.DAMAGE: max(1, len(by_row))})
    elif other_bodies:
        damage = (
            f"the nodes have different bodies for {other_bodies} messages under the same GUIDs; a resync corrects this"
        )
    elif by_kind[DifferenceKind.DAMAGE]:
        what = "both nodes have seen the same entries but show different content"
        damage = f"{what}; run `replicator check --repair` here and at {sid}, {LAST_RESORT}"
    folders = tuple(item for item in learned.items.values() if isinstance(item, FolderState))
    compared = len(learned.ours.fingerprints) + len(learned.items)
    return NodeComparison(ours, theirs, compared, by_row, by_kind, damage, can_restore(learned), other_bodies, folders)


def _side(chain: Chain, rows: Mapping[bytes, Item]) -> Side:
    return Side(chain.head, chain.uidnext, chain.highestmodseq, chain.context, rows, chain.risen, chain.history)


async def _all_of_ours(store: Store, key: MailboxKey) -> Learned:
    """Return all of this node's rows as a difference, since the other node shows nothing."""
    ours = await store.read(partial(shown, key=key, with_rows=True))
    assert ours.rows is not None
    nothing = queries.empty_chain(key)
    return Learned(key, ours, nothing, {}, frozenset(ours.rows), 0)


async def _our_rows(store: Store, learned: Learned) -> Mapping[bytes, Item] | None:
    """Return this node's rows where they differ. None: this node has moved on."""
    if learned.ours.rows is not None:
        return _kept(learned)
    return await store.read(partial(_rows_at, ours=learned.ours, wanted=learned.items.keys() | learned.gone))


def _kept(learned: Learned) -> Mapping[bytes, Item]:
    assert learned.ours.rows is not None
    return {key: row for key, row in learned.ours.rows.items() if key in learned.items or key in learned.gone}


def _rows_at(connection: Connection, ours: Shown, wanted: Collection[bytes]) -> Mapping[bytes, Item] | None:
    connection.execute("BEGIN")
    try:
        now = chains.load(connection, ours.key.mailbox_id)
        if (now.head if now else None) != ours.chain.head:
            return None
        return items_of(connection, ours.key, wanted)
    finally:
        connection.execute("COMMIT")
