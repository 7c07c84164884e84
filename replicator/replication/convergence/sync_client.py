"""SYNC, client side (design section 7): learns how another node's state differs from this node's, without the log.

The result is exactly what the other node showed at one head: the sums and the digest agree. If the other node's state
changes meanwhile, the next try starts from what the previous one learned.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import trio

from protocol import commands as c
from protocol.commands import Content, Ranges, RefusalCode, Refused, Rows, SyncEnd, SyncMailbox, SyncNode
from protocol.stream_codec import ProtocolError
from protocol.values import Context, context_of
from replicator.errors import DatabaseFailedError, UnavailableError
from replicator.replication.convergence.sync_server import ROWS_AT_ONCE, Shown, shown
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.replication.log.sender import check_claims
from replicator.replication.mastership.mastership import Mastership
from replicator.store.db import queries
from replicator.store.db.chain import Chain
from replicator.store.db.queries import MailboxKey
from replicator.store.store import Store
from resync import bulk
from resync.bulk import ChainName, Item
from resync.folder_tree import TreeState
from resync.ranges import Comparison, Difference, Fingerprint, Fingerprints
from resync.row import Row, add, remove
from resync.state import MailboxState

T = TypeVar("T")

TRIES = 5  # tries, if the other node's state changes meanwhile

State = MailboxState | TreeState


class DamagedError(UnavailableError):
    """A mismatch between another node's rows of a mailbox and its own counts."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Another node's state of a mailbox or tree, as the difference from what this node shows at a head.

    `items` are its rows that are missing or different here; `gone` are keys of this node's rows that it lacks; `time`
    is the time of a stamp that is not below any in its state.
    """

    key: MailboxKey
    ours: Shown
    theirs: Chain
    items: dict[bytes, Item]
    gone: frozenset[bytes]
    time: int

    def state(self) -> State:
        """Return the other node's full state; requires that this node's rows were kept.

        Raises UnavailableError for an impossible state.
        """
        assert self.ours.rows is not None, "`with_rows`"
        kept = {key: item for key, item in self.ours.rows.items() if key not in self.gone}
        state = _state(self.theirs, (kept | self.items).values())
        if state is None:
            raise UnavailableError(
                "another node reports an impossible mailbox: two rows share a UID or name, or a"
                " row is of the wrong kind"
            )
        return state


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """The mailboxes and trees that two nodes show differently, by their ids.

    `only_ours` are those that only this node has, `missing` those that only the other node has. `collected` is the
    context that had left the other node's log at the moment of comparison.
    """

    only_ours: tuple[bytes, ...]
    differing: tuple[bytes, ...]
    missing: tuple[bytes, ...]
    collected: Context
    _asked: _Asked
    _store: Store

    async def keys(self) -> list[MailboxKey]:
        """Return the keys of all that the other node may show ahead of this one, trees first.

        Raises UnavailableError, LinkDownError, DatabaseFailedError.
        """
        keys = await self._keys_here(self.differing) + [MailboxKey(*name) async for name in self._names()]
        return sorted(keys, key=_trees_first)

    async def all_keys(self) -> list[MailboxKey]:
        """Return the keys of all that differ, trees first. Raises the errors of `keys`."""
        return sorted(await self._keys_here(self.only_ours) + await self.keys(), key=_trees_first)

    async def _keys_here(self, chain_ids: Sequence[bytes]) -> list[MailboxKey]:
        """Return the keys of these mailboxes and trees, if they are here; read in batches: there may be very many."""
        found = list[MailboxKey]()
        for start in range(0, len(chain_ids), ROWS_AT_ONCE):
            some = chain_ids[start : start + ROWS_AT_ONCE]
            found += await self._store.read(partial(queries.chain_keys, chain_ids=some))
        return found

    async def missing_trees_first(self) -> list[bytes]:
        """Return the ids of those that are missing here, trees first. Raises UnavailableError, LinkDownError."""
        mailboxes, trees = list[bytes](), list[bytes]()
        async for name in self._names():
            (mailboxes if name.uidvalidity else trees).append(name.mailbox_id)
        return trees + mailboxes

    async def _names(self) -> AsyncIterator[ChainName]:
        for start in range(0, len(self.missing), ROWS_AT_ONCE):
            try:
                names = await self._asked.names(self.missing[start : start + ROWS_AT_ONCE])
            except ValueError as error:
                raise UnavailableError(f"{self._asked.sid} reports inconsistent mailboxes: {error}") from None
            for name in names:
                yield name


async def learn(
    store: Store, mastership: Mastership, sid: str, key: MailboxKey, *, with_rows: bool = False, anew: bool = False
) -> Learned | None:
    """Learn what a node shows of the mailbox or tree; None if nothing.

    `with_rows` keeps this node's rows, for `Learned.state`. With `anew`, both sides hash all rows instead of trusting
    stored hashes. Waits for as long as the link lasts. Raises UnavailableError if the node cannot be asked, reports
    something impossible (DamagedError), or the mailbox keeps changing; LinkDownError.
    """
    query = partial(shown, key=key, with_rows=with_rows, anew=anew)
    ours, asked = await _both(partial(store.read, query), partial(_ask, mastership, sid, key, anew=anew))
    items: dict[bytes, Item] = {}
    gone: set[bytes] = set()
    for turn in range(TRIES):
        if turn:
            asked = await _ask(mastership, sid, key, anew=anew)
        theirs = asked.head(key)
        if theirs is None:
            return None
        try:
            is_whole = await _learn(store, asked, ours.fingerprints, items, gone)
        except ValueError as error:
            raise UnavailableError(f"{sid} reports an inconsistent mailbox: {error}") from None
        if is_whole:
            return Learned(key, ours, theirs, items, frozenset(gone), asked.snapshot.time)
    raise UnavailableError(f"a mailbox at {sid} changes faster than it can be compared")


async def head_at(mastership: Mastership, sid: str, key: MailboxKey) -> Chain | None:
    """Return the head that a node shows of the mailbox or tree, without its rows; None if it shows nothing.

    Raises UnavailableError if the node cannot be asked or its rows do not match its counters (DamagedError);
    LinkDownError.
    """
    asked = await _ask(mastership, sid, key)
    theirs = asked.head(key)
    await asked.end()
    return theirs


async def differing_chains(store: Store, mastership: Mastership, sid: str) -> list[MailboxKey]:
    """Find the mailboxes and trees that a node may show ahead of this one, trees first.

    Raises UnavailableError, LinkDownError, DatabaseFailedError.
    """
    async with node_difference(store, mastership, sid) as difference:
        return await difference.keys()


@asynccontextmanager
async def node_difference(
    store: Store, mastership: Mastership, sid: str, *, at_most: float = math.inf
) -> AsyncIterator[NodeDifference]:
    """Compare everything with a node, which remembers what it showed until the block ends.

    Stops early once more than `at_most` were found that the other node may show ahead of this one. Raises
    UnavailableError, LinkDownError, DatabaseFailedError.
    """
    ours, asked = await _both(store.shown_digests.get, partial(_ask, mastership, sid, None))
    try:
        check_claims(store, asked.snapshot.context)  # a false claim would shift this node's own numbering
    except ProtocolError as error:
        raise UnavailableError(f"{sid} reports an impossible log: {error}") from None
    try:
        difference = await asked.compare(ours, at_most)
        if difference is None:
            raise UnavailableError(f"{sid} no longer has the snapshot of this comparison; try again")
    except ValueError as error:
        raise UnavailableError(f"{sid} reports inconsistent mailboxes: {error}") from None
    only_ours, missing, differing = difference
    try:
        yield NodeDifference(only_ours, differing, missing, context_of(asked.snapshot.context), asked, store)
    finally:
        with suppress(LinkDownError):
            await asked.end()


def _trees_first(key: MailboxKey) -> tuple[bool, MailboxKey]:
    return key.uidvalidity > 0, key


@dataclass(frozen=True, slots=True)
class _Asked:
    """A snapshot at another node.

    Requests raise LinkDownError, DamagedError, or ValueError for an impossible answer.
    """

    link: PeerLink
    sid: str
    snapshot: c.Snapshot

    def everything(self) -> Fingerprint:
        return Fingerprint(self.snapshot.size, int.from_bytes(self.snapshot.total))

    def head(self, key: MailboxKey) -> Chain | None:
        """Return the head of the mailbox or tree, None if it has none. Raises DamagedError."""
        told = self.snapshot
        if told.head is None:
            return None
        chain = Chain(
            key.mailbox_id, key.user, key.uidvalidity, told.uidnext, told.modseq, told.head,
            context_of(told.context), told.size if key.uidvalidity else 0,
            fingerprint=int.from_bytes(told.total), risen=told.risen, history=told.history or b"",
        )  # fmt: skip
        if chain.digest() != told.digest or not chain.history:
            raise DamagedError(
                f"at {self.sid}, the rows of a mailbox do not match their counters; run `replicator check` there"
            )
        return chain

    async def compare(self, ours: Fingerprints, at_most: float = math.inf) -> Difference | None:
        """Return the difference, or a part of it with more than `at_most` lacking; None if the snapshot expired."""
        comparison = Comparison(ours, self.everything())
        while not comparison.is_done and comparison.lacking <= at_most:
            prefixes = comparison.questions()
            reply = await self.link.request(Ranges(self.snapshot.number, prefixes, self.sid))
            if not isinstance(reply, Content):
                return None
            for prefix, answer in zip(prefixes, bulk.unpack_answers(reply.message), strict=True):
                comparison.take(prefix, answer)
        return comparison.difference()

    async def rows(self, keys: list[bytes]) -> list[Item] | None:
        """Return the rows of the first of these keys, at least one. None if the snapshot expired."""
        reply = await self.link.request(Rows(self.snapshot.number, bulk.pack_keys(keys), self.sid))
        if isinstance(reply, Refused) and reply.code == RefusalCode.DAMAGED:
            raise DamagedError(f"{self.sid} did not report its state: {reply.text}")
        if not isinstance(reply, Content):
            return None
        found = bulk.unpack_items(reply.message)
        if not found or [bulk.key_of(item) for item in found] != keys[: len(found)]:
            raise ValueError("the answer has other rows than were requested")
        return found

    async def names(self, chain_ids: Collection[bytes]) -> list[ChainName]:
        wanted, found = sorted(chain_ids), list[Item]()
        while len(found) < len(wanted):
            some = await self.rows(wanted[len(found) :][:ROWS_AT_ONCE])
            if some is None:
                raise ValueError("the snapshot of this comparison has expired")
            found += some
        return [name for name in found if isinstance(name, ChainName)]

    async def end(self) -> None:
        await self.link.request(SyncEnd(self.snapshot.number, self.sid))


async def _ask(mastership: Mastership, sid: str, key: MailboxKey | None, *, anew: bool = False) -> _Asked:
    """Request a snapshot of one mailbox or tree, or of the whole node. Raises UnavailableError, LinkDownError."""
    link = mastership.toward(sid)
    if link is None:
        raise UnavailableError(f"no route to {sid}")
    reply = await link.request(lambda link: SyncMailbox(link.number(key), sid, anew) if key else SyncNode(sid))
    if not isinstance(reply, c.Snapshot):
        why = reply.text if isinstance(reply, Refused) else f"it answered {type(reply).__name__}"
        raise UnavailableError(f"{sid} did not report its state: {why}")
    return _Asked(link, sid, reply)


async def _both(
    read_here: Callable[[], Awaitable[T]],
    ask_there: Callable[[], Awaitable[_Asked]],
) -> tuple[T, _Asked]:
    """Read both sides in parallel, since either may take long. Raises the errors of `_ask`, or DatabaseFailedError."""
    here: list[T] = []
    there: list[_Asked] = []
    failed: list[Exception] = []

    async def try_to(add: Callable[[], Awaitable[None]]) -> None:
        try:
            await add()
        except (UnavailableError, DatabaseFailedError, LinkDownError) as error:  # a nursery would wrap the error
            failed.append(error)

    async def read() -> None:
        here.append(await read_here())

    async def ask() -> None:
        there.append(await ask_there())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(try_to, read)
        nursery.start_soon(try_to, ask)
    if failed:
        raise failed[0]
    return here[0], there[0]


async def _learn(store: Store, asked: _Asked, ours: Fingerprints, items: dict[bytes, Item], gone: set[bytes]) -> bool:
    """Extend `items` and `gone` while the snapshot lasts; return True if they are complete. Raises ValueError."""
    changed = {key: bulk.hash_of(item) for key, item in items.items()}
    known = await store.read(lambda _: ours.patched(changed, gone)) if changed or gone else ours
    difference = await asked.compare(known)
    if difference is None:
        return False
    for key in difference.only_ours:
        items.pop(key, None)
        gone.add(key)
    wanted = sorted((*difference.only_theirs, *difference.differing))
    while wanted:
        found = await asked.rows(wanted[:ROWS_AT_ONCE])
        if found is None:
            return False
        items |= zip(wanted, found, strict=False)
        gone.difference_update(wanted[: len(found)])
        del wanted[: len(found)]
    await asked.end()
    if await store.read(lambda _: _sum(ours, items, gone)) != asked.everything():
        raise ValueError("the hashes of the rows do not match the snapshot")
    return True


def _sum(ours: Fingerprints, items: dict[bytes, Item], gone: Iterable[bytes]) -> Fingerprint:
    """Return the sum of the other node's rows: this node's, with `items` replaced and `gone` left out."""
    size, total = ours.of("")
    for key in (*items, *gone):
        if (value := ours.hash_of(key)) is not None:
            size, total = size - 1, remove(total, value)
    return Fingerprint(size + len(items), add(total, *map(bulk.hash_of, items.values())))


def _state(chain: Chain, items: Collection[Item]) -> State | None:
    """Build the state; None if rows are of the wrong kind, or two share a UID or name."""
    if chain.uidvalidity == 0:
        shown = [item for item in items if not isinstance(item, Row | ChainName)]
        tree = TreeState.of(chain.highestmodseq, chain.context, shown)
        return tree if len(tree.rows()) == len(items) else None
    rows = {item.uid: item for item in items if isinstance(item, Row)}
    mailbox = MailboxState(chain.uidnext, chain.highestmodseq, dict(chain.context), rows, chain.risen)
    return mailbox if len(rows) == len(items) else None
