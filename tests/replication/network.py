"""The network between nodes, in memory: connections can be cut, held up, slowed and delayed, and are recorded.

A connection keeps the order of what it carries, as TCP does. Between two connections there is no order.
"""

import math
import random
import re
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import trio

from protocol.commands import Entries, EntryCommand
from protocol.stream_codec import Decoder, Item, Request
from protocol.values import Dot
from replicator.replication.links.entry_batch import unpack_batch

CAPACITY_BYTES = 1 << 16  # of one direction, as in the buffers of two sockets

Accept = Callable[[trio.abc.Stream], Awaitable[None]]


class Mutator(Protocol):
    """A change to commands on their way."""

    def commands(self, data: bytes) -> bytes:
        """Return what arrives of these octets, which are whole commands."""
        ...


@dataclass
class Replacement:
    """A mutator that changes the first piece that matches, and until a given time all others that match."""

    pattern: bytes
    by: Callable[[re.Match[bytes]], bytes] | bytes
    until: float = 0.0
    done: list[bytes] = field(default_factory=list)

    def commands(self, data: bytes) -> bytes:
        if (not self.done or trio.current_time() < self.until) and (found := re.search(self.pattern, data)) is not None:
            self.done.append(found[0])
            return re.sub(self.pattern, self.by, data)
        return data


@dataclass
class Road:
    """One direction between two nodes, with all connections that use it."""

    held: bool = False
    bytes_per_s: float | None = None
    delay_s: float = 0.0
    jitter_s: float = 0.0  # the most that is added to the delay, drawn for each piece
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    sent: list[bytearray] = field(default_factory=list)  # of each connection, from the first byte
    changed: trio.Event = field(default_factory=trio.Event)
    mutator: Mutator | None = None  # not on compressed connections
    spoils: list[re.Pattern[bytes]] = field(default_factory=list)  # each once, where it first matches

    def spoil(self, pattern: bytes) -> None:
        """Change the last octet of the first match, once. Does not work on compressed connections."""
        self.spoils.append(re.compile(pattern))

    def carried(self, data: bytes) -> bytes:
        """Return what arrives of the octets that were sent."""
        for spoil in list(self.spoils):
            if found := spoil.search(data):
                at = found.end() - 1
                data = data[:at] + (b"2" if data[at:][:1] == b"1" else b"1") + data[at + 1 :]
                self.spoils.remove(spoil)
        return data

    def hold(self) -> None:
        """Keep back what is sent, so that the other end hears nothing."""
        self.held = True

    def release(self) -> None:
        self.held = False
        self.wake()

    def arrival(self) -> float:
        """Return when a piece arrives that is sent now."""
        jitter_s = self.dice.uniform(0, self.jitter_s) if self.jitter_s else 0.0
        return trio.current_time() + self.delay_s + jitter_s

    def wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def items(self) -> list[Item]:
        """Return all that was sent, decoded. Does not work on compressed connections."""
        return [item for sent in self.sent for item in decoded(bytes(sent))]

    def entries(self) -> list[Dot]:
        """Return the entries that were sent, each as often as it was sent."""
        commands = [item.command for item in self.items() if isinstance(item, Request)]
        dots: list[Dot] = []
        for command in commands:
            if isinstance(command, Entries):
                dots += (arrived.dot for arrived in unpack_batch(command))
            elif isinstance(command, EntryCommand) and command.entry is not None and command.entry.change == 0:
                dots.append(command.entry.dot)
        return dots


def decoded(sent: bytes) -> Iterator[Item]:
    """Yield what one direction of a connection without compression carried, with or without blocks."""
    decoder = Decoder()
    items = decoder.feed(sent)
    for hello in items:
        if sent.partition(b"\r\n")[2].startswith(b"\0"):  # a block's length; no command begins like that
            decoder.start_blocks()
        yield hello
        yield from items


class Pipe:
    """One direction of one connection."""

    def __init__(self, road: Road) -> None:
        self._road = road
        self._pieces: deque[tuple[float, bytearray]] = deque()  # with the time of their arrival
        self._size_bytes = 0
        self._sent = bytearray()
        self._finished_at: float | None = (
            None  # when the sender's end of the stream arrives, after all that it has sent
        )
        self._cut = False
        self._silent = False  # the receiver hears nothing for ever
        road.sent.append(self._sent)

    async def send(self, data: bytes) -> None:
        if self._road.mutator is not None:
            data = self._road.mutator.commands(data)  # a link sends whole commands
        rest = memoryview(self._road.carried(data))
        await trio.lowlevel.checkpoint()
        while rest:
            if self._finished_at is not None or self._cut:
                raise trio.BrokenResourceError("the connection was cut")
            part = rest[: CAPACITY_BYTES - self._size_bytes]
            if part:
                self._append(bytes(part))
            rest = rest[len(part) :]
            if rest:
                await self._road.changed.wait()

    async def receive(self, max_bytes: int | None) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._cut and (self._silent or self._road.held or not self._is_due()):
            due = self._due()
            if due == math.inf:
                await self._road.changed.wait()
            else:
                with trio.move_on_at(due):
                    await self._road.changed.wait()
        if self._cut or not self._pieces:
            return b""
        size = max_bytes or CAPACITY_BYTES
        if self._road.bytes_per_s:
            size = min(size, max(1, int(self._road.bytes_per_s / 10)))  # slow roads deliver a little, often
        data = self._take(size)
        if self._road.bytes_per_s:
            await trio.sleep(len(data) / self._road.bytes_per_s)
        self._road.wake()
        return data

    def finish(self) -> None:
        if self._finished_at is None and not self._silent:
            self._finished_at = self._next_arrival()
        self._road.wake()

    def cut(self) -> None:
        if not self._silent:
            self._cut = True
            self._road.wake()

    def silence(self) -> None:
        self._silent = True

    def _append(self, part: bytes) -> None:
        arrival, was_empty = self._next_arrival(), not self._pieces
        if self._pieces and self._pieces[-1][0] >= arrival:
            self._pieces[-1][1].extend(part)
        else:
            self._pieces.append((arrival, bytearray(part)))
        self._size_bytes += len(part)
        self._sent += part
        if was_empty:  # else the receiver waits for an earlier piece
            self._road.wake()

    def _next_arrival(self) -> float:
        earliest = self._pieces[-1][0] if self._pieces else 0.0
        return max(self._road.arrival(), earliest)

    def _take(self, size: int) -> bytes:
        """Remove and return at most `size` octets of what has arrived."""
        taken, now = bytearray(), trio.current_time()
        while self._pieces and self._pieces[0][0] <= now and len(taken) < size:
            piece = self._pieces[0][1]
            part = piece[: size - len(taken)]
            taken += part
            del piece[: len(part)]
            if not piece:
                self._pieces.popleft()
        self._size_bytes -= len(taken)
        return bytes(taken)

    def _is_due(self) -> bool:
        return self._due() <= trio.current_time()

    def _due(self) -> float:
        """Return when the next piece, or the end, is due at the receiver."""
        if self._silent or self._road.held:
            return math.inf
        first = self._pieces[0][0] if self._pieces else self._finished_at
        return math.inf if first is None else first


class Connection(trio.abc.Stream):
    """One end of a connection. What was sent before `aclose` still arrives; `cut` loses it."""

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

    def silence(self) -> None:
        """Let neither end hear anything any more, as if this machine had lost its power."""
        self._inward.silence()
        self._outward.silence()


class Network:
    """All connections between nodes, and which links are cut. Nodes are named by their SIDs."""

    def __init__(self, nursery: trio.Nursery, seed: str = "network") -> None:
        self.accepting: dict[str, Accept] = {}
        self._nursery = nursery
        self._seed = seed
        self._roads: dict[tuple[str, str], Road] = {}
        self._cut: set[frozenset[str]] = set()
        self._connections: dict[frozenset[str], list[Connection]] = defaultdict(list)

    def road(self, sender: str, receiver: str) -> Road:
        if (sender, receiver) not in self._roads:
            drawn = random.Random(f"{self._seed} {sender} {receiver}")
            self._roads[sender, receiver] = Road(dice=drawn)
        return self._roads[sender, receiver]

    def change(
        self, way: tuple[str, str], pattern: bytes, by: Callable[[re.Match[bytes]], bytes] | bytes
    ) -> Replacement:
        """Replace the first match of the pattern in what is sent this way."""
        self.road(*way).mutator = replacement = Replacement(pattern, by)
        return replacement

    async def connect(self, sid: str, peer: str) -> Connection:
        """Connect, or raise OSError if the peer does not run or the link is cut."""
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
        """End these links, and refuse new connections between these nodes."""
        for pair in map(frozenset, pairs):
            self._cut.add(pair)
            for connection in self._connections.pop(pair, []):
                connection.cut()

    def mend(self, *pairs: tuple[str, str]) -> None:
        self._cut.difference_update(map(frozenset, pairs))

    def end_connections(self, sid: str, *, silently: bool = False) -> None:
        """End connections as the machine of an ended process does; silently: as if the machine itself had gone."""
        for pair in [pair for pair in self._connections if sid in pair]:
            for connection in self._connections.pop(pair):
                if silently:
                    connection.silence()
                else:
                    connection.cut()
