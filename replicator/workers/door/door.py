"""The process of a door: it accepts connections, and asks the core for whatever it does not know itself.

It lives as long as its connection to the core, which is its standard input. So it ends with the core, however that
ends, and heeds no signal: those of a terminal or of a service manager reach all processes of a node.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import trio
from prometheus_client import CollectorRegistry

from replicator.config import Config, UserSource, user_server
from replicator.errors import ConfigError, DatabaseFailedError, DataError
from replicator.imap.header_cache import HeaderCache
from replicator.imap.matching.message_reader import Parsing
from replicator.imap.rendering.search_text import SEARCH_TEXTS
from replicator.imap.services import ImapServices
from replicator.lmtp import LmtpServer, LmtpServices
from replicator.lmtp.trace import host_name
from replicator.mail_doors import MailHandlers, handler_of, mail_handlers, site_of
from replicator.network.certificates import Certificates
from replicator.network.streams import Handler, guarded
from replicator.runtime.environment import run_in_thread, wall_clock_ms
from replicator.runtime.logs.lines import log_to_stderr
from replicator.runtime.metrics import ImapMetrics, LmtpMetrics, LoopMetrics, RefusalMetrics, SocketmapMetrics
from replicator.runtime.process.garbage import set_garbage_aside
from replicator.runtime.process.loop_watch import LoopWatch
from replicator.runtime.process.malloc_arenas import share_arenas
from replicator.runtime.sessions import Sessions
from replicator.socketmap import SocketmapServer, SocketmapServices
from replicator.store.db.damage import Damage, DatabaseDamagedError
from replicator.store.db.readers import Readers
from replicator.store.db.schema import open_reader
from replicator.store.search_texts.form import FILE
from replicator.store.search_texts.reader import SearchTextReader
from replicator.user_sources import users_of_server
from replicator.users import Directory, Recipients, UserDirectory
from replicator.workers.both_ends.metrics import tell_metrics
from replicator.workers.both_ends.places import RemotePlaces
from replicator.workers.both_ends.sessions import answer_for_sessions
from replicator.workers.both_ends.users import RemoteTokens, RemoteUsers
from replicator.workers.channel import Channel
from replicator.workers.door.mail import RemoteMail
from replicator.workers.door.search_texts import DoorSearchTexts
from replicator.workers.interface import interface_digest
from replicator.workers.order import Order

log = logging.getLogger(__name__)

READERS = 2  # connections to the database, and so threads, that read at once

CORE = 0  # file descriptor of the connection to the core


class ToldDamage(Damage):
    """Damage that this process has found, of which the core hears, too: the node is unhealthy."""

    def __init__(self, path: Path, clock_ms: Callable[[], int], channel: Channel) -> None:
        super().__init__(path, clock_ms)
        self._channel = channel

    def note(self, error: Exception) -> DatabaseDamagedError:
        """See `Damage`. Belongs to the event loop here."""
        if self.found is None:
            self._channel.tell("damaged", str(error))
        return super().note(error)


class Door:
    """The door of this process. `nursery` has all that it does."""

    def __init__(self, stream: trio.abc.Stream, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._opened = ExitStack()
        self._channel = Channel(stream)
        self._channel.calls["begin"] = self._begin
        self._channel.quick_calls["ping"] = lambda: None

    async def run(self) -> None:
        """Do what the core orders until it ends the connection."""
        with self._opened:
            await self._channel.run()
            self._nursery.cancel_scope.cancel()

    async def _begin(self, interface: str, packed: bytes) -> str | None:
        """Open the door. Return why that is not possible. `interface`: the core's; see `interface_digest`."""
        if interface != interface_digest():
            return "the program on the disk is another one than the node runs; restart the node"
        order = Order.unpacked(packed)
        config, channel = order.config, self._channel
        log_to_stderr(order.log, f"door {order.number}")
        registry = CollectorRegistry()
        try:
            certificates = Certificates(
                config.tls,
                config.certificates,
                of_clients=config.client_certificates,
                user_server=user_server(config),
            )
            readers = self._readers(config)
        except (ConfigError, DataError, DatabaseFailedError) as error:
            return str(error)
        search_texts = DoorSearchTexts(channel, _search_text_reader(config), run_in_thread)
        self._nursery.start_soon(search_texts.run)
        mail = RemoteMail(channel, readers, search_texts, config.content.inline_max_bytes)
        self._nursery.start_soon(mail.run)
        try:
            users = _users_of(order, certificates, registry)
        except ConfigError as error:
            return str(error)
        await users.load()
        self._nursery.start_soon(users.run)
        handlers = _handlers(order, channel, mail, users, certificates=certificates, registry=registry)
        self._nursery.start_soon(tell_metrics, registry, channel)
        set_garbage_aside()
        served = [
            (guarded(handler_of(protocol, handlers, config.proxy)), [*map(_listener, numbers)])
            for protocol, numbers in order.sockets.items()
        ]
        await self._nursery.start(self._serve, served, certificates)
        self._nursery.start_soon(LoopWatch(LoopMetrics(registry)).run)
        return None

    async def _serve(
        self,
        served: Sequence[tuple[Handler, Sequence[trio.SocketListener]]],
        certificates: Certificates,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve connections; started once they are accepted. End the process when it has retired and has none left."""
        async with trio.open_nursery() as connections, trio.open_nursery() as accepting:

            def retire() -> None:
                accepting.cancel_scope.cancel()
                connections.start_soon(_read_again, certificates)

            self._channel.quick_calls["retire"] = retire
            for handler, listeners in served:
                serve = partial(trio.serve_listeners, handler_nursery=connections)
                await accepting.start(serve, handler, listeners)
            task_status.started()
        self._nursery.cancel_scope.cancel()

    def _readers(self, config: Config) -> Readers:
        """Open the database for reading, until the process ends."""
        path = config.node.database
        damage = ToldDamage(path, wall_clock_ms, self._channel)
        with damage.noticed():
            connections = [self._opened.enter_context(closing(open_reader(path))) for _ in range(READERS)]
        return Readers(connections, run_in_thread, damage)


async def _read_again(certificates: Certificates) -> None:
    """Read the files of certificates as they are now: sessions that go on still ask the server that knows the users."""
    try:
        certificates.install(await run_in_thread(certificates.read))
    except ConfigError as error:
        log.warning("a process that retires keeps the certificates that it has: %s", error)


def _search_text_reader(config: Config) -> SearchTextReader:
    return SearchTextReader(config.node.database.with_name(FILE), SEARCH_TEXTS.version)


def _users_of(order: Order, certificates: Certificates, registry: CollectorRegistry) -> Directory:
    """Return the users. Raises ConfigError."""
    users, key = order.config.users, order.users_key
    masters, separator = users.master_passwd_file, users.master_separator
    server = user_server(order.config)
    if server is not None:
        context = certificates.for_user_server
        return users_of_server(
            server, wall_clock_ms, registry, context=context, key=key, masters=masters, separator=separator
        )
    return UserDirectory(
        users.passwd_file,
        key=key,
        site=site_of(order.config),
        is_from_cluster=users.source is UserSource.CLUSTER,
        masters=masters,
        separator=separator,
    )


def _handlers(
    order: Order,
    channel: Channel,
    mail: RemoteMail,
    users: Directory,
    *,
    certificates: Certificates,
    registry: CollectorRegistry,
) -> MailHandlers:
    """Return the function that serves a connection, by protocol."""
    config, refusals = order.config, RefusalMetrics(registry)
    sessions = Sessions(f"door {order.number}")
    answer_for_sessions(channel, sessions)
    recipients = Recipients(users, config.lmtp.aliases)
    socketmap = SocketmapServer(
        SocketmapServices(
            recipients=recipients,
            metrics=SocketmapMetrics(registry),
            limits=config.limits,
            refusals=refusals,
            doorkeeper=RemotePlaces(channel, "socketmap"),
            sessions=sessions,
        )
    )
    lmtp = LmtpServer(
        LmtpServices(
            mail=mail,
            recipients=recipients,
            node_name=host_name(config.node.id, config.node.cluster),
            tls=certificates.for_clients,
            metrics=LmtpMetrics(registry),
            limits=config.limits,
            refusals=refusals,
            doorkeeper=RemotePlaces(channel, "lmtp"),
            sessions=sessions,
        )
    )
    imap = ImapServices(
        mail=mail,
        users=RemoteUsers(channel, users),
        sid=config.node.id,
        tls=certificates.for_imap,
        tokens=RemoteTokens(channel, config.oauth.scopes) if config.oauth is not None else None,
        parsing=Parsing(max_fields=config.limits.imap_header_fields),
        metrics=ImapMetrics(registry),
        limits=config.limits,
        refusals=refusals,
        headers=HeaderCache(config.limits.imap_header_cache_bytes // config.workers.doors, registry),
        doorkeeper=RemotePlaces(channel, "imap"),
        sessions=sessions,
    )
    return mail_handlers(imap, lmtp, socketmap)


def _listener(number: int) -> trio.SocketListener:
    return trio.SocketListener(trio.socket.from_stdlib_socket(socket.socket(fileno=number)))


async def _run() -> None:
    core = trio.SocketStream(trio.socket.from_stdlib_socket(socket.socket(fileno=os.dup(CORE))))
    async with trio.open_nursery() as nursery:
        await Door(core, nursery).run()


def main() -> None:
    """Run the process of a door."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    share_arenas()
    trio.run(_run)
