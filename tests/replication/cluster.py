"""A whole cluster in one process, with real nodes and real databases, and a network in memory.

By default it runs in virtual time: the work of threads is done on the event loop, so that trio's clock jumps only when
nothing is left to do. The database of every node is checked when the node stops.
"""

import random
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.config import (
    Address,
    Config,
    ConflictConfig,
    ContentConfig,
    DurabilityConfig,
    LogConfig,
    MastershipConfig,
    PeerConfig,
    UidConflict,
    WhenShort,
    default_config,
)
from replicator.errors import RunsTwiceError, leaves
from replicator.mail.mailstore import Folder, NewMessage, read_all
from replicator.mail.view import MailboxView, Message
from replicator.node_parts import archive_of
from replicator.replication.cluster_mail_store import ClusterMailStore
from replicator.replication.coordinator import Coordinator
from replicator.replication.log import sender
from replicator.replication.node_metrics import NodeMetrics
from replicator.replication.node_status import StatusReporter
from replicator.replication.writes.quotas import Quotas
from replicator.runtime.environment import Environment
from replicator.runtime.metrics import ReplicationMetrics
from replicator.store.db import queries, schema
from replicator.store.store import Store
from replicator.users import QuotaLimits
from tests.limits import limits_by
from tests.replication.network import Network
from tests.store.consistency import check_file
from tests.store.damaging import damage
from tests.store.harness import check_tally, check_usages

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000
LOOPBACK = Address("127.0.0.1", 1)
USER = "alice"
HEARTBEAT_S, TIMEOUT_S = MastershipConfig().heartbeat_s, MastershipConfig().timeout_s


async def _at_once(work: Callable[[], T]) -> T:
    await trio.lowlevel.checkpoint()
    return work()


def virtual_environment(
    clock: MockClock, seed: str, ahead_s: float = 0, suspended_s: Callable[[], float] = lambda: 0.0
) -> Environment:
    """Return an environment with the test's clock, with randomness from the seed, and without threads."""
    return Environment(
        clock_ms=lambda: EPOCH_MS + int((clock.current_time() + ahead_s) * 1000),
        stopwatch_s=clock.current_time,
        suspended_s=suspended_s,
        random=random.Random(seed),
        run_in_thread=_at_once,
        run_until_cancelled=_at_once,
    )


@dataclass(eq=False)
class Node:
    """One running node."""

    sid: str
    config: Config
    environment: Environment
    store: Store
    coordinator: Coordinator
    mail: ClusterMailStore
    report: StatusReporter
    metrics: NodeMetrics
    registry: CollectorRegistry
    scope: trio.CancelScope
    stopped: trio.Event = field(default_factory=trio.Event)

    @property
    def component(self) -> set[str]:
        return set(self.coordinator.mastership.table.component)

    async def digests(self) -> dict[str, str]:
        """Return the digest of every mailbox and tree, by id."""
        return await self.store.read(
            lambda reader: {chain.id.hex(): chain.digest().hex() for chain in queries.chains_of(reader, None)}
        )

    async def waiting(self) -> int:
        return (await self.store.read(queries.log_counts))[1]

    def damage(self, *statements: str) -> None:
        """Change the database by SQL while the node runs."""
        damage(self.config.node.data / "node.db", *statements)

    async def inbox(self, user: str = USER) -> Folder:
        return await self.mail.folder(user, "INBOX")

    async def view(self, name: str = "INBOX", user: str = USER) -> MailboxView:
        return await self.mail.open_mailbox(await self.mail.folder(user, name))

    async def save(self, body: str, name: str = "INBOX", user: str = USER) -> int:
        """Save a message and return its UID."""
        return (await self.mail.save(await self.mail.folder(user, name), NewMessage(body.encode()))).uid

    async def expunge(self, *uids: int, name: str = "INBOX") -> None:
        await self.mail.expunge(await self.view(name), UidSet.of(uids))

    async def flag(self, *uids: int, name: str = "INBOX", added: Iterable[str] = ("\\Seen",)) -> None:
        await self.mail.store_flags(await self.view(name), UidSet.of(uids), added=frozenset(added))

    async def bodies(self, name: str = "INBOX", user: str = USER) -> dict[int, str]:
        """Return UID -> body of all messages that a client would see."""
        view = await self.view(name, user)
        shown = list(view.messages.items())
        return {uid: (await read_all(await self.mail.read_body(message))).decode() for uid, message in shown}

    async def body_of(self, uid: int) -> str:
        """Return the body of a message in INBOX."""
        return (await read_all(await self.mail.read_body((await self.view()).messages[uid]))).decode()

    async def messages(self, name: str = "INBOX") -> list[Message]:
        return list((await self.view(name)).messages.values())


def _unchanged(stream: trio.abc.Stream) -> trio.abc.Stream:
    return stream


def copy_of(sid: str) -> str:
    """Return the name that the node's copy has in the network."""
    return f"{sid}-copy"


class Cluster:
    """Nodes dc1, dc2, … and the network between them."""

    def __init__(
        self,
        directory: Path,
        clock: MockClock | None,
        size: int,
        nursery: trio.Nursery,
        durability: DurabilityConfig,
    ) -> None:
        self.directory = directory
        self.sids = [f"dc{number + 1}" for number in range(size)]
        self.nodes: dict[str, Node] = {}
        self.network = Network(nursery)
        self.durability = durability
        self.conflict = ConflictConfig()
        self.shares_objects = False
        self.removed: tuple[str, ...] = ()  # nodes that the others are told have left for good, from their next start
        self.log = LogConfig()
        self.content = ContentConfig()
        self.quota = QuotaLimits(1 << 40, 10**9)  # far away, but every delivery is counted
        self.peer_address = LOOPBACK
        self.mastership = MastershipConfig()
        self.clock_ahead_s: dict[str, float] = {}
        self.suspended_s: defaultdict[str, float] = defaultdict(float)  # how long each node's machine has slept
        self.renamed: dict[tuple[str, str], str] = {}  # (dialling node, peer) -> which node has the peer's address now
        self.gave_way: dict[str, str] = {}  # nodes that ended because of a second process under their SID -> the error
        self.line: Callable[[trio.abc.Stream], trio.abc.Stream] = _unchanged  # wraps the stream of the dialling node
        self.has_tls = True  # links pass for links with TLS, which have no blocks: commands can be changed, and read
        self.waits_when_new = False  # a node with a new database waits for its cluster, as without --new-cluster
        self._clock = clock
        self._runs = 0
        self._nursery = nursery

    def __getitem__(self, sid: str) -> Node:
        return self.nodes[sid]

    def all(self) -> list[Node]:
        """Return the nodes that run."""
        return list(self.nodes.values())

    def config(self, sid: str) -> Config:
        others = [other for other in self.sids if other not in {sid, *self.removed}]
        peers = tuple(PeerConfig(other, self.peer_address) for other in others)
        defaults = default_config(sid, self.directory, peers=peers)
        return replace(
            defaults,
            node=replace(defaults.node, removed=self.removed),
            durability=self.durability,
            mastership=self.mastership,
            conflict=self.conflict,
            checkpoint=replace(defaults.checkpoint, shared=self.shares_objects),
            log=self.log,
            content=self.content,
        )

    def data(self, sid: str) -> Path:
        return self.config(sid).node.data

    def erase(self, sid: str) -> None:
        """Delete the database of a stopped node, which then starts with a new disk."""
        for path in self.data(sid).glob("node.db*"):
            path.unlink()

    async def start(self, *sids: str) -> None:
        """Start nodes; all if none is named."""
        for sid in sids or self.sids:
            await self._nursery.start(self._run, sid, sid)

    async def start_copy(self, sid: str, *, cut_from: Sequence[str] = ()) -> Node:
        """Start a second process, on a copy of the node's directory. Nobody dials its address.

        Its name in the network is `copy_of(sid)`. `cut_from`: the nodes that it does not reach.
        """
        name = copy_of(sid)
        self.network.cut(*((name, other) for other in cut_from))
        shutil.copytree(self.data(sid), self.directory / name / self.data(sid).name, dirs_exist_ok=True)
        node: Node = await self._nursery.start(self._run, sid, name)
        return node

    async def stop(self, sid: str) -> None:
        """End the node as a signal would, and check its database."""
        node = self.nodes.pop(sid)
        del self.network.accepting[sid]
        node.scope.cancel()
        await node.stopped.wait()
        self.network.end_connections(sid)

    def isolate(self, sid: str) -> None:
        self.network.cut(*((sid, other) for other in self.sids if other != sid))

    def rejoin(self, sid: str) -> None:
        self.network.mend(*((sid, other) for other in self.sids if other != sid))

    async def make_line(self) -> None:
        """Cut all links but those between neighbours by number."""
        neighbours = set(zip(self.sids, self.sids[1:], strict=False))
        self.network.cut(*(pair for pair in combinations(self.sids, 2) if pair not in neighbours))
        await self.linked()

    async def linked(self, *groups: Sequence[str]) -> None:
        """Return when the nodes of each group (by default, all that run) see each other and agree on their masters."""
        expected = [set(group) for group in groups] or [set(self.nodes)]
        members = [(self[sid], group) for group in expected for sid in group]
        await until(lambda: all(map(self._has_its_links, self.all())))
        await until(
            lambda: all(
                node.component == group and node.coordinator.elections.machine.settled for node, group in members
            )
        )

    def _has_its_links(self, node: Node) -> bool:
        up = {link.sid for link in node.coordinator.connections.links}
        return up == {sid for sid in self.nodes if sid != node.sid and not self.network.is_cut(node.sid, sid)}

    async def converged(self) -> dict[str, str]:
        """Wait until all nodes show the same and no entry waits, and return their digests."""
        with trio.fail_after(120):
            pause_s = 0.02
            while True:
                found = [await node.digests() for node in self.all()]
                waiting = [await node.waiting() for node in self.all()]
                if all(digests == found[0] for digests in found) and not any(waiting):
                    if self._clock is None:  # threads: a commit can be read shortly before the event loop has seen it
                        for node in self.all():
                            await node.store.flush()
                    for node in self.all():
                        check_usages(node.store)
                        check_tally(node.store)
                    return found[0]
                await trio.sleep(pause_s)
                pause_s = min(1.2 * pause_s, 0.25)

    async def _run(self, sid: str, name: str, task_status: trio.TaskStatus[Node]) -> None:
        config, environment = self.config(sid), self.environment(name)
        if name != sid:
            data = self.directory / name / config.node.data.name
            config = replace(config, node=replace(config.node, data=data))
        config.node.data.mkdir(parents=True, exist_ok=True)
        scope, path = trio.CancelScope(), config.node.data / "node.db"
        stopped = trio.Event()
        try:
            with scope:
                async with Store.open(path, environment.new_origin(sid), environment) as store:
                    is_new = await self._is_new(sid, store)
                    if not store.damage.found:
                        await store.count()
                    archive, registry = archive_of(config, environment), CollectorRegistry()
                    coordinator = Coordinator(
                        config,
                        store,
                        environment,
                        lambda peer: self.dial(name, peer.id),
                        certify=lambda _: ("the network", frozenset(self.sids)) if self.has_tls else None,
                        archive=archive,
                        metrics=ReplicationMetrics(registry),
                        is_new=is_new,
                    )
                    quotas = Quotas(store.usage, limits_by(lambda _: self.quota))
                    mail = ClusterMailStore(store, coordinator, environment, quotas)
                    report = StatusReporter(coordinator, store, environment)
                    metrics = NodeMetrics(registry, report, coordinator, store, environment)
                    node = Node(
                        sid, config, environment, store, coordinator, mail, report, metrics, registry, scope, stopped
                    )
                    if name == sid:
                        self.nodes[sid] = node
                        self.network.accepting[sid] = coordinator.connections.accept
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(coordinator.run)
                        task_status.started(node)
            check_file(path)
        except* RunsTwiceError as errors:
            self.gave_way[name] = str(leaves(errors)[0])
            self._gone(name)
        finally:
            stopped.set()

    def _gone(self, name: str) -> None:
        if name in self.nodes:
            del self.nodes[name]
            del self.network.accepting[name]
        self.network.end_connections(name)

    async def _is_new(self, sid: str, store: Store) -> bool:
        has_begun = await store.write(lambda tx: schema.claim(tx.connection, sid, "mail"))
        if not has_begun and not self.waits_when_new:
            await store.write(lambda tx: schema.begin(tx.connection))
            return False
        return not has_begun

    def environment(self, sid: str) -> Environment:
        if self._clock is None:
            return Environment()
        self._runs += 1
        return virtual_environment(
            self._clock, f"{sid} {self._runs}", self.clock_ahead_s.get(sid, 0), lambda: self.suspended_s[sid]
        )

    async def dial(self, sid: str, peer: str) -> trio.abc.Stream:
        return self.line(await self.network.connect(sid, self.renamed.get((sid, peer), peer)))


def entries_as_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nodes send each entry that is ready alone as commands, whose fields a test can change on their way."""
    monkeypatch.setattr(sender, "fits_alone", lambda _: False)


async def until(condition: Callable[[], bool], within_s: float = 120) -> None:
    with trio.fail_after(within_s):
        pause_s = 0.005
        while not condition():
            await trio.sleep(pause_s)
            pause_s = min(1.2 * pause_s, 0.1)


@asynccontextmanager
async def cluster(
    directory: Path,
    clock: MockClock | None,
    size: int = 3,
    *,
    copies: int = 2,
    when_short: WhenShort = WhenShort.PROCEED,
    uid: UidConflict = UidConflict.RENUMBER,
    shares_objects: bool = False,
    log: LogConfig | None = None,
    mastership: MastershipConfig | None = None,
    content: ContentConfig | None = None,
    has_tls: bool = True,
    start: Sequence[str] = (),
) -> AsyncIterator[Cluster]:
    """Run a cluster whose nodes are linked, in the virtual time of `clock`, or without one in real time with threads.

    `start`: the nodes to start; all if none is named.
    """
    async with trio.open_nursery() as nursery:
        made = Cluster(directory, clock, size, nursery, DurabilityConfig(min(copies, size), when_short))
        made.conflict, made.log = ConflictConfig(uid), log or LogConfig()
        made.content = content or ContentConfig()
        made.has_tls = has_tls
        made.shares_objects = shares_objects
        made.mastership = mastership or MastershipConfig()
        await made.start(*start)
        await made.linked()
        if not start:
            await until(lambda: all(node.coordinator.readiness.problem() is None for node in made.all()))
        yield made
        for sid in list(made.nodes):
            await made.stop(sid)
        nursery.cancel_scope.cancel()
