"""One link: a connection to a peer after its HELLO, in both directions.

Posting is synchronous and keeps its order, so a mailbox's number is always sent before the command that uses it; a
separate task of the link writes what was posted. Replies arrive in any order. Callers that post much first await
`room`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import trio

from protocol.commands import Command, Done, Hello, Log, Mbox, Ping, RefusalCode, Refused, Reply
from protocol.framing import Frame
from protocol.parser import parse
from protocol.stream_codec import (
    ContinuationNeeded,
    Decoder,
    Encoder,
    Item,
    ProtocolError,
    Request,
    Response,
    is_large,
)
from replicator.replication import timing
from replicator.replication.links.expected_replies import has_large_reply, patience_s
from replicator.replication.links.mailbox_numbers import ReceivedNumbers, SentNumbers
from replicator.runtime.environment import ThreadRunner
from replicator.runtime.process.loop_watch import doing
from replicator.runtime.signals import Signal
from replicator.store.db.queries import MailboxKey

log = logging.getLogger(__name__)

RECEIVE_BYTES = 1 << 17
# Octets posted and not yet sent, beyond which `room` waits. A request queues behind so much of the log, and as much
# again that is being sent: at 150 KB/s that takes a second. Behind a long batch (`entry_batch`) it takes two.
OUTPUT_BYTES = 1 << 16
OUTPUT_MAX_BYTES = OUTPUT_BYTES + (80 << 20)  # one message, and what does not wait for room; beyond it the link ends
CHUNKS_AT_ONCE = 64  # requested of the peer: leaves room for other requests however many attachments are fetched
OFFERS_AT_ONCE = 2  # made to the peer: one fills the line, and the next begins while that one ends
LARGE_REPLIES_AT_ONCE = 8  # to the peer: each is in memory until it is sent
COMMANDS_AT_ONCE = 50  # read without a pause for others: a millisecond
MAX_REQUESTS = 1024  # of the peer that are being answered; more are refused


class Traffic(NamedTuple):
    """Bytes that went over one or more links: on the line, and `plain`, before compression and after decompression."""

    sent_bytes: int = 0
    sent_plain_bytes: int = 0
    received_bytes: int = 0
    received_plain_bytes: int = 0

    def plus(self, other: Traffic) -> Traffic:
        """Return the sum of both."""
        return Traffic(*map(sum, zip(self, other, strict=True)))


NO_TRAFFIC = Traffic()


class LinkDownError(Exception):
    """The link ended before the reply came: the request may or may not have been carried out."""


class NoReplyError(LinkDownError):
    """The link is up, but the reply is overdue."""


class LinkHandler(Protocol):
    """The node's handling of commands that come in."""

    def asked_for_log(self, link: PeerLink, log: Log) -> Reply:
        """Answer a LOG, in order with the commands without a tag. Raises ProtocolError, LinkDownError."""
        ...

    async def answer(self, link: PeerLink, command: Command) -> Reply:
        """Answer a request; many run at once."""
        ...

    async def notice(self, link: PeerLink, command: Command) -> None:
        """Handle a command without a tag; called in order. The link reads no further meanwhile."""
        ...


class Observer(Protocol):
    """A watcher of links. It is told in order, returns at once and raises nothing. Sizes are before compression."""

    def sent(self, link: PeerLink, item: Request | Response, size_bytes: int) -> None:
        """Take note of what this node sends."""
        ...

    def received(self, link: PeerLink, item: Request | Response, size_bytes: int) -> None:
        """Take note of what came, before the link acts on it."""
        ...

    def ended(self, link: PeerLink) -> None:
        """Take note of the end of a link."""
        ...


class PeerLink:
    """A link that is up. `hello` is the peer's HELLO."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        hello: Hello,
        encoder: Encoder,
        decoder: Decoder,
        run_in_thread: ThreadRunner,
    ) -> None:
        self.hello = hello
        self.sid = hello.sid
        self.round_trip_us = 0
        self._stream = stream
        self._encoder = encoder
        self._decoder = decoder
        self.run_in_thread = run_in_thread
        self._output = bytearray()
        self._posted = Signal()
        self._drained = Signal()
        self._turn = trio.Lock()  # fair, so that the sender of a long log is not always first
        self._tags = 0
        self._pending: dict[str, trio.MemorySendChannel[Reply]] = {}
        self._sent_numbers = SentNumbers()
        self._received_numbers = ReceivedNumbers()
        self._requests = 0  # of the peer so far
        self._answering: set[int] = set()  # those of them that are being answered, by number
        self._answered = Signal()
        self.chunk_turn = trio.Semaphore(CHUNKS_AT_ONCE)  # acquired by each request for a chunk
        self.offer_turn = trio.Semaphore(OFFERS_AT_ONCE)
        self._large_turn = trio.Semaphore(LARGE_REPLIES_AT_ONCE)
        self._received_bytes = 0
        self._heartbeat_s = 0.0
        # When the last answered PING was sent, and when the last late reply to one came.
        self._pinged_at = self._slow_at = -math.inf
        self.closed = False
        self.observer: Observer | None = None
        self.scope = trio.CancelScope()

    @property
    def traffic(self) -> Traffic:
        """Bytes that went over this link so far, from HELLO on; TLS adds some."""
        sent, received = self._encoder, self._decoder
        return Traffic(sent.line_bytes, sent.plain_bytes, received.line_bytes, received.plain_bytes)

    @property
    def output_bytes(self) -> int:
        """Bytes that were posted, and are not being sent yet."""
        return len(self._output)

    # ---- sending

    def post(self, command: Command, tag: str | None = None) -> None:
        """Queue a command to be sent. Do nothing if the link is down."""
        self._append(self._encoded(Request(tag, command)))

    def number(self, key: MailboxKey, name: str = "") -> int:
        """Return the mailbox's number in this direction; a new one is announced to the peer by MBOX.

        `name` is for people only.
        """
        number = self._sent_numbers.use(key)
        if number is None:
            number = self._sent_numbers.give(key)
            self.post(Mbox(number, key.user, name, key.mailbox_id, key.uidvalidity))
        return number

    def is_numbered(self, key: MailboxKey) -> bool:
        """Return True if the mailbox has a number in this direction."""
        return key in self._sent_numbers

    def numbers(self, *, sent: bool) -> dict[int, MailboxKey]:
        """Return the mailboxes by the numbers that this node, or the peer, has given them; for observers."""
        return (self._sent_numbers if sent else self._received_numbers).mailboxes()

    async def room(self, *, for_long: bool = False) -> None:
        """Return when the output queue has room, one caller after the other. Raises LinkDownError.

        `for_long`: room for a long batch, which is in nothing but an empty queue. A caller that finds room takes no
        turn of the event loop.
        """
        most_bytes = 0 if for_long else OUTPUT_BYTES
        if len(self._output) <= most_bytes and not self._turn.locked():
            return
        async with self._turn:
            while len(self._output) > most_bytes:
                if self.closed:
                    raise LinkDownError(self.sid)
                await self._drained.wait()

    async def request(self, command: Command | Callable[[PeerLink], Command]) -> Reply:
        """Send a request and return its reply. If cancelled, the peer may still carry out the request.

        If `command` is a function, it is called once there is room, to make the command with this link's numbers.
        Raises LinkDownError, and NoReplyError if the reply is overdue while PINGs are answered quickly: then it will
        never come.
        """
        await self.room()
        if self.closed:
            raise LinkDownError(self.sid)
        self._tags += 1
        tag = f"r{self._tags}"
        send, receive = trio.open_memory_channel[Reply](1)
        self._pending[tag] = send
        try:
            command = command(self) if callable(command) else command
            self.post(command, tag)
            with trio.move_on_after(patience_s(command)):
                return await receive.receive()
            while not self.is_quick:
                with trio.move_on_after(timing.LINK_SLOW_S):
                    return await receive.receive()
            raise NoReplyError(self.sid)
        except trio.EndOfChannel:
            raise LinkDownError(self.sid) from None
        finally:
            self._pending.pop(tag, None)

    async def wait_answered(self) -> None:
        """Return once the requests that the peer has made so far are answered, or the link has ended."""
        asked = {*self._answering}
        while not asked.isdisjoint(self._answering):
            await self._answered.wait()

    # ---- receiving

    def renew(self, hello: Hello) -> None:
        """Take the changed capabilities of the same peer. Raises ProtocolError if the HELLO is another run's."""
        if (hello.sid, hello.origin) != (self.sid, self.hello.origin):
            raise ProtocolError(f"{hello.origin} sent HELLO on the link of another node, {self.hello.origin}")
        self.hello = replace(self.hello, capabilities=hello.capabilities)

    def key_of(self, number: int) -> MailboxKey:
        """Return the mailbox to which the peer gave this number. Raises ProtocolError if there is none."""
        return self._received_numbers.key_of(number)

    async def run(self, handler: LinkHandler, *, heartbeat_s: float, timeout_s: float) -> None:
        """Read, write and keep alive until the link ends; then return.

        Raises ProtocolError if the peer violates the protocol, OSError and trio's stream errors if the connection
        breaks, TooSlowError if nothing came for `timeout_s`.
        """
        self._heartbeat_s = heartbeat_s
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._beat, nursery, heartbeat_s)
                    await self._read(handler, nursery, timeout_s)
                    nursery.cancel_scope.cancel()
        finally:
            self._close()
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    async def _read(self, handler: LinkHandler, nursery: trio.Nursery, timeout_s: float) -> None:
        data = b""  # octets that came with the HELLO are already in the decoder
        while True:
            for count, event in enumerate(self._decoder.frames(data), 1):
                if event is None or count % COMMANDS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                if event is not None:
                    await self._take(await self._parsed(event), handler, nursery)
            with trio.fail_after(timeout_s):
                data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
            if not data:
                return
            self._received_bytes += len(data)

    async def _parsed(self, event: Frame | ContinuationNeeded) -> Item:
        if isinstance(event, ContinuationNeeded):
            return event
        item = await self.run_in_thread(partial(parse, event)) if is_large(event) else parse(event)
        if self.observer is not None:
            self.observer.received(self, item, len(event.text) + sum(map(len, event.literals)) + len(b"\r\n"))
        return item

    async def _take(self, item: Item, handler: LinkHandler, nursery: trio.Nursery) -> None:
        if isinstance(item, Request):
            doing("peer", self.sid, type(item.command).__name__)
        match item:
            case Response(tag, reply):
                if (waiting := self._pending.pop(tag, None)) is not None:
                    waiting.send_nowait(reply)
            case Request(tag, Mbox() as command):
                self._received_numbers.learn(command)
                if tag is not None:
                    self._serve(handler, nursery, tag, command)
            case Request(None, command):
                await handler.notice(self, command)
            case Request(str(tag), Ping()):
                self._reply(tag, Done())
            case Request(str(tag), Log() as log):
                self._reply(tag, handler.asked_for_log(self, log))
            case Request(str(tag), command):
                self._serve(handler, nursery, tag, command)
            case ContinuationNeeded():
                self._append(self._encoder.continuation())

    def _serve(self, handler: LinkHandler, nursery: trio.Nursery, tag: str, command: Command) -> None:
        if len(self._answering) >= MAX_REQUESTS:
            self._reply(tag, Refused(RefusalCode.UNAVAILABLE, "too many requests at once; try again"))
            return
        self._requests += 1
        self._answering.add(self._requests)
        nursery.start_soon(self._answer, handler, tag, command, self._requests)

    async def _answer(self, handler: LinkHandler, tag: str, command: Command, number: int) -> None:
        try:
            async with self._large_turn if has_large_reply(command) else nullcontext():
                reply = await handler.answer(self, command)
                await self.room()
                self._reply(tag, reply)
        except LinkDownError:
            return
        finally:
            self._answering.remove(number)
            self._answered.notify()

    def _reply(self, tag: str, reply: Reply) -> None:
        try:
            data = self._encoded(Response(tag, reply))
        except ValueError as error:  # damaged rows have values that the protocol cannot express
            log.warning("cannot answer a request of %s: %s; run `replicator check --repair`", self.sid, error)
            data = self._encoded(
                Response(tag, Refused(RefusalCode.UNAVAILABLE, "the data for the answer is damaged at this node"))
            )
        self._append(data)

    def _encoded(self, item: Request | Response) -> bytes:
        before = self._encoder.plain_bytes
        data = self._encoder.batch([item])
        if self.observer is not None and not self.closed:
            self.observer.sent(self, item, self._encoder.plain_bytes - before)
        return data

    # ---- the connection

    def _append(self, data: bytes) -> None:
        if self.closed:
            return
        self._output += data
        self._posted.set()
        if len(self._output) > OUTPUT_MAX_BYTES:
            self.scope.cancel()  # the peer sends requests and does not read the replies

    async def _write(self) -> None:
        while True:
            await self._posted.wait()
            self._posted.clear()
            data, self._output = self._output, bytearray()
            await self._stream.send_all(data)
            self._drained.notify()

    async def _beat(self, nursery: trio.Nursery, heartbeat_s: float) -> None:
        """Send a PING at each heartbeat in which something was read.

        A node that no longer reads so falls silent, and its peer drops it. The next PING does not wait for the reply to
        the last one, which may queue behind a message that takes longer than the peer's timeout.
        """
        noticed = -1
        while True:
            if noticed != self._received_bytes:
                noticed = self._received_bytes
                nursery.start_soon(self._ping)
            await trio.sleep(heartbeat_s)

    async def _ping(self) -> None:
        sent = trio.current_time()
        try:
            await self.request(Ping())
        except NoReplyError:
            return
        now = trio.current_time()
        self.round_trip_us = int((now - sent) * 1e6)
        self._pinged_at = max(sent, self._pinged_at)
        if now > sent + timing.LINK_SLOW_S:
            self._slow_at = now

    @property
    def is_quick(self) -> bool:
        """True if PINGs are answered soon, so that no reply is queued behind something that takes long."""
        is_beating = trio.current_time() - self._pinged_at <= timing.LINK_SLOW_S + 2 * self._heartbeat_s
        return is_beating and self._slow_at < self._pinged_at

    def _close(self) -> None:
        self.closed = True
        self._drained.set()
        for waiting in self._pending.values():
            waiting.close()
