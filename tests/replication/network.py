"""The network between nodes, in memory: connections that can be cut, held up and slowed, and that keep what crossed."""

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from protocol.codec import Decoder, Item, Request
from protocol.commands import EntryCommand
from protocol.values import Dot

CAPACITY_BYTES = 1 << 16  # on the way in one direction, as in the buffers of two sockets

Accept = Callable[[trio.abc.Stream], Awaitable[None]]


@dataclass
class Road:
    """One direction between two nodes, for all connections that use it."""

    held: bool = False
    bytes_per_s: float | None = None
    sent: list[bytearray] = field(default_factory=list)  # of each connection, from the first byte
    changed: trio.Event = field(default_factory=trio.Event)

    def hold(self) -> None:
        """What is sent waits: the other end hears nothing."""
        self.held = True

    def release(self) -> None:
        self.held = False
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def items(self) -> list[Item]:
        """All that was sent, understood; not for compressed connections."""
        return [item for sent in self.sent for item in Decoder().feed(bytes(sent))]

    def entries(self) -> list[Dot]:
        """The entries that were sent, each as often as it was."""
        commands = [item.command for item in self.items() if isinstance(item, Request)]
        headers = [command.entry for command in commands if isinstance(command, EntryCommand)]
        return [header.dot for header in headers if header is not None and header.change == 0]


class Pipe:
    """One direction of one connection."""

    def __init__(self, road: Road) -> None:
        self._road = road
        self._buffer = bytearray()
        self._sent = bytearray()
        self._finished = False  # by the sender: what is on the way still arrives
        self._cut = False
        road.sent.append(self._sent)

    async def send(self, data: bytes) -> None:
        rest = memoryview(data)
        await trio.lowlevel.checkpoint()
        while rest:
            if self._finished or self._cut:
                raise trio.BrokenResourceError("the connection was cut")
            part = rest[: CAPACITY_BYTES - len(self._buffer)]
            self._buffer += part
            self._sent += part
            rest = rest[len(part) :]
            self._road.wake()
            if rest:
                await self._road.changed.wait()

    async def receive(self, max_bytes: int | None) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._cut and (self._road.held or not (self._buffer or self._finished)):
            await self._road.changed.wait()
        if self._cut:
            return b""
        data = bytes(self._buffer[:max_bytes])
        if self._road.bytes_per_s:
            data = data[: max(1, int(self._road.bytes_per_s / 10))]  # slow roads deliver a little, often
            await trio.sleep(len(data) / self._road.bytes_per_s)
        del self._buffer[: len(data)]
        self._road.wake()
        return data

    def finish(self) -> None:
        self._finished = True
        self._road.wake()

    def cut(self) -> None:
        self._cut = True
        self._road.wake()


class Connection(trio.abc.Stream):
    """One end. Closing it lets what was sent arrive; cutting the link does not."""

    def __init__(self, inward: Pipe, outward: Pipe) -> None:
        self._inward = inward
        self._outward = outward

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._outward.send(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._inward.receive(max_bytes)

    async def aclose(self) -> None:
        self._inward.cut()
        self._outward.finish()
        await trio.lowlevel.checkpoint()

    def cut(self) -> None:
        self._inward.cut()
        self._outward.cut()


class Network:
    """Who can connect to whom. Nodes are named by their SIDs."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.accepting: dict[str, Accept] = {}
        self._nursery = nursery
        self._roads: dict[tuple[str, str], Road] = defaultdict(Road)
        self._cut: set[frozenset[str]] = set()
        self._connections: dict[frozenset[str], list[Connection]] = defaultdict(list)

    def road(self, sender: str, receiver: str) -> Road:
        return self._roads[sender, receiver]

    async def connect(self, sid: str, peer: str) -> Connection:
        """Raises OSError if the peer does not run or the link is cut."""
        pair = frozenset({sid, peer})
        await trio.lowlevel.checkpoint()
        if self.is_cut(sid, peer) or peer not in self.accepting:
            raise ConnectionRefusedError("connection refused")
        there, back = Pipe(self.road(sid, peer)), Pipe(self.road(peer, sid))
        near, far = Connection(back, there), Connection(there, back)
        self._connections[pair] += [near, far]
        self._nursery.start_soon(self.accepting[peer], far)
        return near

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset({one, other}) in self._cut

    def cut(self, *pairs: tuple[str, str]) -> None:
        """End these links, and let none be made."""
        for pair in map(frozenset, pairs):
            self._cut.add(pair)
            for connection in self._connections.pop(pair, []):
                connection.cut()

    def mend(self, *pairs: tuple[str, str]) -> None:
        self._cut.difference_update(map(frozenset, pairs))

    def end_connections(self, sid: str) -> None:
        """As if the node's machine had gone."""
        for pair in [pair for pair in self._connections if sid in pair]:
            for connection in self._connections.pop(pair):
                connection.cut()
