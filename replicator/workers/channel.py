"""A connection between the node's core and the process of a door, with many calls at a time, in both directions.

A call names a function of the other side. What it raises of `replicator.errors` is raised here; cancelling a call
cancels it there. A frame is an array of MessagePack; both sides belong to one node, and fit each other (`interface`),
so what they send is believed. Calls that return at once are answered while reading, in the order in which they came,
and before whatever came after them begins. Each of the others has a task.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import cast

import trio

from protocol.units import KIB, MIB
from replicator import errors
from replicator.errors import MailError, QuotaExceededError, UnavailableError
from replicator.runtime.process.loop_watch import doing
from replicator.runtime.signals import Signal
from replicator.workers.packing import Unpacker, UnpackError, packed

RECEIVE_BYTES = 32 * KIB  # taken apart in some milliseconds, whatever it has

FRAME_BYTES_MAX = 16 * MIB
"""Largest frame. What may become larger is sent in parts; a call or an answer that is still larger fails."""

OUTGOING_BYTES = MIB
"""Octets that wait to be sent, above which `room` waits."""

REQUEST, RESULT, FAILURE, CANCEL = range(4)

Call = Callable[..., Awaitable[object]]
QuickCall = Callable[..., object]

_KINDS = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MailError)
}

DEFECT = ("", "", False)  # as `_described` describes an error

log = logging.getLogger(__name__)


class DefectError(Exception):
    """A call failed because of a defect, which the other side has logged."""


class _Reply:
    """A reply that is awaited."""

    def __init__(self) -> None:
        self.came = trio.Event()
        self.value: object = None
        self.error: Exception | None = None


class Channel:
    """One end of a connection. `run` has to run, and closes the stream. Belongs to the event loop.

    `calls` and `quick_calls` are what the other side may call, by name: whoever answers adds them before they come.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.calls: dict[str, Call] = {}
        self.quick_calls: dict[str, QuickCall] = {}
        self._stream = stream
        self._numbers = count(1)
        self._awaited: dict[int, _Reply] = {}
        self._scopes: dict[int, trio.CancelScope] = {}  # of the other side's calls
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._has_room = Signal()
        self._has_outgoing = Signal()
        self._ended = False

    async def run(self) -> None:
        """Serve the connection until the other side ends it, or until cancelled. Its calls are cancelled then."""
        try:
            async with self._stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                await self._read(nursery)
                nursery.cancel_scope.cancel()
        except* trio.BrokenResourceError:
            pass
        except* UnpackError:
            log.exception("a connection between processes of this node ends")
        finally:
            self._ended = True
            self._has_room.set()
            for reply in self._awaited.values():
                reply.error = UnavailableError("a process of this node has ended; try again")
                reply.came.set()

    async def call(self, name: str, *arguments: object) -> object:
        """Call a function of the other side, and return what it returns.

        Raises what it raises of `replicator.errors`, UnavailableError if the connection ends, and DefectError.
        """
        if self._ended:
            raise UnavailableError("a process of this node has ended; try again")
        number, reply = next(self._numbers), _Reply()
        self._awaited[number] = reply
        try:
            self._send((REQUEST, number, name, arguments))
            await reply.came.wait()
        except trio.Cancelled:
            self._send((CANCEL, number))
            raise
        finally:
            del self._awaited[number]
        if reply.error is not None:
            raise reply.error
        return reply.value

    def tell(self, name: str, *arguments: object) -> None:
        """Call a function of the other side without waiting for it. Harmless once the connection has ended."""
        self._send((REQUEST, 0, name, arguments))

    async def room(self) -> None:
        """Return once little waits to be sent, or the connection has ended."""
        await trio.lowlevel.checkpoint()
        while self._outgoing_bytes > OUTGOING_BYTES and not self._ended:
            await self._has_room.wait()

    def _send(self, frame: tuple[object, ...]) -> None:
        """Send a frame. Raises UnavailableError if it is too large."""
        if self._ended:
            return
        octets = packed(frame)
        if len(octets) > FRAME_BYTES_MAX:
            raise UnavailableError(f"this takes {len(octets)} octets between processes of this node, which is too much")
        self._outgoing.append(octets)
        self._outgoing_bytes += len(octets)
        self._has_outgoing.set()

    async def _write(self) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            data, self._outgoing, self._outgoing_bytes = b"".join(self._outgoing), [], 0
            await self._stream.send_all(data)
            self._has_room.notify()

    async def _read(self, nursery: trio.Nursery) -> None:
        unpacker = Unpacker(FRAME_BYTES_MAX)
        while data := await self._stream.receive_some(RECEIVE_BYTES):
            for frame in unpacker.values(data):
                self._take(nursery, *frame)

    def _take(self, nursery: trio.Nursery, kind: int, number: int, *rest: object) -> None:
        if kind == REQUEST:
            name, arguments = cast("tuple[str, tuple[object, ...]]", rest)
            if name in self.quick_calls:
                self._answer(number, name, arguments)
            else:
                scope = self._scopes[number] = trio.CancelScope()
                nursery.start_soon(self._serve, scope, number, name, arguments)
        elif kind == CANCEL:
            if (cancelled := self._scopes.get(number)) is not None:
                cancelled.cancel()
        elif (reply := self._awaited.get(number)) is not None:  # else the call was cancelled
            if kind == RESULT:
                [reply.value] = rest
            else:
                reply.error = _error_of(*cast("tuple[str, str, bool]", rest))
            reply.came.set()

    def _answer(self, number: int, name: str, arguments: tuple[object, ...]) -> None:
        try:
            self._reply(number, RESULT, self.quick_calls[name](*arguments))
        except MailError as error:
            self._reply(number, FAILURE, *_described(error))
        except Exception:
            log.exception("a call of %r failed because of a defect in this program", name)
            self._reply(number, FAILURE, *DEFECT)

    async def _serve(self, scope: trio.CancelScope, number: int, name: str, arguments: tuple[object, ...]) -> None:
        doing("core", None, name)
        with scope:
            try:
                await trio.lowlevel.checkpoint_if_cancelled()  # what came after the call may have been done already
                self._reply(number, RESULT, await self.calls[name](*arguments))
            except MailError as error:
                self._reply(number, FAILURE, *_described(error))
            except Exception:
                log.exception("a call of %r failed because of a defect in this program", name)
                self._reply(number, FAILURE, *DEFECT)
        if self._scopes.get(number) is scope:
            del self._scopes[number]

    def _reply(self, number: int, kind: int, *rest: object) -> None:
        if number:
            self._send((kind, number, *rest))


def _described(error: MailError) -> tuple[str, str, bool]:
    """Return the error's kind, as far as doors know it, its text, and `QuotaExceededError.defer`."""
    kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
    return kind, str(error), isinstance(error, QuotaExceededError) and error.defer


def _error_of(kind: str, text: str, defer: bool) -> Exception:  # noqa: FBT001 (as in the frame)
    if not kind:
        return DefectError("a defect in another process of this node; its log tells more")
    found = _KINDS[kind]
    return QuotaExceededError(text, defer=defer) if found is QuotaExceededError else found(text)
