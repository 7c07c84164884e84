"""Checkpoints that a neighbour makes on request, many at a time (FETCH CHECKPOINTS; docs/protocol.md, "Content").

By them a node takes over the mailboxes and trees of which it has nothing. A comparison of rows would take several round
trips for each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import msgpack

from protocol.commands import Content, FetchCheckpoints
from protocol.stream_codec import ProtocolError
from protocol.units import KIB
from replicator.errors import HistoryError
from replicator.replication.checkpoints.installation import adoption_of
from replicator.replication.links.handshake import CHECKPOINTS
from replicator.replication.links.link import PeerLink
from replicator.replication.parallel import in_turns
from replicator.store.checkpoints import catalog
from replicator.store.checkpoints.archive import CheckpointContent
from replicator.store.checkpoints.checkpoint import CheckpointReader, head_from
from replicator.store.checkpoints.container import UnreadableError
from replicator.store.db import queries
from replicator.store.db.damage import DatabaseDamagedError
from replicator.store.db.entry_validation import NamedHead
from replicator.store.db.queries import Connection
from replicator.store.db.transaction import Transaction
from replicator.store.log.snapshot_install import Adoption, DamageError, adopt
from replicator.store.store import Store
from resync.entry import ID_BYTES

log = logging.getLogger(__name__)

TOGETHER = 64  # checkpoints in one request
TOGETHER_BYTES = 64 * KIB  # of them: other replies queue behind no more (`link.OUTPUT_BYTES`)
SMALL_BYTES = 64 * KIB  # of such a checkpoint: a mailbox of some 1,000 messages
AT_ONCE = 4  # requests: the peer reads for some while others travel or are written

_REPLY_BYTES = TOGETHER_BYTES + SMALL_BYTES + TOGETHER * KIB  # at most, with the heads


async def take_over(
    store: Store, link: PeerLink, chain_ids: Sequence[bytes], taken: Callable[[int], None]
) -> list[bytes]:
    """Take over mailboxes and trees that this node lacks from a neighbour; return the ids of those that are left.

    Left are those of which this node has something by now, and those with large checkpoints or without readable ones.
    Calls `taken` with numbers of those taken over. Raises LinkDownError, MailError.
    """
    if CHECKPOINTS not in link.hello.capabilities:
        return list(chain_ids)
    left: list[bytes] = []

    async def take(some: Sequence[bytes]) -> None:
        while some:
            answered, found = await _ask(link, some)
            done = await _install(store, found)
            left.extend(chain_id for chain_id in some[: answered or len(some)] if chain_id not in done)
            taken(len(done))
            some = some[answered:] if answered else ()

    together = [chain_ids[start : start + TOGETHER] for start in range(0, len(chain_ids), TOGETHER)]
    await in_turns(take, together, AT_ONCE)
    return left


async def _ask(link: PeerLink, chain_ids: Sequence[bytes]) -> tuple[int, list[Adoption]]:
    """Return how many of the first ids a neighbour answers, and the checkpoints that come; (0, []): no answer."""
    reply = await link.request(FetchCheckpoints(b"".join(chain_ids)))
    if not isinstance(reply, Content):
        return 0, []
    return await link.run_in_thread(partial(_unpacked, reply.message, chain_ids))


def _unpacked(packed: bytes, chain_ids: Sequence[bytes]) -> tuple[int, list[Adoption]]:
    """Return how many of the first ids a reply answers, and the checkpoints in it that can be read.

    (0, []) if it cannot be read, or is larger than a node sends.
    """
    if len(packed) > _REPLY_BYTES:
        return 0, []
    try:
        answers = msgpack.unpackb(packed, use_list=False, max_map_len=0, max_ext_len=0)
    except (msgpack.UnpackException, ValueError):
        return 0, []
    if not isinstance(answers, tuple) or len(answers) > len(chain_ids):
        return 0, []
    found = map(_read, answers, chain_ids)
    return len(answers), [adoption for adoption in found if adoption is not None]


def _read(answer: object, chain_id: bytes) -> Adoption | None:
    """Return the checkpoint in an answer; None if there is none that can be read."""
    match answer:
        case (fields, bytes(data)):
            pass
        case _:
            return None
    try:
        head = head_from(fields)
        reader = CheckpointReader(f"a checkpoint of a mailbox of {head.user}", head)
        changes = list(reader.receive(data))
        reader.finish()
    except (ValueError, UnreadableError) as error:
        log.warning("a neighbour has sent a checkpoint that cannot be read: %s", error)
        return None
    return adoption_of(head, CheckpointContent(reader.history, changes)) if head.mailbox_id == chain_id else None


async def _install(store: Store, adoptions: Sequence[Adoption]) -> set[bytes]:
    """Install checkpoints; return the ids of those that this node shows now. Raises MailError."""
    if not adoptions:
        return set()
    try:
        return await store.write(partial(_adopt_all, adoptions=adoptions))
    except (HistoryError, DamageError) as error:
        if len(adoptions) == 1:
            log.warning("cannot take over a mailbox of %s by its checkpoint: %s", adoptions[0].key.user, error)
            return set()
    done: set[bytes] = set()
    for adoption in adoptions:
        done |= await _install(store, [adoption])
    return done


def _adopt_all(tx: Transaction, adoptions: Sequence[Adoption]) -> set[bytes]:
    """Install those of which this node has nothing yet; return their ids. Raises HistoryError, DamageError."""
    return {adoption.key.mailbox_id for adoption in adoptions if adopt(tx, adoption)}


async def answer(store: Store, asked: FetchCheckpoints) -> Content:
    """Answer FETCH CHECKPOINTS: the first of them with their heads; nil for each that is not here, or large.

    Raises ProtocolError.
    """
    joined = asked.chain_ids
    if len(joined) % ID_BYTES:
        raise ProtocolError(f"FETCH CHECKPOINTS with {len(joined)} bytes, which are not whole ids")
    end = min(len(joined), TOGETHER * ID_BYTES)
    chain_ids = [joined[start : start + ID_BYTES] for start in range(0, end, ID_BYTES)]
    now_ms = (store.last_time >> 16) + 1  # not below any stamp, whatever the clock says
    return Content(await store.read(partial(_packed, chain_ids=chain_ids, now_ms=now_ms)))


def _packed(connection: Connection, chain_ids: Sequence[bytes], now_ms: int) -> bytes:
    answers: list[tuple[NamedHead, bytes] | None] = []
    room = TOGETHER_BYTES
    with queries.at_one_moment(connection):
        for chain_id in chain_ids:
            found = _small(connection, chain_id, now_ms)
            if found is not None and answers and len(found[1]) > room:
                break
            answers.append(found)
            room -= len(found[1]) if found else 0
    return cast("bytes", msgpack.packb(answers))


def _small(connection: Connection, chain_id: bytes, now_ms: int) -> tuple[NamedHead, bytes] | None:
    """Return a chain's head and checkpoint; None if it has none, or is large or damaged."""
    try:
        made = catalog.checkpoint_of(connection, chain_id, now_ms)
        data = None if made is None else made.joined(SMALL_BYTES)
    except DatabaseDamagedError as error:
        log.warning("cannot send a checkpoint: %s", error)
        return None
    return None if made is None or data is None else (made.head, data)
