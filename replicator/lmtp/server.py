"""Trio adapter of LMTP: one task per connection. It reads bytes, feeds the machine, delivers, and sends replies."""

from __future__ import annotations

import logging
from math import inf

import trio

from protocol.units import KIB
from replicator.lmtp import replies
from replicator.lmtp.delivery import Delivery
from replicator.lmtp.machine import Envelope, Event, LmtpMachine, MessageBegun, MessageData, MessageEnded
from replicator.lmtp.services import LmtpServices
from replicator.mailstore import sending_s
from replicator.runtime.log_fields import LogFields
from replicator.runtime.loop_watch import doing

log = logging.getLogger(__name__)

IDLE_S = 300.0
"""Seconds of waiting for the client; RFC 5321 section 4.5.3.2.7 requires at least five minutes."""

SEND_S = 60.0
"""Seconds for sending replies, which are short, to a client that does not read them."""

RECEIVE_BYTES = 64 * KIB

CONNECTIONS_MAX = 200
"""Connections at once: twice what mail servers open by default, so that two of them can deliver.

However large the messages are, each connection holds in memory a few pieces of RECEIVE_BYTES, and the mail store's
sink.
"""


class LmtpServer:
    """Serves connections; `serve` is the handler for `trio.serve_listeners`."""

    def __init__(self, services: LmtpServices) -> None:
        self._services = services
        self._connections = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until either side ends it, and close it.

        Safe to cancel: messages that were answered are stored, the current one may or may not be.
        """
        self._connections += 1
        try:
            async with stream:
                connection = _Connection(stream, self._services)
                if self._connections > CONNECTIONS_MAX:
                    await connection.refuse()
                else:
                    await connection.serve()
        except (trio.BrokenResourceError, trio.TooSlowError):
            pass  # the client is gone, or does not read; it sends unanswered messages again
        finally:
            self._connections -= 1


class _Connection:
    def __init__(self, stream: trio.abc.Stream, services: LmtpServices) -> None:
        self._stream = stream
        self._services = services
        self._client_ip = _client_ip(stream)
        self._machine = LmtpMachine(services.node_name, services.max_message_bytes, services.users.find)

    async def refuse(self) -> None:
        """Reply that there are too many connections, instead of a greeting."""
        await self._stream.send_all(replies.TOO_MANY_CONNECTIONS.encode())

    async def serve(self) -> None:
        """Run the dialogue to its end."""
        doing("lmtp", self._client_ip, "commands")
        while (event := await self._next_event()) is not None:
            if isinstance(event, MessageBegun):
                doing("lmtp", self._client_ip, "DATA")
                await self._take_message(event.envelope)
                doing("lmtp", self._client_ip, "commands")

    async def _take_message(self, envelope: Envelope) -> None:
        """Receive one message and answer it. A message that is too large, or breaks off, leaves nothing behind."""
        async with self._services.mail.receive() as sink:
            delivery = Delivery(self._services, envelope, sink, self._client_ip)
            by = trio.current_time() + sending_s(self._services.max_message_bytes)
            while isinstance(event := await self._next_event(by), MessageData):
                await delivery.write(event.data)
            if isinstance(event, MessageEnded):
                began = trio.current_time()
                answers = await delivery.finish()
                self._machine.delivered(answers)
                self._services.metrics.delivered((reply.code for reply in answers), trio.current_time() - began)

    async def _next_event(self, by: float = inf) -> Event | None:
        """Answer all that can be answered, and read on, until `by`. Return None at the end of the connection."""
        while (event := self._machine.advance()) is None:
            self._note_rejections()
            await self._flush()
            if self._machine.closed:
                return None
            silent_by = trio.current_time() + IDLE_S
            with trio.CancelScope(deadline=min(silent_by, by)) as scope:
                await self._receive()
            if scope.cancelled_caught:
                self._machine.close(replies.TOO_SLOW if by < silent_by else replies.IDLE_TOO_LONG)
        return event

    async def _receive(self) -> None:
        data = await self._stream.receive_some(RECEIVE_BYTES)
        if data:
            self._machine.receive(data)
        else:
            self._machine.disconnected()

    def _note_rejections(self) -> None:
        for rejection in self._machine.take_rejections():
            self._services.metrics.rejected(rejection.reply.code)
            fields = {
                "code": rejection.reply.code,
                "from": f"<{rejection.sender or ''}>",
                "rcpt": rejection.argument,
                "client": self._client_ip,
                "reason": rejection.reply.text,
            }
            log.info("rejected %s", LogFields(fields))

    async def _flush(self) -> None:
        output = self._machine.take_output()
        if output:
            with trio.fail_after(SEND_S):
                await self._stream.send_all(output)


def _client_ip(stream: trio.abc.Stream) -> str | None:
    """Return the peer's IP address, or None for a local socket or a stream in memory."""
    if not isinstance(stream, trio.SocketStream):
        return None
    try:
        name: object = stream.socket.getpeername()
    except OSError:  # disconnected already
        return None
    match name:
        case (str(host), *_):
            return host.partition("%")[0]
    return None
