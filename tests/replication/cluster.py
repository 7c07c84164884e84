"""A whole cluster in one process: real nodes, real databases; only the network between them is in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import trio
import trio.testing

from protocol.values import sid_of
from replicator.config import Address, Config, DurabilityConfig, PeerConfig, WhenShort, default_config
from replicator.environment import Environment
from replicator.mailstore import Folder
from replicator.replication.coordinator import Coordinator
from replicator.replication.service import ClusterMail
from replicator.store import reading
from replicator.store.store import Store


@dataclass(eq=False)
class Node:
    """One running node."""

    sid: str
    store: Store
    coordinator: Coordinator
    mail: ClusterMail
    scope: trio.CancelScope
    stopped: trio.Event = field(default_factory=trio.Event)

    async def digests(self) -> dict[str, str]:
        """Of every mailbox and tree, by id."""
        return await self.store.read(
            lambda reader: {chain.id.hex(): chain.digest().hex() for chain in reading.chains_of(reader, None)}
        )

    async def inbox(self, user: str = "alice") -> Folder:
        return await self.mail.folder(user, "INBOX")


class Cluster:
    """Nodes dc1, dc2, …; links can be cut."""

    def __init__(self, directory: Path, size: int, nursery: trio.Nursery, durability: DurabilityConfig) -> None:
        self.directory = directory
        self.sids = [f"dc{number + 1}" for number in range(size)]
        self.nodes: dict[str, Node] = {}
        self.cut: set[frozenset[str]] = set()
        self.durability = durability
        self.environment = Environment()
        self._nursery = nursery
        self._streams: dict[frozenset[str], list[trio.StapledStream]] = {}  # type: ignore[type-arg]

    def __getitem__(self, sid: str) -> Node:
        return self.nodes[sid]

    def config(self, sid: str) -> Config:
        peers = tuple(PeerConfig(other, Address("127.0.0.1", 1)) for other in self.sids if other != sid)
        return replace(default_config(sid, self.directory, peers=peers), durability=self.durability)

    async def start(self, *sids: str) -> None:
        """Start nodes; all if none is named."""
        for sid in sids or self.sids:
            await self._nursery.start(self._run, sid)

    async def stop(self, sid: str) -> None:
        node = self.nodes.pop(sid)
        node.scope.cancel()
        await node.stopped.wait()

    async def cut_link(self, one: str, other: str) -> None:
        pair = frozenset({one, other})
        self.cut.add(pair)
        for stream in self._streams.pop(pair, []):
            await trio.aclose_forcefully(stream)

    def mend_link(self, one: str, other: str) -> None:
        self.cut.discard(frozenset({one, other}))

    async def linked(self) -> None:
        """Return when every node sees every running node."""
        await until(
            lambda: all(set(node.coordinator.mastership.table.component) == set(self.nodes) for node in self.nodes.values())
            and all(node.coordinator.mastership.election.settled for node in self.nodes.values())
        )

    async def converged(self) -> dict[str, str]:
        """Return when all nodes show the same; what they show."""
        for _ in range(500):
            found = [await node.digests() for node in self.nodes.values()]
            if all(digests == found[0] for digests in found):
                return found[0]
            await trio.sleep(0.02)
        raise AssertionError(f"the nodes differ: {found}")

    async def _run(self, sid: str, task_status: trio.TaskStatus[None]) -> None:
        config = self.config(sid)
        config.node.data.mkdir(parents=True, exist_ok=True)
        origin = self.environment.new_origin(sid)
        assert sid_of(origin) == sid
        scope = trio.CancelScope()
        stopped = trio.Event()
        try:
            with scope:
                async with Store.open(config.node.data / "node.db", origin, self.environment) as store:
                    coordinator = Coordinator(config, store, self.environment, lambda peer: self._dial(sid, peer.id))
                    mail = ClusterMail(store, coordinator, self.environment)
                    self.nodes[sid] = Node(sid, store, coordinator, mail, scope, stopped)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(coordinator.run)
                        task_status.started()
        finally:
            stopped.set()

    async def _dial(self, sid: str, peer: str) -> trio.abc.Stream:
        pair = frozenset({sid, peer})
        if pair in self.cut or peer not in self.nodes:
            raise OSError("connection refused")
        near, far = trio.testing.memory_stream_pair()
        self._streams.setdefault(pair, []).extend([near, far])
        self._nursery.start_soon(self.nodes[peer].coordinator.connections.accept, far)
        return near


async def until(condition: object) -> None:
    assert callable(condition)
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.005)


@asynccontextmanager
async def cluster(
    directory: Path, size: int = 3, copies: int = 2, when_short: WhenShort = WhenShort.PROCEED
) -> AsyncIterator[Cluster]:
    async with trio.open_nursery() as nursery:
        made = Cluster(directory, size, nursery, DurabilityConfig(min(copies, size), when_short))
        await made.start()
        await made.linked()
        yield made
        for sid in list(made.nodes):
            await made.stop(sid)
        nursery.cancel_scope.cancel()
