"""The trio adapter: one task a connection. It reads bytes, feeds the machine, delivers, and writes what it says."""

from __future__ import annotations

import logging

import trio

from protocol.units import KIB, MIB
from replicator.lmtp import replies
from replicator.lmtp.delivery import deliver
from replicator.lmtp.machine import LmtpMachine
from replicator.lmtp.services import LmtpServices
from replicator.log_fields import LogFields

log = logging.getLogger(__name__)

IDLE_S = 300.0
"""RFC 5321 section 4.5.3.2.7: a server waits at least five minutes for the client."""

SEND_S = 60.0
"""For a client that does not read our replies; they are short."""

RECEIVE_BYTES = 64 * KIB

CONNECTIONS_MAX = 200
"""Twice what mail servers open by default, so that two of them can deliver. With the two below, memory stays within
CONNECTIONS_MAX * LARGE_BYTES + LARGE_AT_ONCE * (the largest message and its copies)."""

LARGE_BYTES = MIB
"""Of a message that is still arriving. Nearly all mail is smaller; larger ones take turns."""

LARGE_AT_ONCE = 8


class LmtpServer:
    """Serves connections; `serve` is the handler for `trio.serve_listeners`."""

    def __init__(self, services: LmtpServices) -> None:
        self._services = services
        self._connections = 0
        self._large = trio.Semaphore(LARGE_AT_ONCE, max_value=LARGE_AT_ONCE)

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until either side ends it, and close it.

        Safe to cancel: messages that were answered are stored, the one in hand may or may not be.
        """
        self._connections += 1
        try:
            async with stream:
                connection = _Connection(stream, self._services, self._large)
                if self._connections > CONNECTIONS_MAX:
                    await connection.refuse()
                else:
                    await connection.serve()
        except (trio.BrokenResourceError, trio.TooSlowError):
            pass  # the client is gone, or does not read; what it was not told, it sends again
        finally:
            self._connections -= 1


class _Connection:
    def __init__(self, stream: trio.abc.Stream, services: LmtpServices, large: trio.Semaphore) -> None:
        self._stream = stream
        self._services = services
        self._large = large
        self._holds_large = False
        self._client_ip = _client_ip(stream)
        self._machine = LmtpMachine(services.node_name, services.max_message_bytes, services.users.find)

    async def refuse(self) -> None:
        """Say that there are too many connections instead of a greeting."""
        await self._stream.send_all(replies.TOO_MANY_CONNECTIONS.encode())

    async def serve(self) -> None:
        """The dialogue, to its end."""
        try:
            while await self._exchange():
                pass
        finally:
            self._release_large()

    async def _exchange(self) -> bool:
        """Answer all that can be answered, then read once. False: the connection is at its end."""
        while (message := self._machine.advance()) is not None:
            began = trio.current_time()
            answers = await deliver(self._services, message, self._client_ip)
            self._machine.delivered(answers)
            self._services.metrics.delivered((reply.code for reply in answers), trio.current_time() - began)
            del message  # it may be large, and the next one may take long to come
        self._note_rejections()
        await self._flush()
        if self._machine.closed:
            return False
        with trio.move_on_after(IDLE_S):
            await self._take_turn()
            data = await self._stream.receive_some(RECEIVE_BYTES)
            self._machine.receive(data)
            return bool(data)
        self._machine.close(replies.IDLE_TOO_LONG)
        await self._flush()
        return False

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

    async def _take_turn(self) -> None:
        """Large messages wait until one of few places is free; a small one gives its place back."""
        if self._machine.buffered_bytes <= LARGE_BYTES:
            self._release_large()
        elif not self._holds_large:
            await self._large.acquire()
            self._holds_large = True

    def _release_large(self) -> None:
        if self._holds_large:
            self._holds_large = False
            self._large.release()


def _client_ip(stream: trio.abc.Stream) -> str | None:
    """The other end's address, None if it has none: a local socket, or a stream in memory."""
    if not isinstance(stream, trio.SocketStream):
        return None
    try:
        name: object = stream.socket.getpeername()
    except OSError:  # gone already
        return None
    match name:
        case (str(host), *_):
            return host.partition("%")[0]
    return None
