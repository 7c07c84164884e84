"""Trio adapter of LMTP: one task per connection. It reads bytes, feeds the machine, delivers, and sends replies."""

from __future__ import annotations

import logging
import ssl
from math import inf

import trio

from protocol.units import KIB
from replicator.errors import MailError
from replicator.lmtp import replies
from replicator.lmtp.delivery import Delivery
from replicator.lmtp.events import Envelope, Event, MessageBegun, MessageData, MessageEnded, TlsAccepted, UserAsked
from replicator.lmtp.machine import LmtpMachine
from replicator.lmtp.replies import Reply
from replicator.lmtp.services import LmtpServices, places_of
from replicator.mail.mailstore import sending_s
from replicator.runtime.addresses import client_address
from replicator.runtime.logs.fields import LogFields
from replicator.runtime.places import Place
from replicator.runtime.process.loop_watch import doing
from replicator.runtime.sessions import Facts, OpenSession

log = logging.getLogger(__name__)

SEND_S = 60.0
"""Seconds for sending replies, which are short, to a client that does not read them."""

RECEIVE_BYTES = 64 * KIB
COMMAND_BYTES = 4 * KIB  # between messages, where each line costs 10 µs and more: others go on after 10 ms at most

GOODBYE_S = 1.0
"""Seconds for telling a client that there is no place for it."""


class LmtpServer:
    """Serves connections; `serve` is the handler for `trio.serve_listeners`."""

    def __init__(self, services: LmtpServices) -> None:
        self._services = services
        self._doorkeeper = services.doorkeeper or places_of(services.limits, services.refusals)

    async def serve(self, stream: trio.abc.Stream, address: str | None = None) -> None:
        """Serve one connection until either side ends it, and close it. `address`: the client's if a proxy named it.

        Safe to cancel: messages that were answered are stored, the current one may or may not be.
        """
        was_ended = False
        try:
            async with stream:
                address = client_address(stream) if address is None else address
                connection = _Connection(stream, self._services, address)
                async with self._doorkeeper.admit(address) as place:
                    if place is not None:
                        was_ended = await connection.serve(place)
                if place is None or place.dropped or was_ended:
                    await connection.refuse(replies.ENDED if was_ended else replies.TOO_MANY_CONNECTIONS)
        except (trio.BrokenResourceError, trio.TooSlowError):
            pass  # the client is gone, or does not read; it sends unanswered messages again


class _Connection:
    def __init__(self, stream: trio.abc.Stream, services: LmtpServices, address: str) -> None:
        self._stream = stream
        self._services = services
        self._client_ip = address or None
        self._command: str | None = None
        self._since_ms = services.clock_ms()
        self._machine = LmtpMachine(
            services.node_name,
            services.max_message_bytes,
            services.recipients.find,
            offers_tls=services.tls() is not None,
        )

    async def refuse(self, reply: Reply) -> None:
        """Reply why the connection ends, instead of a greeting or between messages."""
        with trio.move_on_after(GOODBYE_S):
            await self._stream.send_all(reply.encode())

    async def serve(self, place: Place) -> bool:
        """Run the dialogue to its end. Return True if an operator has ended it."""
        with self._services.sessions.opened("lmtp", self._client_ip or "", self._facts) as opened:
            await self._serve(place, opened)
        return opened.was_ended

    def _facts(self) -> Facts:
        return Facts(None, self._command, self._since_ms, None, isinstance(self._stream, trio.SSLStream))

    def _does(self, command: str | None) -> None:
        """Note the command that takes time from now on; None: the client is waited for."""
        self._command, self._since_ms = command, self._services.clock_ms()
        doing("lmtp", self._client_ip, command or "commands")

    async def _serve(self, place: Place, opened: OpenSession) -> None:
        """Run the dialogue. It is ended between messages: a client sends one without an answer again."""
        self._does(None)
        event = await self._next_event()
        while event is not None:
            after: Event | None = None
            if isinstance(event, MessageBegun):
                self._does("DATA")
                with place.busy(), opened.busy():
                    await self._take_message(event.envelope)
                    if self._machine.buffered_bytes <= COMMAND_BYTES:
                        after = self._advance()  # commands that came with the message are answered together with it
                    await self._flush()  # a client that loses its place without an answer delivers the message again
                self._does(None)
            elif isinstance(event, TlsAccepted):
                await self._start_tls()
            elif isinstance(event, UserAsked):
                self._does("RCPT")
                self._machine.tell(await self._asked(event.name))
                self._does(None)
            event = after or await self._next_event()

    async def _asked(self, name: str) -> tuple[str, ...] | MailError:
        """Return the users of an address, or why they are unknown, after asking about them."""
        try:
            return await self._services.recipients.ask(name)
        except MailError as error:
            return error

    async def _start_tls(self) -> None:
        """Encrypt from here on. Raises BrokenResourceError, TooSlowError."""
        context = self._services.tls()
        assert context is not None, "STARTTLS was offered"
        if self._machine.buffered_bytes:  # plain text must not count as sent under TLS (RFC 3207 section 4.2)
            raise trio.BrokenResourceError("commands were sent before the answer to STARTTLS")
        await self._flush()
        stream = trio.SSLStream(self._stream, context, server_side=True, https_compatible=True)
        try:
            with trio.fail_after(self._services.limits.lmtp_idle_seconds):
                await stream.do_handshake()
        except (trio.BrokenResourceError, ssl.SSLError) as error:
            log.info("%s", LogFields({"client": self._client_ip, "reason": f"the TLS handshake failed: {error}"}))
            raise trio.BrokenResourceError from error
        self._stream = stream
        self._machine.tls_began()

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
        while (event := self._advance()) is None:
            await self._flush()
            if self._machine.closed:
                return None
            silent_by = trio.current_time() + self._services.limits.lmtp_idle_seconds
            with trio.CancelScope(deadline=min(silent_by, by)) as scope:
                await self._receive()
            if scope.cancelled_caught:
                self._give_up(too_slow=by < silent_by)
        return event

    def _give_up(self, *, too_slow: bool) -> None:
        """Close a connection whose message takes too long, or that is silent."""
        if not too_slow:
            self._services.refusals.refused("lmtp", "lmtp_idle_seconds")
        self._machine.close(replies.TOO_SLOW if too_slow else replies.IDLE_TOO_LONG)

    async def _receive(self) -> None:
        data = await self._stream.receive_some(RECEIVE_BYTES if self._machine.in_message else COMMAND_BYTES)
        if data:
            self._machine.receive(data)
        else:
            self._machine.disconnected()

    def _advance(self) -> Event | None:
        """Go on with what has arrived. Return the next event; None if there is none yet."""
        event = self._machine.advance()
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
        return event

    async def _flush(self) -> None:
        output = self._machine.take_output()
        if output:
            with trio.fail_after(SEND_S):
                await self._stream.send_all(output)
