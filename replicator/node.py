"""Assembly and lifetime of one node: its store, links and doors (design section 1).

Everything runs in the nursery of `run_node`. On cancellation the doors close first and the store last, so that writes
in progress are finished.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import trio
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from replicator.config import Address, Config, PeerAddress, QuotaConfig, UserSource, WhenFull
from replicator.errors import DataError, DiskFullError, UnavailableError
from replicator.http.access import Access
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices, MailServers
from replicator.http.tasks.destinations import Destinations
from replicator.http.tokens import Tokens
from replicator.imap.header_cache import HeaderCache
from replicator.imap.matching.message_reader import Parsing
from replicator.imap.rendering.outline import MESSAGE_IDS, OUTLINER
from replicator.imap.rendering.search_text import SEARCH_TEXTS
from replicator.imap.services import ImapServices
from replicator.lmtp.server import LmtpServer
from replicator.lmtp.services import LmtpServices
from replicator.lmtp.trace import host_name
from replicator.mail_doors import addresses_of, mail_handlers, site_of
from replicator.network.certificates import Certificates
from replicator.network.proxy_header import behind_proxies
from replicator.network.rehearsal import certificate_faults
from replicator.network.streams import Handler, Tls, certified, guarded, https, listen, own_socket
from replicator.oauth import AccessTokens, ProviderKeys, key_source
from replicator.reloading import Configuration, Reloading
from replicator.replication.cluster_mail_store import ClusterMailStore
from replicator.replication.coordinator import Coordinator
from replicator.replication.node_metrics import NodeMetrics
from replicator.replication.node_status import StatusReporter
from replicator.replication.stories.stories import Stories
from replicator.replication.tasks.registry import tasks_of
from replicator.replication.tasks.runner import TaskRunner
from replicator.replication.writes.quotas import Quotas
from replicator.runtime.addresses import client_address
from replicator.runtime.environment import Environment
from replicator.runtime.files.disk_room import disk_rooms
from replicator.runtime.files.file_modes import PRIVATE_DIRECTORY, exposed_directory, exposed_file, umask_for
from replicator.runtime.metrics import (
    HttpMetrics,
    ImapMetrics,
    LmtpMetrics,
    LoopMetrics,
    OauthMetrics,
    QuotaMetrics,
    RefusalMetrics,
    ReplicationMetrics,
)
from replicator.runtime.objects import ObjectStore
from replicator.runtime.process.loop_watch import LoopWatch
from replicator.runtime.process.service_manager import ServiceManager
from replicator.runtime.sessions import NodeSessions, Sessions
from replicator.store.attachments.disk import DiskFiles
from replicator.store.attachments.files import Files
from replicator.store.checkpoints.archive import Archive
from replicator.store.checkpoints.checkpoint import Home
from replicator.store.db import schema
from replicator.store.db.transaction import Transaction
from replicator.store.repair.database_swap import check_none
from replicator.store.store import Store
from replicator.user_table import ClusterUsers
from replicator.users import QuotaLimits, UserDirectory
from replicator.workers.core.door_process import CoreServices
from replicator.workers.core.processes import Doors

log = logging.getLogger(__name__)

INVENTORIES = "inventories"


async def run_node(
    config: Config,
    *,
    ready: Callable[[], None],
    environment: Environment | None = None,
    new_cluster: bool = False,
    reloads: AsyncIterator[object] | None = None,
    stopping: trio.Event | None = None,
    manager: ServiceManager | None = None,
    reread: Callable[[], Config] | None = None,
) -> None:
    """Run a node until cancelled, or in order until `stopping` is set. `ready` is called once all listeners accept.

    With `new_cluster`, a node with a new database begins a new cluster and waits for no other node. At each item of
    `reloads`, the node reads its certificates again, and its configuration by `reread`. `manager` hears of that, and
    that the node is alive.

    Raises ConfigError if a certificate cannot be used or the database is another node's, DataError if the data
    directory cannot be used, and OSError if an address cannot be listened on.
    """
    environment, manager = environment or Environment(), manager or ServiceManager()
    make_directory(config.node.data)
    origin = environment.new_origin(config.node.id)
    check_none(config.node.database)
    async with Store.open(config.node.database, origin, environment, attachments_of(config), config.limits) as store:
        certificates, archive = _certificates_of(config), archive_of(config, environment)
        _warn_of_files(config, certificates)
        has_begun = await _claim(store, config, new_cluster=new_cluster)
        registry = _registry()
        keys = _provider_keys_of(config, certificates, environment, registry)
        tls = Tls(certificates)
        refusals = RefusalMetrics(registry)
        coordinator = Coordinator(
            config,
            store,
            environment,
            tls.dial,
            certified,
            archive=archive,
            metrics=ReplicationMetrics(registry),
            refusals=refusals,
            is_new=not has_begun,
        )
        users = await _users_of(config, environment)
        quotas = Quotas(
            store.usage,
            users.quota_limits,
            defer=config.quota.when_full is WhenFull.DEFER,
            metrics=QuotaMetrics(registry),
        )
        mail = ClusterMailStore(store, coordinator, environment, quotas)
        user_table = _user_table(config, mail, store, environment)
        tokens = AccessTokens(config.oauth, keys, environment.clock_ms) if config.oauth and keys else None
        doors = Doors(config, CoreServices(mail, store, users, tokens, refusals), registry)
        reloading = Reloading(
            certificates,
            environment,
            _file_of(keys, config),
            elsewhere=doors.reload,
            manager=manager,
            configuration=_configuration(config, reread, users, quotas),
            faults=partial(_faults_of, config, certificates),
        )
        report = StatusReporter(
            coordinator,
            store,
            environment,
            problems=lambda: [*users.unreadable(), *doors.problems()],
            certificates=reloading.shown,
            disks=partial(disk_rooms, _written(config)),
            restart_for=reloading.restart_for,
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
            tokens=tokens,
            report=report,
            tasks=tasks,
            stories=Stories(store, coordinator, environment, MESSAGE_IDS),
            registry=registry,
            shown=doors.metrics,
            refusals=refusals,
            reloading=reloading,
            user_table=user_table,
            processes=doors,
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
            for run in _runs(users, keys, user_table):
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
            log.info("node %s runs as %s", config.node.id, origin)
            shared = " (shared with other nodes)" if config.checkpoint.shared else ""
            log.info("checkpoints go to %s%s", config.checkpoint.url, shared)
            if config.plain_links:
                log.warning('links are not encrypted, and any node that can connect is believed: [tls] mode is "none"')
            ready()


def _runs(
    users: UserDirectory, keys: ProviderKeys | None, user_table: ClusterUsers | None
) -> list[Callable[[], Awaitable[None]]]:
    """Return the tasks of users, and of those parts that are configured."""
    return [users.run, *([keys.run] if keys else []), *([user_table.run] if user_table else [])]


def _registry() -> CollectorRegistry:
    """Return a registry with the usual metrics of the process and of Python."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


async def _users_of(config: Config, environment: Environment) -> UserDirectory:
    quota = QuotaLimits(config.quota.storage_bytes, config.quota.messages)
    file, site = config.users.passwd_file, site_of(config)
    is_from_cluster = config.users.source is UserSource.CLUSTER
    users = UserDirectory(file, quota=quota, clock_ms=environment.clock_ms, site=site, is_from_cluster=is_from_cluster)
    await users.load()  # warn of a missing file now, not when the first mail arrives
    return users


def _configuration(
    config: Config, reread: Callable[[], Config] | None, users: UserDirectory, quotas: Quotas
) -> Configuration | None:
    """Return what reads the configuration's file again, if there is a file."""
    if reread is None:
        return None

    def install(quota: QuotaConfig) -> None:
        users.set_quota(QuotaLimits(quota.storage_bytes, quota.messages))
        quotas.defer = quota.when_full is WhenFull.DEFER

    return Configuration(config, reread, install)


def _user_table(config: Config, mail: ClusterMailStore, store: Store, environment: Environment) -> ClusterUsers | None:
    """Return the cluster's users, if users come from there. They are in the file once `run` has begun."""
    if config.users.source is not UserSource.CLUSTER:
        return None
    table = ClusterUsers(mail, config.users.passwd_file, environment.run_in_thread)
    store.listeners.append(table.note)
    return table


def _certificates_of(config: Config) -> Certificates:
    return Certificates(config.tls, config.certificates, of_clients=config.client_certificates, oauth=config.oauth)


def _provider_keys_of(
    config: Config, certificates: Certificates, environment: Environment, registry: CollectorRegistry
) -> ProviderKeys | None:
    """Return the keys of the identity provider, if one is configured. They are read once `run` has begun."""
    if config.oauth is None:
        return None
    read = key_source(config.oauth, environment, certificates.for_provider)
    return ProviderKeys(read, refresh_s=config.oauth.refresh_s, metrics=OauthMetrics(registry))


def _file_of(keys: ProviderKeys | None, config: Config) -> ProviderKeys | None:
    """Return the keys if they come from a file. Those at a URL do not keep certificates from being reloaded."""
    return keys if config.oauth is not None and isinstance(config.oauth.jwks, Path) else None


async def _stop_when_asked(asked: trio.Event, coordinator: Coordinator, scope: trio.CancelScope) -> None:
    await asked.wait()
    await coordinator.connections.say_farewell()
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


def attachments_of(config: Config) -> Files | None:
    """Return the attachment store's directory, or None if it lies in the node's own data. Raises DataError."""
    directory = config.content.attachments
    if directory is None:
        return None
    make_directory(directory, "content.attachments")
    return DiskFiles(directory)


def _written(config: Config) -> list[Path]:
    """Return the directories that the node writes to."""
    return [config.node.data, *filter(None, (config.content.attachments, config.checkpoint.directory))]


def umask_of(config: Config) -> int:
    """Return the umask of a process that writes the node's files; see `file_modes`."""
    return umask_for(filter(None, (config.content.attachments, config.checkpoint.directory)))


def _warn_of_files(config: Config, certificates: Certificates) -> None:
    """Log which files and directories others on this machine can read, and the faults of certificates.

    A node does not change the operator's own files.
    """
    warnings = [exposed_directory(config.node.data), exposed_file(config.users.passwd_file)]
    shareable = filter(None, (config.content.attachments, config.checkpoint.directory))
    warnings += [exposed_directory(directory, may_be_shared=True) for directory in shareable]
    for warning in filter(None, (*warnings, *certificates.exposed(), *_faults_of(config, certificates))):
        log.warning("%s", warning)


def _faults_of(config: Config, certificates: Certificates) -> Iterator[str]:
    return certificate_faults(config.node.id, config.tls, certificates)


def archive_of(config: Config, environment: Environment) -> Archive:
    """Return the archive for the node's checkpoints.

    The object store is not contacted here: a node runs without it, and keeps its whole log.
    """
    where = config.checkpoint
    return Archive(ObjectStore(where.url, environment, where.endpoint), Home(config.node.cluster, config.node.id))


def _doors(
    config: Config,
    certificates: Certificates,
    coordinator: Coordinator,
    *,
    environment: Environment,
    mail: ClusterMailStore,
    users: UserDirectory,
    tokens: AccessTokens | None,
    report: StatusReporter,
    tasks: TaskRunner,
    stories: Stories,
    registry: CollectorRegistry,
    shown: CollectorRegistry,
    refusals: RefusalMetrics,
    reloading: Reloading,
    user_table: ClusterUsers | None,
    processes: Doors,
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
            users=users,
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
        sessions=NodeSessions(sessions, processes.sessions),
        users=users,
        oversight=users,
        registry=shown,
        metrics=http_metrics,
        run_in_thread=environment.run_in_thread,
        limits=config.limits,
        refusals=refusals,
        search_texts=coordinator.bodies.search_texts if config.search.full_text else None,
        reload=reloading.reload,
        destinations=_destinations_of(config),
        servers=MailServers(users, config.clusters) if config.clusters else None,
        user_table=user_table,
        keep_expunged_s=config.content.keep_expunged_s,
    )
    yield None, HttpServer(http, Access(by_own_socket=True)).serve
    if doors.peer:
        yield doors.peer, lambda stream: coordinator.connections.accept(tls.accept(stream), client_address(stream))
    if not config.workers.doors:
        served = mail_handlers(imap, lmtp)
        for protocol, address in addresses_of(config).items():
            yield address, behind_proxies(served[protocol], config.proxy)
    if doors.http:
        yield doors.http, _http_door(doors.http, HttpServer(http, Access(_tokens_of(config))), certificates)


def _http_door(address: Address, server: HttpServer, certificates: Certificates) -> Handler:
    """Return the handler for connections at this address: with TLS if they may come from other machines."""

    async def serve_tls(stream: trio.SocketStream) -> None:
        context = certificates.for_clients()  # as of now: the files may have been read again
        assert context is not None, "the configuration asks for a certificate here"
        await server.serve(https(stream, context))

    return server.serve if address.is_loopback else serve_tls


def _destinations_of(config: Config) -> Destinations:
    """Return where the holder of a token may have inventories written."""
    checkpoint, places = config.checkpoint, config.http.directories
    if places is None:
        # Without `..`, which may be in a configuration, but not in what is compared with it.
        data, directory = (path and os.path.normpath(path) for path in (config.node.data, checkpoint.directory))
        places = tuple(f"{above}/{INVENTORIES}" for above in (data, directory or checkpoint.url.rstrip("/")))
    return Destinations(places, checkpoint.endpoint)


def _tokens_of(config: Config) -> Tokens | None:
    """Return the tokens of the HTTP listener, or None if it asks for none."""
    if config.http.tokens is None:
        log.warning(
            "everybody on this machine can operate this node at http://%s, because it asks for no token; to close it,"
            " set `tokens` in [http], or leave `http` out of [listen]",
            config.listen.http,
        )
        return None
    tokens = Tokens(config.http.tokens)
    tokens.refresh()  # warn of a missing file now
    return tokens


def make_directory(path: Path, key: str = "node.data") -> None:
    """Create the directory for its owner alone. Raises DataError that names the configuration key."""
    try:
        path.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; check `{key}`") from error
