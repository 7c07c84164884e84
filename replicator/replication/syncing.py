"""SYNC (design section 7): learning what another node shows of a mailbox or folder tree, without the log.

The side that answers keeps a snapshot: the keys and hashes of all rows at its head, 32 bytes a row. Rows themselves are
read when they are asked for. Where one has changed since, the snapshot is of no more use, and the side that asks begins
again with what it has got already. In the end it has exactly what the other node showed at one head: the sums agree.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from protocol import commands as c
from protocol.codec import ProtocolError
from protocol.commands import Content, Done, Ranges, RefusalCode, Refused, Reply, Rows, SyncEnd, SyncMailbox
from protocol.values import Dot
from replicator.errors import UnavailableError
from replicator.replication.link import PeerLink
from replicator.replication.mastership import Mastership
from replicator.store import chain as chains
from replicator.store import reading
from replicator.store.chain import Chain
from replicator.store.reading import MailboxKey
from replicator.store.store import Store
from resync import bulk
from resync.bulk import Item
from resync.entry import FolderState, SubscriptionState
from resync.ranges import QUESTIONS_AT_ONCE, Comparison, Fingerprint, Fingerprints
from resync.row import Row, to_bytes
from resync.state import MailboxState
from resync.tree import TreeState

MAX_SNAPSHOTS, MAX_ITEMS = 64, 1 << 22  # kept for others: 128 MiB, or one that is larger
ROWS_AT_ONCE = 1000  # of one question, some 200 KiB
ANSWER_BYTES = 4 << 20  # of rows, and one more: rows with very many flags are answered in part, and asked for again
TRIES = 5  # of a mailbox that changes meanwhile

SyncCommand = SyncMailbox | Ranges | Rows | SyncEnd
State = MailboxState | TreeState


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """What was shown of a mailbox or tree at a head."""

    key: MailboxKey
    chain: Chain
    fingerprints: Fingerprints


class Snapshots:
    """The side that answers. Belongs to the event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._snapshots: OrderedDict[int, _Snapshot] = OrderedDict()  # the last used last
        self._taken = 0

    async def answer(self, link: PeerLink, command: SyncCommand) -> Reply:
        """Raises ProtocolError for what no node asks."""
        if isinstance(command, SyncMailbox):
            key = link.key_of(command.mailbox)
            if key is None:
                raise ProtocolError(f"mailbox number {command.mailbox} was not given by an MBOX before")
            return await self._take(key)
        snapshot = self._snapshots.get(command.snapshot)
        if snapshot is None:
            return Refused(RefusalCode.TOO_OLD, f"snapshot {command.snapshot} is not kept any more")
        self._snapshots.move_to_end(command.snapshot)
        match command:
            case Ranges(_, prefixes):
                if len(prefixes) > QUESTIONS_AT_ONCE:
                    raise ProtocolError(f"{len(prefixes)} ranges at once; at most {QUESTIONS_AT_ONCE} are answered")
                return Content(bulk.pack_answers([snapshot.fingerprints.answer(prefix) for prefix in prefixes]))
            case Rows(number, packed):
                return await self._rows(number, snapshot, packed)
            case SyncEnd(number):
                del self._snapshots[number]
                return Done()

    async def _take(self, key: MailboxKey) -> Reply:
        snapshot = await self._store.read(lambda reader: _taken(reader, key))
        self._taken += 1
        self._snapshots[self._taken] = snapshot
        while len(self._snapshots) > MAX_SNAPSHOTS or self._items() > MAX_ITEMS:
            if len(self._snapshots) == 1:
                break
            self._snapshots.popitem(last=False)
        chain, everything = snapshot.chain, snapshot.fingerprints.of("")
        context = tuple(Dot(origin, seq) for origin, seq in sorted(chain.context.items()))
        return c.Snapshot(
            self._taken, chain.uidnext, chain.highestmodseq, chain.risen, chain.head, context,
            chain.digest() if chain.head else b"", everything.size, to_bytes(everything.total),
        )  # fmt: skip

    def _items(self) -> int:
        return sum(len(snapshot.fingerprints) for snapshot in self._snapshots.values())

    async def _rows(self, number: int, snapshot: _Snapshot, packed: bytes) -> Reply:
        try:
            keys = bulk.unpack_keys(packed)
        except ValueError as error:
            raise ProtocolError(str(error)) from None
        if len(keys) > ROWS_AT_ONCE:
            raise ProtocolError(f"{len(keys)} rows at once; at most {ROWS_AT_ONCE} are given")
        found = await self._store.read(lambda reader: _items_of(reader, snapshot.key, keys))
        if any(snapshot.fingerprints.hash_of(key) != value for key, value in _hashed(keys, found)):
            self._snapshots.pop(number, None)
            return Refused(RefusalCode.TOO_OLD, "rows have changed since the snapshot")
        return Content(bulk.pack_items(_that_fit(found.values())))


def _that_fit(items: Iterable[Item]) -> Iterable[Item]:
    room = ANSWER_BYTES
    for item in items:
        yield item
        room -= len(bulk.pack_items([item]))
        if room <= 0:
            return


def _hashed(keys: Iterable[bytes], found: dict[bytes, Item]) -> Iterable[tuple[bytes, int | None]]:
    return ((key, bulk.hash_of(found[key]) if key in found else None) for key in keys)


async def state_at(store: Store, mastership: Mastership, sid: str, key: MailboxKey) -> tuple[Chain, State] | None:
    """What a node shows of the mailbox: its head's numbers and all rows. None if it shows nothing of it.

    Waits as long as the link lasts.

    Raises UnavailableError if it cannot be asked, or tells what cannot be, or if the mailbox does not keep still;
    LinkDownError.
    """
    items = await store.read(lambda reader: _items(reader, key))
    for _ in range(TRIES):
        link = mastership.toward(sid)
        if link is None:
            raise UnavailableError(f"no way to {sid}")
        asked = await link.request(lambda link: SyncMailbox(link.number(key), sid))
        if not isinstance(asked, c.Snapshot):
            raise UnavailableError(f"{sid} does not say what it shows of a mailbox: {asked}")
        if asked.head is None:
            return None
        try:
            items, is_whole = await _learn(store, link, sid, asked, items)
        except ValueError as error:
            raise UnavailableError(f"what {sid} says of a mailbox does not add up: {error}") from None
        if is_whole:
            chain = Chain(
                key.mailbox_id, key.user, key.uidvalidity, asked.uidnext, asked.modseq, asked.head,
                {dot.origin: dot.seq for dot in asked.context}, risen=asked.risen,
            )  # fmt: skip
            state = _state(chain, items.values())
            if state is None:
                raise UnavailableError(
                    f"what {sid} says of a mailbox cannot be: two rows of one name, or of no mailbox"
                )
            return chain, state
    raise UnavailableError(f"a mailbox at {sid} changes faster than it can be compared")


async def _learn(
    store: Store, link: PeerLink, sid: str, asked: c.Snapshot, ours: dict[bytes, Item]
) -> tuple[dict[bytes, Item], bool]:
    """The rows, as far as the snapshot lasts, and whether they are all of it. Raises ValueError, LinkDownError."""
    compared = await store.read(lambda _: Fingerprints((key, bulk.hash_of(item)) for key, item in ours.items()))
    comparison = Comparison(compared, Fingerprint(asked.size, int.from_bytes(asked.total)))
    while not comparison.is_done:
        prefixes = comparison.questions()
        reply = await link.request(Ranges(asked.number, prefixes, sid))
        if not isinstance(reply, Content):
            return ours, False
        for prefix, answer in zip(prefixes, bulk.unpack_answers(reply.message), strict=True):
            comparison.take(prefix, answer)
    difference = comparison.difference()
    surplus = set(difference.only_ours)
    known = {key: item for key, item in ours.items() if key not in surplus}
    wanted = sorted((*difference.only_theirs, *difference.differing))
    while wanted:
        some = wanted[:ROWS_AT_ONCE]
        reply = await link.request(Rows(asked.number, bulk.pack_keys(some), sid))
        if not isinstance(reply, Content):
            return known, False
        items = bulk.unpack_items(reply.message)
        if not items or [bulk.key_of(item) for item in items] != some[: len(items)]:
            raise ValueError("other rows came than were asked for")
        known |= dict(zip(some, items, strict=False))
        del wanted[: len(items)]
    await link.request(SyncEnd(asked.number, sid))
    total = await store.read(lambda _: Fingerprints((key, bulk.hash_of(item)) for key, item in known.items()).of(""))
    if total != comparison.theirs:
        raise ValueError("the rows have other hashes")
    return known, True


def _state(chain: Chain, items: Collection[Item]) -> State | None:
    """None if the rows are not all of it: of another kind, or under one UID or name."""
    if chain.uidvalidity == 0:
        folders = {item.mailbox_id: item for item in items if isinstance(item, FolderState)}
        subscriptions = {item.name: item for item in items if isinstance(item, SubscriptionState)}
        tree = TreeState(chain.highestmodseq, dict(chain.context), folders, subscriptions)
        return tree if len(folders) + len(subscriptions) == len(items) else None
    rows = {item.uid: item for item in items if isinstance(item, Row)}
    mailbox = MailboxState(chain.uidnext, chain.highestmodseq, dict(chain.context), rows, chain.risen)
    return mailbox if len(rows) == len(items) else None


async def answer(snapshots: Snapshots, mastership: Mastership, link: PeerLink, command: SyncCommand) -> Reply:
    """Answer, or pass it on to the node that it is for. Raises LinkDownError, ProtocolError."""
    if command.destination in {None, mastership.sid}:
        return await snapshots.answer(link, command)
    onward = mastership.toward(command.destination) if command.destination else None
    if onward is None or onward is link:
        return Refused(RefusalCode.UNAVAILABLE, f"no way to {command.destination}")
    if not isinstance(command, SyncMailbox):
        return await onward.request(command)
    key = link.key_of(command.mailbox)
    if key is None:
        raise ProtocolError(f"mailbox number {command.mailbox} was not given by an MBOX before")
    return await onward.request(lambda onward: replace(command, mailbox=onward.number(key)))


def _taken(connection: sqlite3.Connection, key: MailboxKey) -> _Snapshot:
    connection.execute("BEGIN")
    try:
        chain = chains.load(connection, key.mailbox_id) or Chain(key.mailbox_id, key.user, key.uidvalidity)
        items = _items(connection, key)
    finally:
        connection.execute("COMMIT")
    return _Snapshot(key, chain, Fingerprints((name, bulk.hash_of(item)) for name, item in items.items()))


def _items(connection: sqlite3.Connection, key: MailboxKey) -> dict[bytes, Item]:
    """All rows that this node shows, by their keys."""
    if key.uidvalidity:
        return {row.guid: row for row in reading.mailbox_rows(connection, key.mailbox_id)}
    items: list[Item] = [item for some in reading.tree_rows(connection, key.user) for item in some]
    return {bulk.key_of(item): item for item in items}


def _items_of(connection: sqlite3.Connection, key: MailboxKey, keys: Iterable[bytes]) -> dict[bytes, Item]:
    if not key.uidvalidity:
        everything = _items(connection, key)
        return {wanted: everything[wanted] for wanted in keys if wanted in everything}
    rows = ((wanted, reading.row_of_guid(connection, wanted, key.mailbox_id)) for wanted in keys)
    return {wanted: row for wanted, row in rows if row is not None}
