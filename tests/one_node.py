"""A real node without doors or peers, for tests of doors. Its database is on disk, and its jobs run without threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import trio

from replicator.config import LimitsConfig, default_config
from replicator.errors import MailError
from replicator.imap.rendering.outline import MESSAGE_IDS
from replicator.mail.lookup import SeenMessages
from replicator.mail.mailstore import (
    BodySink,
    CopiedMessages,
    Folder,
    NewMessage,
    Outliner,
    ReceivedBody,
    SavedMessage,
    SearchTextMaker,
    StoreResult,
    read_all,
)
from replicator.mail.view import MailboxView, Message
from replicator.node_parts import tracer_of
from replicator.replication.bodies.upkeep.search_texts import SearchTexts
from replicator.replication.cluster_mail_store import ClusterMailStore
from replicator.replication.coordinator import Coordinator
from replicator.replication.stories.stories import Stories
from replicator.replication.tasks.registry import tasks_of
from replicator.replication.tasks.runner import TaskRunner
from replicator.replication.writes.quotas import Quotas
from replicator.replication.writes.seen_changes import SeenChanges
from replicator.runtime.environment import Environment
from replicator.store.store import Store
from replicator.tracing.tracer import Tracer
from replicator.users.names import candidates

T = TypeVar("T")

Hook = Callable[[str], Awaitable[None]]
"""A call before each change, with the user whose mail changes. It may raise an error, or wait."""


async def run_inline(work: Callable[[], T]) -> T:
    """Do work without a thread, so that no virtual time passes meanwhile."""
    await trio.lowlevel.checkpoint()
    return work()


async def no_peers(*_: object) -> trio.abc.Stream:
    raise OSError("there are no peers")


async def nothing(_user: str) -> None:
    """The hook that does nothing."""


def failing(error: MailError) -> Hook:
    """Return a hook that fails every change."""

    async def fail(_user: str) -> None:
        raise error

    return fail


@dataclass
class Gate:
    """A hook that fails changes of the users in `failures`, and holds others back until `open` is set."""

    failures: dict[str, MailError] = field(default_factory=dict)
    open: trio.Event | None = None
    waiting: int = 0
    most_waiting: int = 0

    async def __call__(self, user: str) -> None:
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            await trio.lowlevel.checkpoint()
            if self.open is not None:
                await self.open.wait()
            if user in self.failures:
                raise self.failures[user]
        finally:
            self.waiting -= 1


@dataclass
class SinkLog:
    """A log of what sinks were given, and the piece (from 0 on) or end at which they fail."""

    fails_at: int | None = None
    fails_at_end: bool = False
    error: MailError = field(default_factory=MailError)
    written: list[bytes] = field(default_factory=list)
    failures: int = 0
    opened: int = 0
    open: int = 0


class LoggedSink:
    """A sink that logs everything and gives it on to a sink of the mail store."""

    def __init__(self, sink: BodySink, log: SinkLog) -> None:
        self._sink = sink
        self._log = log

    async def write(self, data: bytes) -> None:
        if len(self._log.written) == self._log.fails_at:
            self._log.failures += 1
            raise self._log.error
        self._log.written.append(data)
        await self._sink.write(data)

    async def finish(self) -> ReceivedBody:
        if self._log.fails_at_end:
            self._log.failures += 1
            raise self._log.error
        return await self._sink.finish()


class _HookedChanges(SeenChanges):
    mail: HookedMail

    async def copy(self, seen: SeenMessages, destination: Folder) -> CopiedMessages:
        await self.mail.before_change(destination.user)
        return await super().copy(seen, destination)

    async def store_flags(
        self, seen: SeenMessages, added: frozenset[str], removed: frozenset[str], unchanged_since: int | None
    ) -> StoreResult:
        await self.mail.before_change(seen.user)
        return await super().store_flags(seen, added, removed, unchanged_since)

    async def expunge(self, seen: SeenMessages) -> None:
        await self.mail.before_change(seen.user)
        await super().expunge(seen)


class HookedMail(ClusterMailStore):
    """The node's mail store. `before_change` is called before each change of messages, and `sinks` logs bodies."""

    changes_type = _HookedChanges
    before_change: Hook = staticmethod(nothing)
    sinks: SinkLog | None = None

    def __init__(
        self, store: Store, coordinator: Coordinator, environment: Environment, quotas: Quotas | None = None
    ) -> None:
        super().__init__(store, coordinator, environment, quotas)
        assert isinstance(self.changes, _HookedChanges)
        self.changes.mail = self

    @asynccontextmanager
    async def receive(self) -> AsyncIterator[BodySink]:
        async with super().receive() as sink:
            if self.sinks is None:
                yield sink
                return
            self.sinks.opened += 1
            self.sinks.open += 1
            try:
                yield LoggedSink(sink, self.sinks)
            finally:
                self.sinks.open -= 1

    @property
    def store(self) -> Store:
        return self._store

    async def outline(self, outliner: Outliner) -> None:
        """Make outlines until cancelled, as a running node does."""
        await self._bodies.outline(outliner)

    async def keep_search_texts(self, maker: SearchTextMaker | None) -> None:
        """Keep search texts until cancelled, as a running node does."""
        await self._bodies.keep_search_texts(maker)

    @property
    def search_texts_task(self) -> SearchTexts:
        return self._bodies.search_texts

    def tasks(self) -> TaskRunner:
        """Return the task runner, which the test has to run."""
        return tasks_of(self._store, self._coordinator, self._environment)

    def stories(self) -> Stories:
        return Stories(self._store, self._coordinator, self._environment, MESSAGE_IDS)

    def tracer(self) -> Tracer:
        return tracer_of(self._store, self._coordinator.connections, self._environment)

    async def bodies(self, user: str, name: str = "INBOX") -> list[bytes]:
        view = await self.open_mailbox(await self.folder(user, name))
        return [await read_all(await self.read_body(message)) for message in view.messages.values()]

    async def lose_body(self, message: Message) -> None:
        """Delete a message's body, as if the disk had lost it."""
        await self._store.write(
            lambda tx: tx.connection.execute("DELETE FROM content WHERE hash = ?", (message.content_hash,)).rowcount
        )

    async def claim_recent(self, view: MailboxView) -> int:
        await self.before_change(view.user)
        return await super().claim_recent(view)

    async def _deliver_first(self, user: str, message: NewMessage) -> SavedMessage | None:
        await self.before_change(user)
        return await super()._deliver_first(user, message)

    async def save_all(self, folder: Folder, messages: Sequence[NewMessage]) -> Sequence[SavedMessage]:
        await self.before_change(folder.user)
        return await super().save_all(folder, messages)


class Names:
    """The users who have mail here."""

    def __init__(self, *users: str) -> None:
        self._users = frozenset(users)

    async def ask(self, name: str) -> str | None:
        await trio.lowlevel.checkpoint()
        return self.find(name)

    def name_meant(self, name: str) -> str:
        return name

    def find(self, name: str) -> str | None:
        return next((user for user in candidates(name) if user in self._users), None)


@asynccontextmanager
async def one_node(
    directory: Path, limits: LimitsConfig | None = None, quotas: Callable[[Store], Quotas] | None = None
) -> AsyncIterator[HookedMail]:
    """Run a cluster of one node, and yield its mail store."""
    environment = Environment(run_in_thread=run_inline, run_until_cancelled=run_inline)
    config = default_config("dc1", directory)
    origin = environment.new_origin("dc1")
    opened = Store.open(directory / "node.db", origin, environment, limits=limits)
    async with opened as store, trio.open_nursery() as nursery:
        coordinator = Coordinator(config, store, environment, no_peers)
        nursery.start_soon(coordinator.run)
        yield HookedMail(store, coordinator, environment, quotas and quotas(store))
        nursery.cancel_scope.cancel()
