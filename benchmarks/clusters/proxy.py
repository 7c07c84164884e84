"""A bad line between two nodes: a TCP proxy that delays, throttles, falls silent and breaks on command.

Each proxy runs trio in a thread of its own and takes commands from any other thread; a method returns when it has taken
effect. The node that dials is the near end, the target the far one. Delayed data waits in a queue with the time at
which it is due, so a delay costs no throughput; data that a silent or slow line does not accept stays with the sender,
as on a real line.
"""

from __future__ import annotations

import math
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self

import trio

from benchmarks.clients.wire import Address

HOST = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
QUEUE_CHUNKS = 1024  # in flight in one direction: 64 MiB at most, which is 800 MB/s at a delay of 80 ms
THROTTLE_STEP_S = 0.02  # the interval of one portion on a slow line, so that it trickles and does not gush
BY_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST and drops what was not sent
BY_FIN = struct.pack("ii", 0, 0)


Through = Callable[[bytes], bytes]
"""A filter of one direction of one connection: input to output. It may hold bytes back."""


class Direction(Enum):
    """Direction of bytes, seen from the node that dialled."""

    FORTH = "forth"
    BACK = "back"


BOTH = (Direction.FORTH, Direction.BACK)


@dataclass(slots=True)
class _Lane:
    """One direction of the line, for all its connections. Changed in the proxy's thread only."""

    delay_s: float = 0.0
    bytes_per_s: float = math.inf
    is_held: bool = False
    carried_bytes: int = 0
    record: bytearray | None = None
    through: Callable[[], Through] | None = None
    _free_at: float = 0.0  # the time when the line has accepted all data so far
    _released: trio.Event = field(default_factory=trio.Event)

    async def passable(self) -> None:
        while self.is_held:
            await self._released.wait()

    def release(self) -> None:
        self.is_held = False
        self._released.set()
        self._released = trio.Event()

    def chunk_bytes(self) -> int:
        return int(min(CHUNK_BYTES, max(1, self.bytes_per_s * THROTTLE_STEP_S)))

    async def take(self, data: bytes) -> float:
        """Return when the line has accepted `data`: the time at which it comes out."""
        self.carried_bytes += len(data)
        if self.record is not None:
            self.record += data
        self._free_at = max(self._free_at, trio.current_time()) + len(data) / self.bytes_per_s
        await trio.sleep_until(self._free_at)
        return trio.current_time() + self.delay_s


class Proxy:
    """A line to `target`. Connect to `port` on loopback; leave the `with` block, or `close`, to end it."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._lanes = {direction: _Lane() for direction in Direction}
        self._is_cut = False
        self._connections: set[trio.CancelScope] = set()
        self._server = socket.create_server((HOST, 0))
        self.port = int(self._server.getsockname()[1])
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        started = threading.Event()
        self._thread = threading.Thread(
            target=trio.run, args=(self._run, started.set), name=f"proxy {self.port}", daemon=True
        )
        self._thread.start()
        started.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- what the line is told

    def delay(self, delay_s: float, directions: Iterable[Direction] = BOTH) -> None:
        """Delay all data from now on, keeping its order."""
        self._change(directions, delay_s=delay_s)

    def throttle(self, bytes_per_s: float, directions: Iterable[Direction] = BOTH) -> None:
        """Limit each direction to this rate; `math.inf` removes the limit."""
        self._change(directions, bytes_per_s=bytes_per_s)

    def hold(self, directions: Iterable[Direction] = BOTH) -> None:
        """Fall silent: nothing comes out, no end is notified, and data in flight arrives once the line is mended."""
        self._change(directions, is_held=True)

    def cut(self) -> None:
        """Send RST to both ends of every connection, and to every new one, until the line is mended."""
        trio.from_thread.run(self._cut, trio_token=self._token)

    def mend(self) -> None:
        """End `hold` and `cut`. Delay and throttle stay."""
        trio.from_thread.run_sync(self._mend, trio_token=self._token)

    def lead_to(self, target: Address) -> None:
        """Lead new connections to another target. Open ones go on, until `cut`."""

        def change() -> None:
            self._target = target

        trio.from_thread.run_sync(change, trio_token=self._token)

    def carry_through(self, through: Callable[[], Through], directions: Iterable[Direction] = BOTH) -> None:
        """Pass the data of new connections through a filter that `through` makes for each direction of each."""

        def change() -> None:
            for direction in directions:
                self._lanes[direction].through = through

        trio.from_thread.run_sync(change, trio_token=self._token)

    def carried_bytes(self, direction: Direction) -> int:
        """Return the bytes that the line has accepted since the start."""
        return self._lanes[direction].carried_bytes

    def record(self) -> None:
        """Keep everything that the line accepts from now on, for `recorded`; earlier records are dropped."""

        def begin() -> None:
            for lane in self._lanes.values():
                lane.record = bytearray()

        trio.from_thread.run_sync(begin, trio_token=self._token)

    def recorded(self, direction: Direction) -> bytes:
        """Return the data that the line has accepted since `record`."""
        return bytes(self._lanes[direction].record or b"")

    def close(self) -> None:
        """End all connections by RST. Closing twice does nothing."""
        if self._thread.is_alive():
            self.cut()
            trio.from_thread.run_sync(self._scope.cancel, trio_token=self._token)
        self._thread.join()

    # ---- in the proxy's thread

    def _change(self, directions: Iterable[Direction], **conditions: float) -> None:
        def change() -> None:
            for direction in directions:
                for name, value in conditions.items():
                    setattr(self._lanes[direction], name, value)

        trio.from_thread.run_sync(change, trio_token=self._token)

    async def _run(self, started: Callable[[], None]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._server))
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(trio.serve_listeners, self._serve, [listener])
                started()

    async def _cut(self) -> None:
        self._is_cut = True
        for scope in self._connections:
            scope.cancel()
        while self._connections:
            await trio.lowlevel.checkpoint()

    def _mend(self) -> None:
        self._is_cut = False
        for lane in self._lanes.values():
            lane.release()

    async def _serve(self, near: trio.SocketStream) -> None:
        """Serve one connection: an error at one end breaks the other."""
        _end_by(near, BY_RESET)
        if self._is_cut:
            return
        with trio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                await self._connect(near)
            except* (OSError, trio.BrokenResourceError):
                pass  # the other end gets an RST
            finally:
                near.socket.close()
                self._connections.discard(scope)

    async def _connect(self, near: trio.SocketStream) -> None:
        forth, back = (self._lanes[direction] for direction in BOTH)
        await forth.passable()
        async with await trio.open_tcp_stream(*self._target) as far:
            _end_by(far, BY_RESET)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_carry, forth, near, far)
                nursery.start_soon(_carry, back, far, near)
            for stream in (near, far):
                _end_by(stream, BY_FIN)


async def _carry(lane: _Lane, source: trio.SocketStream, sink: trio.SocketStream) -> None:
    """Carry one direction of one connection, to its end."""
    send, receive = trio.open_memory_channel[tuple[float, bytes]](QUEUE_CHUNKS)
    async with trio.open_nursery() as nursery, send:
        nursery.start_soon(_deliver, lane, receive, sink)
        data, through = b"more", lane.through() if lane.through is not None else None
        while data:
            await lane.passable()
            data = bytes(await source.receive_some(lane.chunk_bytes()))
            out = through(data) if through is not None else data
            if out or not data:
                await send.send((await lane.take(out), out))


async def _deliver(lane: _Lane, queue: trio.MemoryReceiveChannel[tuple[float, bytes]], sink: trio.SocketStream) -> None:
    async for due, data in queue:
        await trio.sleep_until(due)
        await lane.passable()
        if data:
            await sink.send_all(data)
        else:
            await sink.send_eof()


def _end_by(stream: trio.SocketStream, how: bytes) -> None:
    """Choose the way in which the stream ends, whenever it does."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)
