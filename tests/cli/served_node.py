"""The HTTP door on loopback in a thread of its own, over a real mail store."""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio
from prometheus_client import CollectorRegistry

from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.imap.rendering.outline import MESSAGE_IDS
from replicator.mail.view import Message
from replicator.users import UserDirectory
from tests.http.fixed_report import FixedReport, FixedSearchTexts
from tests.one_node import HookedMail, Names, one_node
from tests.open_sessions import Holder


@dataclass
class ServedNode:
    """A node that runs in another thread."""

    port: int
    mail: HookedMail
    report: FixedReport
    token: trio.lowlevel.TrioToken
    scope: trio.CancelScope
    search_texts: FixedSearchTexts
    users: UserDirectory
    users_file: Path
    sessions: Holder

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bodies(self, user: str, folder: str) -> list[bytes]:
        return trio.from_thread.run(self.mail.bodies, user, folder, trio_token=self.token)

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something at the node."""
        trio.from_thread.run(work, trio_token=self.token)

    def messages(self, user: str, folder: str) -> list[Message]:
        async def read() -> list[Message]:
            view = await self.mail.open_mailbox(await self.mail.folder(user, folder))
            return list(view.messages.values())

        return trio.from_thread.run(read, trio_token=self.token)


@contextmanager
def served_node(directory: Path) -> Iterator[ServedNode]:
    running: queue.Queue[ServedNode] = queue.Queue()

    async def serve() -> None:
        async with one_node(directory) as mail, trio.open_nursery() as nursery:
            report, search_texts = FixedReport(), FixedSearchTexts()
            tasks = mail.tasks()
            nursery.start_soon(tasks.run)
            names = Names("alice", "bob", "ann@example.org")
            users_file = directory / "users.passwd"
            users = UserDirectory(users_file)
            services = HttpServices(
                "dc1",
                mail,
                report,
                names,
                CollectorRegistry(),
                report,
                report,
                tasks,
                mail.stories(),
                users,
                MESSAGE_IDS,
                mail.tracer(),
                search_texts,
                peers=frozenset({"dc2", "dc3"}),
            )
            sessions = Holder(nursery, services.sessions.own)
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, HttpServer(services).serve, [listener])
            token = trio.lowlevel.current_trio_token()
            port = int(listener.socket.getsockname()[1])
            running.put(
                ServedNode(
                    port,
                    mail,
                    report,
                    token,
                    nursery.cancel_scope,
                    search_texts,
                    users,
                    users_file,
                    sessions,
                )
            )

    directory.mkdir()
    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    node = running.get(timeout=10)
    try:
        yield node
    finally:
        node.token.run_sync_soon(node.scope.cancel)
        thread.join()
