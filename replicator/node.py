"""One node: the store, the links, the doors, put together (design section 1).

Everything that runs has its place in the nursery of `run_node`. Cancelled, the doors close first and the store
last, so that what was being written is finished.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import trio
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from replicator.config import Address, Config, PeerConfig, TlsConfig
from replicator.environment import Environment
from replicator.errors import ConfigError, DataError
from replicator.http.server import HttpServer
from replicator.http.services import HttpServices
from replicator.imap.server import serve_imap
from replicator.imap.services import ImapServices
from replicator.lmtp.server import LmtpServer
from replicator.lmtp.services import LmtpServices
from replicator.lmtp.trace import host_name
from replicator.metrics import HttpMetrics, ImapMetrics, LmtpMetrics
from replicator.replication.coordinator import Coordinator
from replicator.replication.jobs import tasks_of
from replicator.replication.report import Report
from replicator.replication.service import ClusterMail
from replicator.replication.tasks import Tasks
from replicator.store import schema
from replicator.store.store import Store
from replicator.users import UserDirectory

log = logging.getLogger(__name__)

Handler = Callable[[trio.SocketStream], Awaitable[None]]

DATABASE = "node.db"


async def run_node(config: Config, *, ready: Callable[[], None], environment: Environment | None = None) -> None:
    """Run a node until cancelled. `ready` is called once all listeners accept.

    Raises ConfigError if a certificate cannot be used or the database is another node's, DataError if the data
    directory cannot be used, OSError if an address cannot.
    """
    environment = environment or Environment()
    _make_directory(config.node.data)
    origin = environment.new_origin(config.node.id)
    async with Store.open(config.node.data / DATABASE, origin, environment) as store:
        await store.write(lambda tx: schema.claim(tx.connection, config.node.id, config.node.cluster))
        tls = _Tls(config.tls)
        coordinator = Coordinator(config, store, environment, tls.dial, certified_names)
        mail = ClusterMail(store, coordinator, environment)
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        users = UserDirectory(config.users.passwd_file)
        users.refresh()  # a file that is not there is warned of now, not when the first mail comes
        report = Report(coordinator, store, environment, registry, problems=users.unreadable)
        tasks = tasks_of(store, coordinator, environment)
        handlers = _doors(
            config, tls, coordinator, mail=mail, users=users, report=report, tasks=tasks, registry=registry
        )
        async with trio.open_nursery() as nursery:
            listeners = [(await _listen(address), handler) for address, handler in handlers]
            nursery.start_soon(coordinator.run)
            nursery.start_soon(report.run, config.mastership.heartbeat_s)
            nursery.start_soon(tasks.run)
            for sockets, handler in listeners:
                await nursery.start(trio.serve_listeners, _guarded(handler), sockets)
            log.info("node %s runs as %s", config.node.id, origin)
            ready()


def _doors(
    config: Config,
    tls: _Tls,
    coordinator: Coordinator,
    *,
    mail: ClusterMail,
    users: UserDirectory,
    report: Report,
    tasks: Tasks,
    registry: CollectorRegistry,
) -> Iterator[tuple[Address, Handler]]:
    """What listens where."""
    listen, sid = config.listen, config.node.id
    imap = ImapServices(mail=mail, users=users, sid=sid, tls=tls.for_clients, metrics=ImapMetrics(registry))
    host, lmtp_metrics = host_name(sid, config.node.cluster), LmtpMetrics(registry)
    lmtp = LmtpServer(LmtpServices(mail=mail, users=users, node_name=host, metrics=lmtp_metrics))
    http_metrics = HttpMetrics(registry)
    http = HttpServer(
        HttpServices(
            sid=sid,
            mail=mail,
            status=report,
            masters=coordinator.mover,
            tasks=tasks,
            users=users,
            registry=registry,
            metrics=http_metrics,
        )
    )
    if listen.peer:
        yield listen.peer, lambda stream: coordinator.connections.accept(tls.accept(stream))
    if listen.imap:
        yield listen.imap, lambda stream: serve_imap(stream, imap, address=stream.socket.getpeername()[0])
    if listen.lmtp:
        yield listen.lmtp, lmtp.serve
    if listen.http:
        yield listen.http, http.serve


async def _listen(address: Address) -> list[trio.SocketListener]:
    """Raises OSError that names the address."""
    try:
        return await trio.open_tcp_listeners(address.port, host=address.host)
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error.strerror}; another program may use it") from error


def _guarded(handler: Handler) -> Handler:
    """The one edge where a defect in one connection is kept from the others."""

    async def guarded(stream: trio.SocketStream) -> None:
        try:
            await handler(stream)
        except Exception:
            log.exception("a connection ended because of a defect in this program")

    return guarded


def _make_directory(path: Path) -> None:
    """Raises DataError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; check `node.data`") from error


class _Tls:
    """Contexts for links and clients; without configuration, plain streams (then all listeners are on loopback)."""

    def __init__(self, config: TlsConfig | None) -> None:
        self.for_clients = _context(config, ssl.PROTOCOL_TLS_SERVER) if config else None
        self._accepting = _context(config, ssl.PROTOCOL_TLS_SERVER, peers=True) if config and config.ca else None
        self._dialling = _context(config, ssl.PROTOCOL_TLS_CLIENT, peers=True) if config and config.ca else None

    async def dial(self, peer: PeerConfig) -> trio.abc.Stream:
        """Connect to a peer. Raises OSError that says why not."""
        try:
            stream = await trio.open_tcp_stream(peer.address.host, peer.address.port)
        except OSError as error:
            raise OSError(_reason(error)) from error
        return trio.SSLStream(stream, self._dialling) if self._dialling else stream

    def accept(self, stream: trio.SocketStream) -> trio.abc.Stream:
        """A peer's connection."""
        return trio.SSLStream(stream, self._accepting, server_side=True) if self._accepting else stream


def certified_names(stream: trio.abc.Stream) -> frozenset[str] | None:
    """The names in the peer's certificate, once the handshake is done; None: the stream has no TLS."""
    if not isinstance(stream, trio.SSLStream):
        return None
    certificate = stream.getpeercert() or {}
    names = {name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"}
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    return frozenset(names | {value for kind, value in subject if kind == "commonName"})


def _reason(error: OSError) -> str:
    """Trio says that all attempts failed, one for each address of a name, and keeps the reasons as the cause."""
    cause = error.__cause__
    attempts = cause.exceptions if isinstance(cause, BaseExceptionGroup) else (cause or error,)
    return "; ".join(dict.fromkeys(map(_plain, attempts)))


def _plain(error: BaseException) -> str:
    """The system's own word for it; a name that cannot be looked up has a negative number, and its text in place."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)


def _context(config: TlsConfig, kind: int, *, peers: bool = False) -> ssl.SSLContext:
    """A context with this node's certificate; `peers`: the other side must have one that our CA signed."""
    context = ssl.SSLContext(kind)
    try:
        context.load_cert_chain(config.certificate, config.key)
        if peers:
            context.check_hostname = False  # a certificate names a node, not a host: see `certified_names`
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(config.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"[tls]: {config.certificate}, {config.key} or {config.ca} cannot be used: {error}"
        ) from error
    return context
