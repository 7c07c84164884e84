"""Offers large messages to the neighbours before they are numbered, so that the neighbours fetch the attachments first.

A neighbour acknowledges an origin's entries in order, so an entry whose attachments are still to come would hold up all
later entries of its origin. Offered attachments are held until their entry has come, for some minutes at most. A
neighbour that refuses an offer, or is slower than the others, fetches the attachments with the entry. But if too few
neighbours take the offer, and some because they have no room, the message is refused: its entry would keep all later
entries from reaching enough copies. Offers take turns on a link, so that of many messages on a slow line some arrive in
time.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from protocol.commands import Done, Offer, Parts, RefusalCode, Refused, Reply
from protocol.units import GIB, MIB
from replicator.errors import DiskFullError, MailError, UnavailableError
from replicator.replication import timing
from replicator.replication.bodies import Bodies
from replicator.replication.links.link import LinkDownError, PeerLink
from replicator.store.attachments.construction import Holding
from replicator.store.bodies.body_rows import is_here
from replicator.store.store import Store

log = logging.getLogger(__name__)

OFFERED_BYTES = MIB  # smallest size of an offered message: smaller ones do not hold up later entries for long
HELD_BYTES_MAX = 2 * GIB  # on disk for offered messages; beyond it attachments come with their entries
GIVEN_MAX = 1000  # offers that are remembered: a message to many recipients is offered once


@dataclass(slots=True)
class _Held:
    holdings: list[Holding] = field(repr=False)
    size_bytes: int
    until: float


class Prestage:
    """Offers of large messages, made and answered. Belongs to the event loop.

    `links` lead to the neighbours that clients may wait for; `wanted` is the number of them that must take an offer.
    """

    def __init__(self, store: Store, bodies: Bodies, links: Callable[[], Iterable[PeerLink]], wanted: int) -> None:
        self._store = store
        self._bodies = bodies
        self._links = links
        self.wanted = wanted
        self._held: dict[bytes, _Held] = {}  # by the hash of the message
        self._coming: dict[bytes, trio.Event] = {}
        self._size_bytes = 0  # of `_held` and `_coming` together
        self._given: OrderedDict[tuple[str, bytes], float] = OrderedDict()

    async def run(self) -> None:
        """Release attachments that were held for long enough, until cancelled; then release all."""
        try:
            while True:
                await trio.sleep(timing.PRESTAGE_LOOK_EVERY_S)
                if self._held:
                    await self._let_go(await self._over())
        finally:
            await self._let_go(list(self._held))

    # ---- at the node that numbers the message

    @staticmethod
    def is_for(message: Parts) -> bool:
        """Return True if the message is large enough to be offered."""
        return message.size >= OFFERED_BYTES

    async def offer(self, message: Parts) -> None:
        """Return when as many neighbours as wanted have the message's attachments, or no more neighbours can get them.

        Raises DiskFullError if too few neighbours have room, and UnavailableError if the offer takes so long that the
        client could not hear OK in time. Were the message numbered then, the client would get an ambiguous error for a
        stored message and retry, creating a duplicate.
        """
        links, takers, full = list(self._links()), list[str](), list[str]()
        wanted, time_left_s = min(self.wanted, len(links)), self._time_left_s()
        if not wanted or time_left_s <= 0:
            return
        with trio.move_on_after(time_left_s) as scope:
            async with trio.open_nursery() as nursery:

                async def offer(link: PeerLink) -> None:
                    try:
                        if await self._is_taken(link, message):
                            takers.append(link.sid)
                    except DiskFullError:
                        full.append(link.sid)
                    if len(takers) >= wanted or len(full) > len(links) - wanted:
                        nursery.cancel_scope.cancel()  # the other neighbours go on fetching

                for link in links:
                    nursery.start_soon(offer, link)
        if len(takers) >= wanted:
            return
        if full:
            have = f"{' and '.join(sorted(full))} {'have' if len(full) > 1 else 'has'}"
            raise DiskFullError(f"{have} no room for this message; try later")
        if scope.cancelled_caught:
            raise UnavailableError("a large message did not reach other nodes in time; try later")

    @staticmethod
    def _time_left_s() -> float:
        """Return the seconds left for the offer: the time until the change's deadline, less that for its entry."""
        return trio.current_effective_deadline() - trio.current_time() - timing.PRESTAGE_NUMBERING_S

    async def _is_taken(self, link: PeerLink, message: Parts) -> bool:
        """Offer a message to one neighbour; return True if the neighbour has taken it. Raises DiskFullError."""
        key = link.hello.origin, message.content_hash
        if trio.current_time() < self._given.get(key, -math.inf) + timing.PRESTAGE_HELD_S / 2:
            return True
        with suppress(LinkDownError):
            async with link.offer_turn:
                reply = await link.request(Offer(message))
            if not isinstance(reply, Refused):
                self._given[key] = trio.current_time()
                if len(self._given) > GIVEN_MAX:
                    self._given.popitem(last=False)
                return True
            log.warning("%s refused to take a large message in advance: %s", link.sid, reply.text)
            if reply.code == RefusalCode.DISK_FULL:
                raise DiskFullError(reply.text)
        return False

    # ---- at the neighbours

    async def answer(self, link: PeerLink, offer: Offer) -> Reply:
        """Fetch and hold the attachments of a message that a peer offers. Raises DiskFullError, UnavailableError."""
        message, content_hash = offer.message, offer.message.content_hash
        while (coming := self._coming.get(content_hash)) is not None:
            await coming.wait()
        if (held := self._held.get(content_hash)) is not None:
            held.until = trio.current_time() + timing.PRESTAGE_HELD_S
            return Done()
        if self._size_bytes + message.size > HELD_BYTES_MAX:
            raise UnavailableError("this node already holds enough messages in advance")
        if not await self._hold(message, link):
            return Refused(RefusalCode.NO_CONTENT, "not all parts are available")
        return Done()

    async def _hold(self, message: Parts, link: PeerLink) -> bool:
        coming = self._coming[message.content_hash] = trio.Event()
        self._size_bytes += message.size
        holdings: list[Holding] = []
        try:
            holdings = await self._bodies.hold(message, link)
        finally:
            del self._coming[message.content_hash]
            coming.set()
            if holdings:
                until = trio.current_time() + timing.PRESTAGE_HELD_S
                self._held[message.content_hash] = _Held(holdings, message.size, until)
            else:
                self._size_bytes -= message.size
        return bool(holdings)

    async def _over(self) -> list[bytes]:
        """Return the hashes of messages that were held for long enough or whose bodies are stored by now."""
        over = {content_hash for content_hash, held in self._held.items() if held.until < trio.current_time()}
        held = list(self._held)
        with suppress(MailError):
            over.update(await self._store.read(lambda reader: [one for one in held if is_here(reader, one)]))
        return list(over)

    async def _let_go(self, hashes: Iterable[bytes]) -> None:
        gone = [self._held.pop(content_hash) for content_hash in hashes]
        self._size_bytes -= sum(held.size_bytes for held in gone)
        await self._bodies.let_go([holding for held in gone for holding in held.holdings])
