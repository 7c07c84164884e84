"""A node of a simulated cluster: its machine, and the present run of the node on it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import trio
from prometheus_client import CollectorRegistry

from protocol.commands import Reply
from replicator.config import Config
from replicator.errors import MailError, RunsTwiceError, leaves
from replicator.mail.lookup import SeenMessages
from replicator.mail.mailstore import Folder
from replicator.mail.view import MailboxView, Message
from replicator.replication.cluster_mail_store import ClusterMailStore
from replicator.replication.coordinator import Coordinator
from replicator.replication.node_metrics import NodeMetrics
from replicator.replication.node_status import StatusReporter
from replicator.replication.writes.quotas import Quotas
from replicator.replication.writes.requests import ChangeRequest, CopyRequest
from replicator.replication.writes.seen_changes import SeenChanges
from replicator.runtime.environment import Environment
from replicator.runtime.objects import ObjectStore
from replicator.store.checkpoints.archive import Archive
from replicator.store.checkpoints.checkpoint import Home
from replicator.store.db import schema
from replicator.store.db.transaction import Commit, Transaction
from replicator.store.store import Listener, Store
from replicator.users import QuotaLimits
from tests.limits import limits_by
from tests.replication.cluster import EPOCH_MS, Node
from tests.replication.network import Network
from tests.simulation.records.story import Story
from tests.simulation.records.watch import Watch
from tests.simulation.runtime.disk import Disk
from tests.simulation.runtime.scheduler import OWNER, Owner
from tests.store.consistency import check_file
from tests.store.harness import connection_of

FAR_AWAY = QuotaLimits(1 << 40, 10**9)  # no user comes near, but every delivery is counted
COUNT_EVERY_S = 20.0
RESTART_S = 1.0  # pause of a node whose disk does not accept its name

T = TypeVar("T")


class NodeGoneError(Exception):
    """The node is down, or went down while it worked for this client."""


class Observer(Protocol):
    """Observer of the changes that clients ask for: the world."""

    async def submit(self, machine: Machine, operation: ChangeRequest, submit: Callable[[], Awaitable[Reply]]) -> Reply:
        """Wrap `submit`, which carries out the operation and which this method must call."""
        ...

    def moves(self, source: bytes, destination: bytes, guids: Sequence[bytes], *, anew: bool) -> None:
        """Note that a node itself is about to move stray mail to the mailbox that has its folder's name.

        `anew`: under another GUID, since the mailbox may be about to lose the mail under this one.
        """
        ...

    def expunges(self, mailbox_id: bytes, messages: Sequence[Message]) -> None:
        """Note that a client's node asks to expunge these messages."""
        ...

    def disk_replaced(self) -> None:
        """Note that a node that is down gets another disk."""
        ...

    def begins_anew(self, machine: Machine) -> None:
        """Note that a node starts that has lost its disk."""
        ...

    def selects(self, machine: Machine, view: MailboxView) -> None:
        """Note that a client's node shows it a mailbox."""
        ...

    def may_still_number(self, machine: Machine) -> list[str]:
        """Return other nodes that may number what this one masters now: none, if elections keep their promise."""
        ...


class _ObservedCoordinator(Coordinator):
    machine: Machine
    observer: Observer

    async def submit(self, operation: ChangeRequest) -> Reply:
        submit = super().submit
        return await self.observer.submit(self.machine, operation, lambda: submit(operation))

    async def gather(self, operation: ChangeRequest) -> Reply:
        """Carry out what the node itself does about stray mail."""
        if isinstance(operation, CopyRequest):
            source, destination = operation.source.mailbox_id, operation.key.mailbox_id
            self.observer.moves(source, destination, operation.guids, anew=not operation.can_repeat)
        return await self.carry_out(operation)


class _ObservedChanges(SeenChanges):
    observer: Observer

    async def expunge(self, seen: SeenMessages) -> None:
        self.observer.expunges(seen.mailbox_id, seen.messages)
        await super().expunge(seen)


class _ObservedMail(ClusterMailStore):
    changes_type = _ObservedChanges
    machine: Machine
    observer: Observer

    def observe(self, machine: Machine, observer: Observer) -> None:
        self.machine, self.observer = machine, observer
        assert isinstance(self.changes, _ObservedChanges)
        self.changes.observer = observer

    async def open_mailbox(self, folder: Folder) -> MailboxView:
        view = await super().open_mailbox(folder)
        self.observer.selects(self.machine, view)
        return view


@dataclass(eq=False)
class _Call(Generic[T]):
    """A client's work at a node, and its result."""

    done: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    results: list[T] = field(default_factory=list)
    error: Exception | None = None


@dataclass(eq=False)
class Life:
    """A run of the node's process, from its start to its end."""

    owner: Owner
    node: Node
    nursery: trio.Nursery
    is_up: bool = True  # for clients and observers
    began: float = field(default_factory=trio.current_time)
    term: int = 0  # at its last write
    term_began: float = 0.0
    rivals: list[str] = field(default_factory=list)  # see `Observer.may_still_number`


async def _count(store: Store, metrics: NodeMetrics) -> None:
    """Count what the node shows, as a node does from its start on, but look more often whether some is uncounted.

    Metrics are refreshed as often, and not at each heartbeat.
    """
    while True:
        with suppress(MailError):
            await store.count(at_leisure=True)
        await metrics.refresh()
        await trio.sleep(COUNT_EVERY_S)


class Clock:
    """A wall clock that is ahead by some seconds and drifts."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.drift = 0.0  # seconds per second
        self._since = 0.0

    def set(self, ahead_s: float, drift: float = 0.0) -> None:
        self.ahead_s, self.drift, self._since = ahead_s, drift, trio.current_time()

    def now_ms(self) -> int:
        now = trio.current_time()
        return EPOCH_MS + int((now + self.ahead_s + self.drift * (now - self._since)) * 1000)


class Machine:
    """Hardware on which nodes run. `config` returns the configuration of a node with this data directory.

    `has_tls`: its links pass for links with TLS, which have no blocks, so that their commands can be changed as by a
    faulty node. `name`: of a machine that is not its node's own, but has a copy of that one's disk. A run on it ends
    when it finds that another run is the node, and notes the reason in `gave_way`.
    """

    def __init__(
        self,
        sid: str,
        seed: str,
        *,
        directory: Path,
        network: Network,
        nursery: trio.Nursery,
        story: Story,
        watch: Watch,
        observer: Observer,
        config: Callable[[str, Path], Config],
        collects: bool,
        has_tls: bool,
        alters_histories: bool,
        name: str | None = None,
    ) -> None:
        self.sid = sid
        self.name = name or sid
        self.address = self.name  # in the network
        self.gave_way: str | None = None
        self.dice = random.Random(f"{seed} {self.name}")
        self.disk = Disk(directory, self.name, self.dice)
        self.clock = Clock()
        self.life: Life | None = None
        self.watch = watch
        self.story = story
        self._network, self._nursery = network, nursery
        self._observer, self._config = observer, config
        self._has_tls = has_tls
        self._alters_histories = alters_histories
        self._objects = (directory / f"objects-{self.name}").as_uri() if collects else None
        self.is_starting = False
        self._was_emptied = False  # its database is new, but its node existed before
        self._runs: list[trio.Event] = []  # for each run, an event that is set when it has ended and unwound

    @property
    def is_up(self) -> bool:
        return self.life is not None

    @property
    def node(self) -> Node:
        """The running node. Raises NodeGoneError."""
        if self.life is None:
            raise NodeGoneError(f"{self.name} is down")
        return self.life.node

    # ---- start and end

    async def start(self) -> None:
        assert not self.is_up
        assert not self.is_starting
        self.is_starting, self.gave_way = True, None
        self.story.say(f"{self.name} starts")
        try:
            with trio.CancelScope(shield=True):
                await self._nursery.start(self._live)
        finally:
            self.is_starting = False

    async def stop(self) -> None:
        """Stop the node as SIGTERM does, and check its database."""
        self.disk.fault = None  # a node that cannot write at its end has died, which is another fault
        self.thaw()
        await self._leave()
        if self.life is None:  # it has given way to another run meanwhile
            return
        life = self._end("stops")
        life.node.scope.cancel()
        await life.node.stopped.wait()
        self._network.end_connections(self.address)
        check_file(self.disk.path, has_sound_histories=not self._alters_histories)

    async def _leave(self) -> None:
        assert self.life is not None
        self.story.say(f"{self.name} is about to stop")
        left = trio.Event()

        async def leave(node: Node) -> None:
            try:
                await node.coordinator.leave()
            finally:
                left.set()

        self._start_task(self.life, leave)
        await left.wait()

    async def unwound(self) -> None:
        """Return when nothing of any run is left: on a slow disk, a crashed one may end after the next has begun."""
        for ended in self._runs:
            await ended.wait()

    def crash(self, *, silently: bool = False) -> None:
        """End the process; if `silently`, the whole machine, so that no peer is notified."""
        life = self._end("loses its power" if silently else "crashes")
        life.owner.is_dead = True
        self.disk.power_cut()
        self._network.end_connections(self.address, silently=silently)
        life.owner.thaw()
        life.node.scope.cancel()

    def restore(self, copy: Path | None) -> None:
        """Let the next run begin with this copy of the disk, or with an empty one."""
        assert self.life is None
        self.story.say(f"{self.name} gets {'an older copy of its' if copy else 'an empty'} disk")
        self._was_emptied = copy is None
        self._observer.disk_replaced()
        self.watch.disk_replaced(self.disk.restore(copy))

    def copy_disk_of(self, other: Machine) -> None:
        """Begin with a copy of the other machine's disk, as it is now; that machine may be running."""
        assert self.life is None
        self.story.say(f"{self.name} gets a copy of the disk of {other.name}")
        self.disk.restore_of(other.disk)

    def _end(self, how: str) -> Life:
        life = self.life
        assert life is not None
        self.story.say(f"{self.name} {how}")
        life.is_up, self.life = False, None
        self._network.accepting.pop(self.address, None)
        return life

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        owner, mount, stopped = Owner(self.name), self.disk.mount(), trio.Event()
        OWNER.set(owner)
        environment = Environment(
            clock_ms=self.clock.now_ms,
            stopwatch_s=trio.current_time,
            suspended_s=lambda: 0.0,
            random=random.Random(f"{self.dice.random()}"),
            run_in_thread=mount.run,
            run_until_cancelled=mount.run,
            open_database=mount.open,
        )
        config, scope, life = self._config(self.sid, self.disk.directory), trio.CancelScope(), None
        certified = ("the network", frozenset(peer.id for peer in config.peers)) if self._has_tls else None
        self._runs.append(stopped)
        try:
            with scope:
                origin = environment.new_origin(self.sid)
                async with Store.open(self.disk.path, origin, environment, mount.files) as store:
                    self.watch.begin(connection_of(store), origin)
                    is_new = await self._is_new(store)
                    archive = self._archive(environment)
                    coordinator = _ObservedCoordinator(
                        config,
                        store,
                        environment,
                        lambda peer: self._network.connect(self.address, peer.id),
                        lambda _: certified,
                        archive=archive,
                        is_new=is_new,
                    )
                    coordinator.machine, coordinator.observer = self, self._observer
                    coordinator.fork_scheduler._submit = coordinator.gather
                    quotas = Quotas(store.usage, limits_by(lambda _: FAR_AWAY))
                    mail, registry = _ObservedMail(store, coordinator, environment, quotas), CollectorRegistry()
                    mail.observe(self, self._observer)
                    if is_new:
                        self._observer.begins_anew(self)
                    report = StatusReporter(coordinator, store, environment)
                    metrics = NodeMetrics(registry, report, coordinator, store, environment)
                    node = Node(
                        self.sid,
                        config,
                        environment,
                        store,
                        coordinator,
                        mail,
                        report,
                        metrics,
                        registry,
                        scope,
                        stopped,
                    )
                    async with trio.open_nursery() as nursery:
                        life = self.life = Life(owner, node, nursery)
                        mount.before_writing = self._note_term
                        store.listeners.insert(0, _while_up(life, self.watch, self.story))
                        self._network.accepting[self.address] = self._accept
                        nursery.start_soon(coordinator.run)
                        nursery.start_soon(_count, store, metrics)
                        task_status.started()
        except* RunsTwiceError as errors:
            if self.name == self.sid:
                raise
            self.gave_way = str(leaves(errors)[0])
            self._end(f"gives way: {self.gave_way}")
            self._network.end_connections(self.address)
            check_file(self.disk.path, has_sound_histories=not self._alters_histories)
        except* Exception:
            if not owner.is_dead:
                self.story.say(f"{self.name} dies of an error of its own")
                raise
        finally:
            stopped.set()

    async def _is_new(self, store: Store) -> bool:
        """Return True if the node has to wait for the others because it lost its disk.

        The first nodes begin a cluster, as with --new-cluster.
        """
        row = await store.read(lambda reader: reader.execute("SELECT begun FROM identity").fetchone())
        if row is not None:  # its disk may refuse writes now
            return not row[0]
        while True:
            try:
                await store.write(self._claim)
            except MailError as error:  # a supervisor would start it again
                self.story.say(f"{self.name} cannot start: {error}")
                await trio.sleep(RESTART_S)
            else:
                return self._was_emptied

    def _claim(self, tx: Transaction) -> None:
        schema.claim(tx.connection, self.sid, "mail")
        if not self._was_emptied:
            schema.begin(tx.connection)

    def _archive(self, environment: Environment) -> Archive | None:
        """Return an archive for this node alone, on a disk that is never lost."""
        if self._objects is None:
            return None
        return Archive(ObjectStore(self._objects, environment), Home("mail", self.sid))

    def _note_term(self) -> None:
        """Note the term in which the writer is about to number."""
        if (life := self.life) is not None:
            term = life.node.coordinator.mastership.masters.term
            if term != life.term:
                life.term, life.term_began = term, trio.current_time()
            life.rivals = self._observer.may_still_number(self)

    async def _accept(self, stream: trio.abc.Stream) -> None:
        if self.life is not None and not self.life.nursery.cancel_scope.cancel_called:
            self._start_task(self.life, lambda node: node.coordinator.connections.accept(stream))

    # ---- work

    def freeze(self) -> None:
        assert self.life is not None
        self.story.say(f"{self.name} stands still")
        self.life.owner.freeze()

    def thaw(self) -> None:
        if self.life is not None and self.life.owner.frozen:
            self.story.say(f"{self.name} goes on")
            self.life.owner.thaw()

    @property
    def frozen_s(self) -> float:
        """Seconds for which the present run has stood still."""
        return self.life.owner.frozen_s if self.life else 0.0

    async def call(self, work: Callable[[Node], Awaitable[T]]) -> T:
        """Do a client's work at the node. A result counts only if it was returned before the node's end.

        Raises MailError, NodeGoneError. If cancelled, the client is disconnected.
        """
        life = self.life
        if life is None:
            raise NodeGoneError(f"{self.name} is down")
        call = _Call[T]()

        async def run(node: Node) -> None:
            try:
                with call.scope:
                    result = await work(node)
                    if life.is_up:
                        call.results.append(result)
            except MailError as error:
                call.error = error
            finally:
                call.done.set()

        self._start_task(life, run)
        try:
            await call.done.wait()
        finally:
            call.scope.cancel()
        if call.error is not None and life.is_up:
            raise call.error
        if not call.results:
            raise NodeGoneError(f"{self.name} went down")
        return call.results[0]

    def _start_task(self, life: Life, work: Callable[[Node], Awaitable[None]]) -> None:
        """Start a task of the node. Raises NodeGoneError."""

        async def task() -> None:
            OWNER.set(life.owner)
            await work(life.node)

        if life.nursery.cancel_scope.cancel_called:
            raise NodeGoneError(f"{self.name} is going down")
        life.nursery.start_soon(task)


def _while_up(life: Life, watch: Watch, story: Story) -> Listener:
    def note(commit: Commit) -> None:
        if life.is_up:
            for item in commit.logged:
                own = item.entry.dot.origin == life.node.store.origin and len(item.entry.predecessors) < 2
                assert not (own and life.rivals), f"{life.node.sid} numbers while {life.rivals} have not dropped"
                story.fold(f"{life.node.sid} {trio.current_time()} {item.entry.dot}".encode() + item.entry.pack())
            watch.note(commit)

    return note
