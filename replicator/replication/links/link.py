"""One link: a connection to a peer after its HELLO, in both directions.

Posting is synchronous and keeps its order, so a mailbox's number always goes before the command that uses it; a
task of the link's own writes what was posted. Replies come in any order. Whoever posts much first awaits `room`.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Protocol

import trio

from protocol.codec import ContinuationNeeded, Decoder, Encoder, Item, ProtocolError, Request, Response
from protocol.commands import (
    Command,
    Done,
    FetchGuid,
    FetchHash,
    FetchPart,
    FetchUid,
    Hello,
    Log,
    Mbox,
    Offer,
    Ping,
    Ranges,
    RefusalCode,
    Refused,
    Reply,
    Rows,
    Save,
    SyncMailbox,
    SyncNode,
)
from replicator.store.db.entry_validation import USER_MAX_BYTES
from replicator.store.db.queries import MailboxKey
from resync.entry import tree_id

log = logging.getLogger(__name__)

RECEIVE_BYTES = 1 << 17
# Posted and not yet sent; beyond it `room` waits. A request stands behind so much of the log, and as much again that is
# being sent: on a line of 150 KB/s that is a second.
OUTPUT_BYTES = 1 << 16
OUTPUT_MAX_BYTES = OUTPUT_BYTES + (80 << 20)  # with one message and what does not wait for room; then the link ends
MAX_NUMBERS = 10_000  # mailboxes that have a number in one direction; the least recently used give theirs up
CHUNKS_AT_ONCE = 64  # asked of the peer: however many parts come, there is room for other requests
OFFERS_AT_ONCE = 2  # to the peer: the line is full with one, and the next begins while that one ends
CONTENT_AT_ONCE = 8  # answers that are large: each is in memory until it is sent
REPLY_S = 45.0  # without a reply, longer than a request may take to be answered; each reply has its way, too
REPLY_LARGE_S = 75.0  # what may have to take its turn among others that are large
REPLY_LONG_S = 600.0  # what hashes all rows anew, or brings large parts along
SLOW_S = 2.0  # a PING whose answer takes longer stands behind something, as others may
MAX_REQUESTS = 1024  # of the peer, being answered; more are refused


_PATIENCE_S: Mapping[type, float] = {
    **dict.fromkeys((FetchHash, FetchGuid, FetchUid, FetchPart, SyncNode, SyncMailbox, Ranges, Rows), REPLY_LARGE_S),
    **dict.fromkeys((Save, Offer), REPLY_LONG_S),
}
_CONTENT = FetchHash | FetchGuid | FetchUid | FetchPart | Ranges | Rows


def _patience_s(command: Command) -> float:
    is_anew = isinstance(command, SyncMailbox) and command.anew
    return REPLY_LONG_S if is_anew else _PATIENCE_S.get(type(command), REPLY_S)


class LinkDownError(Exception):
    """The link ended before the reply came: the request may or may not have been done."""


class NoReplyError(LinkDownError):
    """The link stands, and the reply has not come that is due."""


class LinkHandler(Protocol):
    """What the node does with what comes in."""

    def asked_for_log(self, link: PeerLink, log: Log) -> Reply:
        """A LOG; in its turn among what has no tag. Raises ProtocolError, LinkDownError."""
        ...

    async def answer(self, link: PeerLink, command: Command) -> Reply:
        """A request; many run at once."""
        ...

    async def notice(self, link: PeerLink, command: Command) -> None:
        """A command without a tag; in order. The link reads no further meanwhile."""
        ...


class PeerLink:
    """A link that is up. `hello` is the peer's."""

    def __init__(self, stream: trio.abc.Stream, hello: Hello, encoder: Encoder, decoder: Decoder) -> None:
        self.hello = hello
        self.sid = hello.sid
        self.round_trip_us = 0
        self._stream = stream
        self._encoder = encoder
        self._decoder = decoder
        self._output = bytearray()
        self._posted = trio.Event()
        self._drained = trio.Event()
        self._turn = trio.Lock()  # the shipper of a long log must not always be first
        self._tags = 0
        self._pending: dict[str, trio.MemorySendChannel[Reply]] = {}
        self._numbers: OrderedDict[MailboxKey, int] = OrderedDict()
        self._keys: dict[int, MailboxKey] = {}
        self._answering = 0
        self.chunk_turn = trio.Semaphore(CHUNKS_AT_ONCE)  # for whoever asks for one
        self.offer_turn = trio.Semaphore(OFFERS_AT_ONCE)
        self._content_turn = trio.Semaphore(CONTENT_AT_ONCE)
        self._received_bytes = 0
        self._heartbeat_s = 0.0
        self._pinged_at = self._slow_at = -math.inf  # when the last answered PING was sent; the last answer came late
        self.closed = False
        self.scope = trio.CancelScope()

    # ---- sending

    def post(self, command: Command, tag: str | None = None) -> None:
        """Send a command in its turn. Nothing happens if the link is down."""
        self._append(self._encoder.request(tag, command))

    def number(self, key: MailboxKey, name: str = "") -> int:
        """The mailbox's number in this direction; told to the peer if it is new. `name` is for people."""
        known = self._numbers.get(key)
        if known is not None:
            self._numbers.move_to_end(key)
            return known
        number = len(self._numbers) + 1
        if number > MAX_NUMBERS:
            _, number = self._numbers.popitem(last=False)
        self._numbers[key] = number
        self.post(Mbox(number, key.user, name, key.mailbox_id, key.uidvalidity))
        return number

    def is_numbered(self, key: MailboxKey) -> bool:
        """Whether the peer knows the mailbox by a number."""
        return key in self._numbers

    async def room(self) -> None:
        """Return when not too much waits to be sent: in turn, one after the other. Raises LinkDownError."""
        async with self._turn:
            while len(self._output) > OUTPUT_BYTES:
                if self.closed:
                    raise LinkDownError(self.sid)
                await self._drained.wait()

    async def request(self, command: Command | Callable[[PeerLink], Command]) -> Reply:
        """Send a request and return its reply. Raises LinkDownError. Cancelled, the request may still be done.

        A function is called when there is room, to make the command with this link's numbers. A reply that does not
        come on a link that is quick will never come: NoReplyError.
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
            with trio.move_on_after(_patience_s(command)):
                return await receive.receive()
            while not self.is_quick:
                with trio.move_on_after(SLOW_S):
                    return await receive.receive()
            raise NoReplyError(self.sid)
        except trio.EndOfChannel:
            raise LinkDownError(self.sid) from None
        finally:
            self._pending.pop(tag, None)

    # ---- receiving

    def renew(self, hello: Hello) -> None:
        """The same peer has other capabilities now. Raises ProtocolError."""
        if (hello.sid, hello.origin) != (self.sid, self.hello.origin):
            raise ProtocolError(f"another node, {hello.origin}, says HELLO on the link of {self.hello.origin}")
        self.hello = replace(self.hello, capabilities=hello.capabilities)

    def key_of(self, number: int) -> MailboxKey | None:
        """The mailbox that the peer gave this number."""
        return self._keys.get(number)

    async def run(self, handler: LinkHandler, *, heartbeat_s: float, timeout_s: float) -> None:
        """Read, write and keep alive until the link ends; then return.

        Raises ProtocolError if the peer sends what it must not, OSError and trio's stream errors if the connection
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
        data = b""  # what came with the HELLO is in the decoder
        while True:
            for item in self._decoder.feed(data):
                await self._take(item, handler, nursery)
            with trio.fail_after(timeout_s):
                data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
            if not data:
                return
            self._received_bytes += len(data)

    async def _take(self, item: Item, handler: LinkHandler, nursery: trio.Nursery) -> None:
        match item:
            case Response(tag, reply):
                if (waiting := self._pending.pop(tag, None)) is not None:
                    waiting.send_nowait(reply)
            case Request(tag, Mbox() as command):
                self._learn(command)
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

    def _learn(self, mbox: Mbox) -> None:
        if not 0 < mbox.number <= MAX_NUMBERS:
            raise ProtocolError(f"mailbox number {mbox.number}: from 1 to {MAX_NUMBERS} they may be")
        if mbox.uidvalidity == 0 and mbox.mailbox_id != tree_id(mbox.user):
            raise ProtocolError(f"mailbox number {mbox.number} is a tree under another id than its user's")
        if len(mbox.user.encode()) > USER_MAX_BYTES:
            raise ProtocolError(f"mailbox number {mbox.number}: a user's name has at most {USER_MAX_BYTES} bytes")
        self._keys[mbox.number] = MailboxKey(mbox.user, mbox.mailbox_id, mbox.uidvalidity)

    def _serve(self, handler: LinkHandler, nursery: trio.Nursery, tag: str, command: Command) -> None:
        if self._answering >= MAX_REQUESTS:
            self._reply(tag, Refused(RefusalCode.UNAVAILABLE, "too many requests at once; try again"))
            return
        self._answering += 1
        nursery.start_soon(self._answer, handler, tag, command)

    async def _answer(self, handler: LinkHandler, tag: str, command: Command) -> None:
        try:
            async with self._content_turn if isinstance(command, _CONTENT) else nullcontext():
                reply = await handler.answer(self, command)
                await self.room()
                self._reply(tag, reply)
        except LinkDownError:
            return
        finally:
            self._answering -= 1

    def _reply(self, tag: str, reply: Reply) -> None:
        try:
            data = self._encoder.response(tag, reply)
        except ValueError as error:  # damaged rows have values for which the wire has no form
            log.warning("a request of %s cannot be answered: %s; run `replicator check --repair`", self.sid, error)
            data = self._encoder.response(tag, Refused(RefusalCode.UNAVAILABLE, "what is to be said is damaged here"))
        self._append(data)

    # ---- the connection

    def _append(self, data: bytes) -> None:
        if self.closed:
            return
        self._output += data
        self._posted.set()
        if len(self._output) > OUTPUT_MAX_BYTES:
            self.scope.cancel()  # it sends requests and does not read the replies

    async def _write(self) -> None:
        while True:
            await self._posted.wait()
            self._posted = trio.Event()
            data, self._output = self._output, bytearray()
            await self._stream.send_all(data)
            self._drained.set()
            self._drained = trio.Event()

    async def _beat(self, nursery: trio.Nursery, heartbeat_s: float) -> None:
        """Give a sign of life as long as this node reads: one that reads no more falls silent, and is dropped.

        It does not wait for the reply, which may stand behind a message that takes longer than the peer's patience.
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
        if now > sent + SLOW_S:
            self._slow_at = now

    @property
    def is_quick(self) -> bool:
        """Whether what is sent is answered soon: nothing stands behind what takes long."""
        is_beating = trio.current_time() - self._pinged_at <= SLOW_S + 2 * self._heartbeat_s
        return is_beating and self._slow_at < self._pinged_at

    def _close(self) -> None:
        self.closed = True
        self._drained.set()
        for waiting in self._pending.values():
            waiting.close()
