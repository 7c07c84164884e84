"""Trio adapter of socketmap: one task for each connection, which answers one question after the other.

The only map is `recipient`. Its keys are addresses, and each that reaches a user has itself as its value. The key
`@domain`, which Postfix looks up after an address, has none: a catch-all address is a value of each address already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from replicator.config import LimitsConfig
from replicator.errors import MailError, OtherClusterError
from replicator.runtime.environment import wall_clock_ms
from replicator.runtime.logs.fields import LogFields
from replicator.runtime.metrics import RefusalMetrics, SocketmapMetrics
from replicator.runtime.places import Doorkeeper, Limit, Place, PlaceLimits, Places
from replicator.runtime.process.loop_watch import doing
from replicator.runtime.sessions import Facts, Sessions
from replicator.socketmap.netstrings import NetstringError, NetstringReader, netstring
from replicator.users import Recipients

log = logging.getLogger(__name__)

RECIPIENT = "recipient"
SEND_S = 10.0
"""Seconds for sending an answer, which is short, to a client that does not read it."""

RECEIVE_BYTES = 4096
REASON_MAX = 200
"""Characters of a reason, which the MTA writes into its log."""


@dataclass(frozen=True, slots=True)
class SocketmapServices:
    """Services of the node for connections."""

    recipients: Recipients
    metrics: SocketmapMetrics = field(default_factory=SocketmapMetrics)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    refusals: RefusalMetrics = field(default_factory=RefusalMetrics)
    doorkeeper: Doorkeeper | None = None  # None: the limits hold for this server alone
    sessions: Sessions = field(default_factory=Sessions)
    clock_ms: Callable[[], int] = wall_clock_ms


def places_of(limits: LimitsConfig, refusals: RefusalMetrics) -> Places:
    """Return the places of a socketmap door."""
    most = PlaceLimits(total=Limit(limits.socketmap_connections, "socketmap_connections"))
    return Places(most, partial(refusals.refused, "socketmap"))


class SocketmapServer:
    """Serves connections; `serve` is the handler for `trio.serve_listeners`."""

    def __init__(self, services: SocketmapServices) -> None:
        self._services = services
        self._doorkeeper = services.doorkeeper or places_of(services.limits, services.refusals)

    async def serve(self, stream: trio.abc.Stream, address: str) -> None:
        """Answer the questions of one client until either side ends the connection, and close it."""
        try:
            async with stream, self._doorkeeper.admit(address) as place:
                if place is not None:
                    await self._serve(stream, address, place)
        except (trio.BrokenResourceError, trio.TooSlowError):
            pass  # the client is gone, or does not read; it asks again
        except NetstringError as error:
            log.info("a question is refused %s", LogFields({"client": address or None, "reason": error}))

    async def _serve(self, stream: trio.abc.Stream, address: str, place: Place) -> None:
        since_ms = self._services.clock_ms()
        with self._services.sessions.opened("socketmap", address, lambda: Facts(None, None, since_ms, None, tls=False)):
            reader = NetstringReader()
            while (question := await self._next_question(stream, reader)) is not None:
                doing("socketmap", address, "question")
                with place.busy():
                    answer = netstring(await self._answer(question))
                    with trio.fail_after(SEND_S):
                        await stream.send_all(answer)

    async def _next_question(self, stream: trio.abc.Stream, reader: NetstringReader) -> bytes | None:
        """Return the next question; None at the end of the connection, or if none is whole in time.

        Raises NetstringError.
        """
        with trio.move_on_after(self._services.limits.socketmap_idle_seconds):
            while (question := reader.next()) is None:
                data = await stream.receive_some(RECEIVE_BYTES)
                if not data:
                    return None
                reader.add(data)
            return question
        self._services.refusals.refused("socketmap", "socketmap_idle_seconds")
        return None

    async def _answer(self, question: bytes) -> str:
        answer, text = await self._found(question)
        self._services.metrics.answered(answer)
        text = "".join(character if character.isprintable() else "?" for character in text)
        return f"{answer} {text}"

    async def _found(self, question: bytes) -> tuple[str, str]:
        """Return the word and the text of an answer (socketmap_table(5), REPLY FORMAT)."""
        try:
            name, space, key = question.decode().partition(" ")
        except UnicodeDecodeError:
            return "NOTFOUND", ""  # no user has such a name
        if name != RECIPIENT or not space:
            return "PERM", f"the only map here is {RECIPIENT}"
        try:
            exists = not key.startswith("@") and bool(await self._services.recipients.ask(key))
        except OtherClusterError:
            exists = True  # the mail is elsewhere, and the recipient exists
        except MailError as error:
            return "TEMP", str(error)[:REASON_MAX]
        return ("OK", key) if exists else ("NOTFOUND", "")
