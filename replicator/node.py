"""Assembly and lifetime of one node: its store, links and doors (design section 1).

Everything runs in the nursery of `run_node`. On cancellation the doors close first and the store last, so that writes
in progress are finished.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

import trio
from prometheus_client import CollectorRegistry

from replicator.config import Address, Config, PeerAddress, WhenFull
from replicator.dsync import DovecotSyncs, dovecot_capabilities
from replicator.errors import DataError, DiskFullError, UnavailableError
from replicator.http.access import Access
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices, MailServers, NodeEnding
from replicator.imap.header_cache import HeaderCache
from replicator.imap.matching.message_reader import Parsing
from replicator.imap.rendering.outline import MESSAGE_IDS, OUTLINER
from replicator.imap.rendering.search_text import SEARCH_TEXTS
from replicator.imap.services import ImapServices
from replicator.lmtp.server import LmtpServer
from replicator.lmtp.services import LmtpServices
from replicator.lmtp.trace import host_name
from replicator.mail_doors import addresses_of, handler_of, mail_handlers
from replicator.network.certificates import Certificates
from replicator.network.streams import Handler, Tls, certified, guarded, https, listen, own_socket
from replicator.node_parts import (
    archive_of,
    attachments_of,
    certificates_of,
    configuration_of,
    destinations_of,
    directories_of,
    exposed_secrets,
    faults_of,
    keys_in_file,
    make_directory,
    neighbours_of,
    provider_keys_of,
    registry_of_process,
    tokens_of,
    tracer_of,
    user_table_of,
    users_of,
    warn_of_files,
)
from replicator.oauth import AccessTokens, ProviderKeys
from replicator.reloading import Reloading
from replicator.replication.cluster_mail_store import ClusterMailStore
from replicator.replication.coordinator import Coordinator
from replicator.replication.node_metrics import NodeMetrics
from replicator.replication.node_status import StatusReporter
from replicator.replication.stories.stories import Stories
from replicator.replication.tasks.registry import tasks_of
from replicator.replication.tasks.runner import TaskRunner
from replicator.replication.writes.quotas import Quotas
from replicator.runtime.addresses import client_address
from replicator.runtime.drain import Drain
from replicator.runtime.environment import Environment
from replicator.runtime.files.disk_room import disk_rooms
from replicator.runtime.metrics import (
    HttpMetrics,
    ImapMetrics,
    LmtpMetrics,
    LoopMetrics,
    QuotaMetrics,
    RefusalMetrics,
    ReplicationMetrics,
    SocketmapMetrics,
)
from replicator.runtime.process.loop_watch import LoopWatch
from replicator.runtime.process.service_manager import ServiceManager
from replicator.runtime.sessions import NodeSessions, Sessions
from replicator.socketmap import SocketmapServer, SocketmapServices
from replicator.store.db import schema
from replicator.store.db.transaction import Transaction
from replicator.store.repair.database_swap import check_none
from replicator.store.store import Store
from replicator.tracing.tracer import Tracer
from replicator.user_table import ClusterUsers
from replicator.users import Directory, Recipients
from replicator.workers.core.door_process import CoreServices
from replicator.workers.core.processes import Doors

log = logging.getLogger(__name__)


async def run_node(
    config: Config,
    *,
    ready: Callable[[], None],
    environment: Environment | None = None,
    new_cluster: bool = False,
    reloads: AsyncIterator[object] | None = None,
    stopping: trio.Event | None = None,
    ending: NodeEnding | None = None,
    manager: ServiceManager | None = None,
    reread: Callable[[], Config] | None = None,
) -> None:
    """Run a node until cancelled, or in order until `stopping` is set. `ready` is called once all listeners accept.

    With `new_cluster`, a node with a new database begins a new cluster and waits for no other node. At each item of
    `reloads`, the node reads its certificates again, and its configuration by `reread`. `manager` hears of that, and
    that the node is alive. `ending` is begun by operators who ask over HTTP.

    Raises ConfigError if a certificate cannot be used or the database is another node's, DataError if the data
    directory cannot be used, and OSError if an address cannot be listened on.
    """
    environment, manager = environment or Environment(), manager or ServiceManager()
    make_directory(config.node.data)
    origin = environment.new_origin(config.node.id)
    check_none(config.node.database)
    async with Store.open(config.node.database, origin, environment, attachments_of(config), config.limits) as store:
        certificates, archive = certificates_of(config), archive_of(config, environment)
        warn_of_files(config, certificates)
        has_begun = await _claim(store, config, new_cluster=new_cluster)
        registry = registry_of_process()
        keys = provider_keys_of(config, certificates, environment, registry)
        tls = Tls(certificates)
        refusals, drain = RefusalMetrics(registry), Drain(environment.clock_ms)
        coordinator = Coordinator(
            config,
            store,
            environment,
            tls.dial,
            certified,
            archive=archive,
            capabilities=dovecot_capabilities(config.dovecots),
            metrics=ReplicationMetrics(registry),
            refusals=refusals,
            is_new=not has_begun,
        )
        users, recipients = await users_of(config, certificates, environment, registry)
        quotas = Quotas(
            store.usage,
            users.quota_limits,
            defer=config.quota.when_full is WhenFull.DEFER,
            metrics=QuotaMetrics(registry),
        )
        mail = ClusterMailStore(store, coordinator, environment, quotas)
        user_table = user_table_of(config, mail, store, environment)
        tokens = AccessTokens(config.oauth, keys, environment.clock_ms) if config.oauth and keys else None
        dovecots = DovecotSyncs(
            config, mail, users, environment, registry, neighbours=partial(neighbours_of, coordinator.connections)
        )
        doors = Doors(config, CoreServices(mail, store, users, tokens, refusals), registry)
        reloading = Reloading(
            certificates,
            environment,
            keys_in_file(keys, config),
            elsewhere=doors.reload,
            manager=manager,
            configuration=configuration_of(config, reread, users, quotas, coordinator),
            exposed=partial(exposed_secrets, config),
            faults=partial(faults_of, config, certificates),
        )
        report = StatusReporter(
            coordinator,
            store,
            environment,
            problems=lambda: [
                *users.unreadable(),
                *recipients.unreadable(),
                *doors.problems(),
                *drain.problems(),
            ],
            certificates=reloading.shown,
            disks=partial(disk_rooms, directories_of(config)),
            restart_for=reloading.restart_for,
            dovecots=dovecots.problems,
        )
        tasks = tasks_of(store, coordinator, environment)
        metrics = NodeMetrics(registry, report, coordinator, store, environment, users=users.summary, tasks=tasks.state)
        handlers = _doors(
            config,
            certificates,
            coordinator,
            environment=environment,
            mail=mail,
            users=users,
            recipients=recipients,
            tokens=tokens,
            report=report,
            tasks=tasks,
            stories=Stories(store, coordinator, environment, MESSAGE_IDS),
            tracer=tracer_of(store, coordinator.connections, environment),
            registry=registry,
            shown=doors.metrics,
            refusals=refusals,
            reloading=reloading,
            user_table=user_table,
            processes=doors,
            drain=drain,
            ending=ending,
            dovecots=dovecots,
        )
        async with own_socket(config.node.own_socket) as own, trio.open_nursery() as nursery:
            listeners = [(await listen(address) if address else own, handler) for address, handler in handlers]
            if stopping is not None:
                nursery.start_soon(_stop_when_asked, stopping, coordinator, nursery.cancel_scope)
            nursery.start_soon(LoopWatch(LoopMetrics(registry)).run)
            nursery.start_soon(manager.beat, store.flush)
            nursery.start_soon(coordinator.run)
            await nursery.start(metrics.run, config.mastership.heartbeat_s)
            nursery.start_soon(report.run)
            for run in _runs(users, keys, user_table, dovecots):
                nursery.start_soon(run)
            nursery.start_soon(tasks.run)
            nursery.start_soon(coordinator.bodies.sweep)
            nursery.start_soon(coordinator.bodies.outline, OUTLINER)
            nursery.start_soon(coordinator.bodies.keep_search_texts, SEARCH_TEXTS if config.search.full_text else None)
            if reloads is not None:
                nursery.start_soon(reloading.reload_at_each, reloads)
            await nursery.start(doors.run)
            for sockets, handler in listeners:
                if sockets:
                    await nursery.start(trio.serve_listeners, guarded(handler), sockets)
            _tell_start(config, origin)
            ready()


def _tell_start(config: Config, origin: str) -> None:
    log.info("node %s runs as %s", config.node.id, origin)
    shared = " (shared with other nodes)" if config.checkpoint.shared else ""
    log.info("checkpoints go to %s%s", config.checkpoint.url, shared)
    if config.plain_links:
        log.warning('links are not encrypted, and any node that can connect is believed: [tls] mode is "none"')


def _runs(
    users: Directory, keys: ProviderKeys | None, user_table: ClusterUsers | None, dovecots: DovecotSyncs
) -> list[Callable[[], Awaitable[None]]]:
    """Return the tasks of users, and of those parts that are configured."""
    configured = [keys.run] if keys else []
    return [users.run, *configured, *([user_table.run] if user_table else []), *dovecots.runs()]


async def _stop_when_asked(asked: trio.Event, coordinator: Coordinator, scope: trio.CancelScope) -> None:
    await asked.wait()
    await coordinator.leave()
    scope.cancel()


async def _claim(store: Store, config: Config, *, new_cluster: bool) -> bool:
    """Claim the database for this node. Return True if it belongs to a cluster already or begins one now.

    Raises ConfigError, DataError.
    """

    def claim(tx: Transaction) -> bool:
        if schema.claim(tx.connection, config.node.id, config.node.cluster):
            return True
        begins = new_cluster or not config.peers
        if begins:
            schema.begin(tx.connection)
        return begins

    try:
        return await store.write(claim)
    except (DiskFullError, UnavailableError) as error:
        raise DataError(f"{store.path}: {error}; make room, or check the disk, and start the node again") from error


def _doors(
    config: Config,
    certificates: Certificates,
    coordinator: Coordinator,
    *,
    environment: Environment,
    mail: ClusterMailStore,
    users: Directory,
    recipients: Recipients,
    tokens: AccessTokens | None,
    report: StatusReporter,
    tasks: TaskRunner,
    stories: Stories,
    tracer: Tracer,
    registry: CollectorRegistry,
    shown: CollectorRegistry,
    refusals: RefusalMetrics,
    reloading: Reloading,
    user_table: ClusterUsers | None,
    processes: Doors,
    drain: Drain,
    ending: NodeEnding | None,
    dovecots: DovecotSyncs,
) -> Iterator[tuple[PeerAddress | None, Handler]]:
    """Yield each address to listen on with its connection handler. None: the node's own socket.

    Doors in processes of their own are not among them: `processes` has those. `shown`: the metrics that HTTP shows.
    """
    doors, sid, tls = config.listen, config.node.id, Tls(certificates)
    sessions = Sessions(clock_ms=environment.clock_ms)
    imap = ImapServices(
        mail=mail,
        users=users,
        sid=sid,
        tls=certificates.for_imap,
        tokens=tokens,
        parsing=Parsing(max_fields=config.limits.imap_header_fields),
        metrics=ImapMetrics(registry),
        limits=config.limits,
        refusals=refusals,
        headers=HeaderCache(config.limits.imap_header_cache_bytes, registry),
        clock_ms=environment.clock_ms,
        sessions=sessions,
    )
    host, lmtp_metrics = host_name(sid, config.node.cluster), LmtpMetrics(registry)
    lmtp = LmtpServer(
        LmtpServices(
            mail=mail,
            recipients=recipients,
            node_name=host,
            tls=certificates.for_clients,
            metrics=lmtp_metrics,
            limits=config.limits,
            refusals=refusals,
            sessions=sessions,
        )
    )
    http_metrics = HttpMetrics(registry)
    http = HttpServices(
        sid=sid,
        mail=mail,
        status=report,
        masters=coordinator.handover,
        checkpoints=coordinator.log_truncation,
        tasks=tasks,
        stories=stories,
        message_ids=MESSAGE_IDS,
        sessions=NodeSessions(sessions, processes.sessions),
        drain=drain,
        ending=ending,
        peers=coordinator.connections.peers.keys(),
        users=users,
        oversight=users,
        tracer=tracer,
        registry=shown,
        metrics=http_metrics,
        run_in_thread=environment.run_in_thread,
        limits=config.limits,
        refusals=refusals,
        search_texts=coordinator.bodies.search_texts if config.search.full_text else None,
        reload=reloading.reload,
        destinations=destinations_of(config),
        servers=MailServers(users, config.clusters) if config.clusters else None,
        user_table=user_table,
        keep_expunged_s=config.content.keep_expunged_s,
    )
    yield None, HttpServer(http, Access(by_own_socket=True)).serve
    if doors.peer:
        yield doors.peer, lambda stream: coordinator.connections.accept(tls.accept(stream), client_address(stream))
    if not config.workers.doors:
        socketmap = SocketmapServer(
            SocketmapServices(
                recipients=recipients,
                metrics=SocketmapMetrics(registry),
                limits=config.limits,
                refusals=refusals,
                sessions=sessions,
                clock_ms=environment.clock_ms,
            )
        )
        served = mail_handlers(imap, lmtp, socketmap)
        for protocol, address in addresses_of(config).items():
            yield address, handler_of(protocol, served, config.proxy)
    dsync = dovecots.door(sessions, refusals)
    if doors.doveadm and dsync:
        yield doors.doveadm, _tls_off_loopback(doors.doveadm, dsync, certificates)
    if doors.http:
        server = HttpServer(http, Access(tokens_of(config)))
        yield doors.http, _tls_off_loopback(doors.http, server.serve, certificates)


def _tls_off_loopback(
    address: Address, serve: Callable[[trio.abc.Stream], Awaitable[None]], certificates: Certificates
) -> Handler:
    """Return the handler for connections at this address: with TLS if they may come from other machines."""

    async def serve_tls(stream: trio.SocketStream) -> None:
        context = certificates.for_clients()  # as of now: the files may have been read again
        assert context is not None, "the configuration asks for a certificate here"
        await serve(https(stream, context))

    return serve if address.is_loopback else serve_tls
