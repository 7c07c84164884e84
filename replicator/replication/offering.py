"""Large messages are offered to the neighbours before they are numbered: these fetch the parts first.

An entry whose parts are still to come holds up all that its origin numbers after it, at that neighbour: it acknowledges
an origin's entries in their order. What was offered is held for a while, so that the entry finds it there. An offer
is for speed only: where it is refused, or takes too long, the parts come with the entry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

import trio

from protocol.commands import Done, Offer, Parts, RefusalCode, Refused, Reply
from protocol.units import KIB
from replicator.errors import UnavailableError
from replicator.replication.link import LinkDownError, PeerLink
from replicator.replication.operations import transfer_s
from replicator.replication.taking import Taker
from replicator.store.attachments.construction import Holding

log = logging.getLogger(__name__)

OFFERED_BYTES = 1024 * KIB  # what is smaller holds up nobody for long
HELD_S = 60.0  # the entry comes soon, or its change was refused
HELD_MAX = 64  # messages; of more the parts come with their entries


class Offering:
    """Belongs to the event loop. `links` are those on which what this node numbers is waited for."""

    def __init__(self, taker: Taker, links: Callable[[], Iterable[PeerLink]]) -> None:
        self._taker = taker
        self._links = links
        self._held_in, self._held_out = trio.open_memory_channel[tuple[float, list[Holding]]](HELD_MAX)

    async def run(self) -> None:
        """Let go what was held for long enough, until cancelled; then all."""
        held: list[Holding] = []
        try:
            while True:
                until, held = await self._held_out.receive()
                await trio.sleep_until(until)
                await self._taker.let_go(held)
                held = []
        finally:
            with suppress(trio.WouldBlock):
                while True:
                    await self._taker.let_go(held)
                    _, held = self._held_out.receive_nowait()

    async def offer(self, message: bytes | Parts) -> None:
        """Return when all neighbours have the parts of a large message, or some have had their time."""
        if isinstance(message, bytes) or message.size < OFFERED_BYTES:
            return
        with trio.move_on_after(transfer_s(message) / 2):  # the rest of its time is for whoever waits for the entry
            async with trio.open_nursery() as nursery:
                for link in self._links():
                    nursery.start_soon(self._offer, link, message)

    async def answer(self, link: PeerLink, offer: Offer) -> Reply:
        """Hold the parts of what a peer offers. Raises DiskFullError, UnavailableError."""
        if self._held_in.statistics().current_buffer_used >= HELD_MAX:
            raise UnavailableError("enough is held here as it is")
        held = await self._taker.hold(offer.message, link)
        if not held:
            return Refused(RefusalCode.NO_CONTENT, "not all parts are to be had")
        try:
            self._held_in.send_nowait((trio.current_time() + HELD_S, held))
        except trio.WouldBlock:
            await self._taker.let_go(held)
        return Done()

    async def _offer(self, link: PeerLink, message: Parts) -> None:
        with suppress(LinkDownError):
            reply = await link.request(Offer(message))
            if isinstance(reply, Refused):
                log.info("%s does not take a large message beforehand: %s", link.sid, reply.text)
