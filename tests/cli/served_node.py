"""The HTTP door on loopback in a thread of its own, over a mail store in memory."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio
from prometheus_client import CollectorRegistry

from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from tests.http.memory_mail import FixedReport, FixedUsers, MemoryMail


@dataclass
class ServedNode:
    port: int
    mail: MemoryMail = field(default_factory=MemoryMail)
    report: FixedReport = field(default_factory=FixedReport)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def texts(self, user: str, folder: str) -> list[bytes]:
        view = self.mail.views[user, folder]
        return [self.mail.texts[message.content_hash] for message in view.messages.values()]


@contextmanager
def served_node() -> Iterator[ServedNode]:
    node = ServedNode(port=0)
    services = HttpServices("dc1", node.mail, node.report, FixedUsers(), CollectorRegistry())
    running: queue.Queue[tuple[int, trio.lowlevel.TrioToken, trio.CancelScope]] = queue.Queue()

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, HttpServer(services).serve, [listener])
            port = int(listener.socket.getsockname()[1])
            running.put((port, trio.lowlevel.current_trio_token(), nursery.cancel_scope))

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    node.port, token, scope = running.get(timeout=10)
    try:
        yield node
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join()
