"""SYNC, server side (design section 7): answers for this node's state by fingerprints over ranges of keys.

A snapshot holds the keys and hashes of all rows of a mailbox or tree at its head, 32 bytes per row, or of all mailboxes
and trees of the node. Rows are read on request. If a row has changed since, the snapshot is useless, and the client
begins again with what it has learned so far.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from protocol import commands as c
from protocol.commands import Content, Done, Ranges, RefusalCode, Refused, Reply, Rows, SyncEnd, SyncMailbox, SyncNode
from protocol.stream_codec import ProtocolError
from protocol.values import Context, context_dots
from replicator.replication.links.link import PeerLink
from replicator.replication.mastership.mastership import Mastership
from replicator.store.db import chain as chains
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.queries import Connection, MailboxKey
from replicator.store.db.rows.message_rows import DamagedRowError
from replicator.store.store import Store
from resync import bulk
from resync.bulk import ChainName, Item
from resync.ranges import QUESTIONS_AT_ONCE, Fingerprints
from resync.row import to_bytes

MAX_SNAPSHOTS, MAX_ITEMS = 64, 1 << 22  # snapshots kept and their total rows: 128 MiB, or a single larger snapshot
ROWS_AT_ONCE = 1000  # rows per request, some 200 KiB
ANSWER_BYTES = 4 << 20  # limit of rows per reply, exceeded by at most one; rows with many flags need several requests

SyncCommand = SyncNode | SyncMailbox | Ranges | Rows | SyncEnd


@dataclass(frozen=True, slots=True)
class Shown:
    """The state of a mailbox or tree that this node showed at a head. `rows`, if requested, holds all of them."""

    key: MailboxKey
    chain: Chain
    fingerprints: Fingerprints
    rows: dict[bytes, Item] | None = None

    @property
    def adds_up(self) -> bool:
        """True if the rows match the head's counts; otherwise rows are damaged."""
        size, total = self.fingerprints.of("")
        return total == self.chain.fingerprint and (not self.key.uidvalidity or size == self.chain.messages)


@dataclass(frozen=True, slots=True)
class ShownNode:
    """The digests of all mailboxes and trees. Entries up to `collected` have left the log."""

    collected: Context
    fingerprints: Fingerprints


class SyncServer:
    """This node's snapshots, and the answers to SYNC requests. Belongs to the event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._snapshots: OrderedDict[int, Shown | ShownNode] = OrderedDict()  # most recently used last
        self._taken = 0

    async def answer(self, link: PeerLink, command: SyncCommand) -> Reply:
        """Answer a request. Raises ProtocolError for a request that no node sends."""
        match command:
            case SyncMailbox(number, _, anew):
                key = link.key_of(number)
                return self._keep(await self._store.read(partial(shown, key=key, anew=anew)))
            case SyncNode():
                collected = dict(self._store.collected)  # first: the digests have all that has left the log by now
                return self._keep(ShownNode(collected, await self._store.shown_digests.get()))
        snapshot = self._snapshots.get(command.snapshot)
        if snapshot is None:
            return Refused(RefusalCode.TOO_OLD, f"snapshot {command.snapshot} has expired")
        self._snapshots.move_to_end(command.snapshot)
        match command:
            case Ranges(_, prefixes):
                if len(prefixes) > QUESTIONS_AT_ONCE:
                    raise ProtocolError(f"{len(prefixes)} ranges in one request; the limit is {QUESTIONS_AT_ONCE}")
                return Content(bulk.pack_answers([snapshot.fingerprints.answer(prefix) for prefix in prefixes]))
            case Rows(number, packed):
                return await self._rows(number, snapshot, _keys(packed))
            case SyncEnd(number):
                del self._snapshots[number]
                return Done()

    def _keep(self, snapshot: Shown | ShownNode) -> Reply:
        self._taken += 1
        self._snapshots[self._taken] = snapshot
        while len(self._snapshots) > MAX_SNAPSHOTS or self._items() > MAX_ITEMS:
            if len(self._snapshots) == 1:
                break
            self._snapshots.popitem(last=False)
        everything = snapshot.fingerprints.of("")
        size, total = everything.size, to_bytes(everything.total)
        if isinstance(snapshot, ShownNode):
            collected = context_dots(snapshot.collected)
            return c.Snapshot(self._taken, 0, 0, 0, None, collected, b"", size, total, self._store.last_time, None)
        chain = snapshot.chain
        return c.Snapshot(
            self._taken, chain.uidnext, chain.highestmodseq, chain.risen, chain.head, context_dots(chain.context),
            chain.digest() if chain.head else b"", size, total, self._store.last_time,
            chain.history or None,
        )  # fmt: skip

    def _items(self) -> int:
        return sum(len(snapshot.fingerprints) for snapshot in self._snapshots.values())

    async def _rows(self, number: int, snapshot: Shown | ShownNode, keys: list[bytes]) -> Reply:
        if isinstance(snapshot, ShownNode):
            return Content(bulk.pack_items(await self._store.read(lambda reader: _names(reader, keys))))
        key = snapshot.key
        chain, found = await self._store.read(partial(_rows_now, key=key, keys=keys))
        if any(snapshot.fingerprints.hash_of(key) != value for key, value in _hashed(keys, found)):
            self._snapshots.pop(number, None)
            if chain is not None and chain.head == snapshot.chain.head:
                text = f"rows of a mailbox of {key.user} are damaged; run `replicator check --repair` there"
                return Refused(RefusalCode.DAMAGED, text)
            return Refused(RefusalCode.TOO_OLD, "rows have changed since the snapshot")
        return Content(bulk.pack_items(_that_fit(found.values())))


async def answer(snapshots: SyncServer, mastership: Mastership, link: PeerLink, command: SyncCommand) -> Reply:
    """Answer a request, or forward it to the node that it is for. Raises LinkDownError, ProtocolError."""
    if command.destination in {None, mastership.sid}:
        return await snapshots.answer(link, command)
    onward = mastership.toward(command.destination) if command.destination else None
    if onward is None or onward is link:
        return Refused(RefusalCode.UNAVAILABLE, f"no route to {command.destination}")
    if not isinstance(command, SyncMailbox):
        return await onward.request(command)
    key = link.key_of(command.mailbox)
    return await onward.request(lambda onward: replace(command, mailbox=onward.number(key)))


def shown(connection: Connection, key: MailboxKey, *, with_rows: bool = False, anew: bool = False) -> Shown:
    """Return what this node shows of a mailbox or tree now. Without rows it takes 32 bytes per row.

    With `anew`, hashes the rows themselves, which takes five times as long; otherwise damaged rows may look whole.
    """
    connection.execute("BEGIN")
    try:
        chain = queries.chain_or_empty(connection, key)
        if with_rows or not key.uidvalidity:
            rows = _items(connection, key)
            return Shown(key, chain, Fingerprints((name, bulk.hash_of(row)) for name, row in rows.items()), rows)
        if anew:
            hashed = ((row.guid, row.fingerprint()) for row in queries.mailbox_rows(connection, key.mailbox_id))
            return Shown(key, chain, _fingerprints(hashed))
        return Shown(key, chain, _fingerprints(queries.fingerprints(connection, key.mailbox_id)))
    finally:
        connection.execute("COMMIT")


def _fingerprints(hashed: Iterable[tuple[bytes, int]]) -> Fingerprints:
    """Index the hashes by key. Raises DamagedRowError if two rows have one key."""
    try:
        return Fingerprints(hashed)
    except ValueError as error:
        raise DamagedRowError("the rows of a mailbox") from error


def _rows_now(connection: Connection, key: MailboxKey, keys: list[bytes]) -> tuple[Chain | None, dict[bytes, Item]]:
    connection.execute("BEGIN")
    try:
        return chains.load(connection, key.mailbox_id), items_of(connection, key, keys)
    finally:
        connection.execute("COMMIT")


def _keys(packed: bytes) -> list[bytes]:
    try:
        keys = bulk.unpack_keys(packed)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    if len(keys) > ROWS_AT_ONCE:
        raise ProtocolError(f"{len(keys)} rows in one request; the limit is {ROWS_AT_ONCE}")
    return keys


def _that_fit(items: Iterable[Item]) -> Iterable[Item]:
    room = ANSWER_BYTES
    for item in items:
        yield item
        room -= len(bulk.pack_items([item]))
        if room <= 0:
            return


def _hashed(keys: Iterable[bytes], found: dict[bytes, Item]) -> Iterable[tuple[bytes, int | None]]:
    return ((key, bulk.hash_of(found[key]) if key in found else None) for key in keys)


def _items(connection: Connection, key: MailboxKey) -> dict[bytes, Item]:
    """Return all rows that this node shows, by key."""
    if key.uidvalidity:
        return {row.guid: row for row in queries.mailbox_rows(connection, key.mailbox_id)}
    return {bulk.key_of(row): row for row in queries.tree_rows(connection, key.user)}


def items_of(connection: Connection, key: MailboxKey, keys: Iterable[bytes]) -> dict[bytes, Item]:
    """Return the rows with these keys that this node shows now."""
    if not key.uidvalidity:
        everything = _items(connection, key)
        return {wanted: everything[wanted] for wanted in keys if wanted in everything}
    rows = ((wanted, queries.row_of_guid(connection, wanted, key.mailbox_id)) for wanted in keys)
    return {wanted: row for wanted, row in rows if row is not None}


def _names(connection: Connection, chain_ids: Sequence[bytes]) -> list[Item]:
    found = {key.mailbox_id: key for key in queries.chain_keys(connection, chain_ids)}
    keys = filter(None, map(found.get, chain_ids))
    return [ChainName(key.user, key.mailbox_id, key.uidvalidity) for key in keys]
