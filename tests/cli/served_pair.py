"""Two linked nodes in a thread of their own; each has an HTTP door on loopback."""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import trio

from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.imap.rendering.outline import MESSAGE_IDS
from replicator.node_parts import tracer_of
from replicator.replication.stories.stories import Stories
from replicator.replication.tasks.registry import tasks_of
from replicator.users import UserDirectory
from tests.one_node import Names
from tests.replication.cluster import Cluster, Node, cluster

T = TypeVar("T")


@dataclass
class ServedPair:
    """Nodes dc1 and dc2, both in another thread."""

    urls: dict[str, str]
    nodes: Cluster
    token: trio.lowlevel.TrioToken
    ended: trio.Event

    @property
    def url(self) -> str:
        """The address of dc1."""
        return self.urls["dc1"]

    def do(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        """Run work in the nodes' thread."""
        return trio.from_thread.run(work, self.nodes, trio_token=self.token)


@contextmanager
def served_pair(directory: Path, size: int = 2) -> Iterator[ServedPair]:
    """Run the pair. Of `size` configured nodes, the others do not run."""
    running: queue.Queue[ServedPair] = queue.Queue()

    async def serve() -> None:
        async with cluster(directory, None, size, start=["dc1", "dc2"]) as nodes, trio.open_nursery() as nursery:
            urls, ended = {node.sid: await _serve(node, nursery) for node in nodes.all()}, trio.Event()
            running.put(ServedPair(urls, nodes, trio.lowlevel.current_trio_token(), ended))
            await ended.wait()
            nursery.cancel_scope.cancel()

    directory.mkdir()
    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    pair = running.get(timeout=60)
    try:
        yield pair
    finally:
        pair.token.run_sync_soon(pair.ended.set)
        thread.join()


async def _serve(node: Node, nursery: trio.Nursery) -> str:
    """Open the node's HTTP door, and return its address."""
    tasks, coordinator = tasks_of(node.store, node.coordinator, node.environment), node.coordinator
    nursery.start_soon(tasks.run)
    services = HttpServices(
        node.sid,
        node.mail,
        node.report,
        Names("alice", "bob"),
        node.registry,
        coordinator.handover,
        coordinator.log_truncation,
        tasks,
        Stories(node.store, coordinator, node.environment, MESSAGE_IDS),
        UserDirectory(node.config.users.passwd_file),
        MESSAGE_IDS,
        tracer_of(node.store, coordinator.connections, node.environment),
        peers=frozenset({"dc2", "dc3"}),
    )
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, HttpServer(services).serve, [listener])
    return f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
