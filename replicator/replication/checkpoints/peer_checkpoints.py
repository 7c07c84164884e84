"""Checkpoints that a neighbour makes on request, many at a time (FETCH CHECKPOINTS; docs/protocol.md, "Content").

By them a node takes over the mailboxes and trees of which it has nothing. A comparison of rows would take several round
trips for each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import msgpack

from protocol.commands import Content, FetchCheckpoints
from protocol.stream_codec import ProtocolError
from protocol.units import KIB, MIB
from replicator.errors import HistoryError
from replicator.replication.checkpoints.installation import adoption_of
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
TOGETHER_BYTES = 64 * KIB  # of them, and one more: other replies queue behind no more (`link.OUTPUT_BYTES`)
SMALL_BYTES = 64 * KIB  # of such a checkpoint
SMALL_MESSAGES = 700  # of its mailbox: each has 48 octets or more that cannot be compressed
PLAIN_BYTES_MAX = MIB  # that such a checkpoint may unpack to
AT_ONCE = 4  # requests: the peer reads for some while others travel or are written

_REPLY_BYTES = TOGETHER_BYTES + SMALL_BYTES + TOGETHER * KIB  # at most, with the heads


async def take_over(store: Store, link: PeerLink, chain_ids: Sequence[bytes], taken: Callable[[int], None]) -> None:
    """Take over mailboxes and trees that this node lacks from a neighbour, in this order.

    Passed over are those of which this node has something by now, and those with large checkpoints or none that can be
    used. Calls `taken` with numbers of those taken over. Raises LinkDownError, MailError.
    """
    unusable = Unusable()

    async def take(some: Sequence[bytes]) -> None:
        while some:
            answered, found = await _ask(link, some, unusable)
            if not answered:
                unusable.add(len(some), "no answer that can be read")
                return
            taken(await _install(store, found, unusable))
            some = some[answered:]

    together = [chain_ids[start : start + TOGETHER] for start in range(0, len(chain_ids), TOGETHER)]
    await in_turns(take, together, AT_ONCE)
    if unusable.count:
        log.warning(
            "%d of %d checkpoints from %s cannot be used, so these mailboxes are compared one by one; run `replicator"
            " check` there, whose database may be damaged; the first reason: %s",
            unusable.count, len(chain_ids), link.sid, unusable.why,
        )  # fmt: skip


@dataclass(slots=True)
class Unusable:
    """A count of checkpoints that could not be used, and the reason why the first one could not."""

    count: int = 0
    why: str = ""

    def add(self, count: int, why: str) -> None:
        """Count some more."""
        self.count += count
        self.why = self.why or why


async def _ask(link: PeerLink, chain_ids: Sequence[bytes], unusable: Unusable) -> tuple[int, list[Adoption]]:
    """Return how many of the first ids a neighbour answers, and the checkpoints that come; (0, []): no answer."""
    reply = await link.request(FetchCheckpoints(b"".join(chain_ids)))
    if not isinstance(reply, Content):
        return 0, []
    answered, found, problems = await link.run_in_thread(partial(_unpacked, reply.message, chain_ids))
    for problem in problems:
        unusable.add(1, problem)
    return answered, found


def _unpacked(packed: bytes, chain_ids: Sequence[bytes]) -> tuple[int, list[Adoption], list[str]]:
    """Return how many of the first ids a reply answers, its checkpoints, and why others in it cannot be used.

    (0, [], []) if it cannot be read, or is larger than a node sends.
    """
    if len(packed) > _REPLY_BYTES:
        return 0, [], []
    try:
        answers = msgpack.unpackb(packed, use_list=False, max_map_len=0, max_ext_len=0)
    except (msgpack.UnpackException, ValueError):
        return 0, [], []
    if not isinstance(answers, tuple) or len(answers) > len(chain_ids):
        return 0, [], []
    found, problems = list[Adoption](), list[str]()
    for answer, chain_id in zip(answers, chain_ids, strict=False):
        try:
            if answer is not None:
                found.append(_read(answer, chain_id))
        except (ValueError, UnreadableError) as error:
            problems.append(str(error))
    return len(answers), found, problems


def _read(answer: object, chain_id: bytes) -> Adoption:
    """Return the checkpoint in an answer. Raises ValueError, UnreadableError."""
    match answer:
        case (fields, bytes(data)):
            head = head_from(fields)
        case _:
            raise ValueError("an answer that is no checkpoint")
    if head.mailbox_id != chain_id:
        raise ValueError(f"a mailbox of {head.user} that was not asked for")
    reader = CheckpointReader(f"a mailbox of {head.user}", head, plain_bytes_max=PLAIN_BYTES_MAX)
    changes = list(reader.receive(data))
    reader.finish()
    return adoption_of(head, CheckpointContent(reader.history, changes))


async def _install(store: Store, adoptions: Sequence[Adoption], unusable: Unusable) -> int:
    """Install checkpoints; return how many this node has taken over. Raises MailError."""
    if not adoptions:
        return 0
    try:
        count, problems = await store.write(partial(_adopt_all, adoptions=adoptions))
    except DamageError as error:  # nothing was written
        if len(adoptions) > 1:
            return sum([await _install(store, [adoption], unusable) for adoption in adoptions])
        count, problems = 0, [str(error)]
    for problem in problems:
        unusable.add(1, problem)
    return count


def _adopt_all(tx: Transaction, adoptions: Sequence[Adoption]) -> tuple[int, list[str]]:
    """Install those of which this node has nothing yet; return their number, and why others are refused.

    Raises DamageError, which undoes the transaction.
    """
    count, problems = 0, list[str]()
    for adoption in adoptions:
        try:
            count += adopt(tx, adoption)
        except HistoryError as error:  # before it changed anything
            problems.append(str(error))
    return count, problems


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
    """Return the answers for the first of these ids, packed: as many as have room, but one at least."""
    answers: list[tuple[NamedHead, bytes] | None] = []
    room = TOGETHER_BYTES
    with queries.at_one_moment(connection):
        for chain_id in chain_ids:
            made, read_bytes = _small(connection, chain_id, now_ms)
            answers.append(made)
            room -= read_bytes
            if room <= 0:
                break
    return cast("bytes", msgpack.packb(answers))


def _small(connection: Connection, chain_id: bytes, now_ms: int) -> tuple[tuple[NamedHead, bytes] | None, int]:
    """Return a chain's head and checkpoint, None if it is large, damaged or not there; and how many bytes were made."""
    try:
        made = catalog.checkpoint_of(connection, chain_id, now_ms, messages_max=SMALL_MESSAGES)
        if made is None:
            return None, 0
        data = made.joined(SMALL_BYTES)
    except DatabaseDamagedError as error:
        log.warning("cannot send a checkpoint: %s", error)
        return None, 0
    return (None, SMALL_BYTES) if data is None else ((made.head, data), len(data))
