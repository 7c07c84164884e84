"""The process of a door: it accepts connections, and asks the core for whatever it does not know itself.

It lives as long as its connection to the core, which is its standard input. So it ends with the core, however that
ends, and heeds no signal: those of a terminal or of a service manager reach all processes of a node.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
from dataclasses import dataclass
from functools import partial

import trio
from prometheus_client import CollectorRegistry

from replicator.config import Config
from replicator.errors import ConfigError
from replicator.lmtp import LmtpServer, LmtpServices
from replicator.lmtp.trace import host_name
from replicator.network.certificates import Certificates
from replicator.network.proxy_header import behind_proxies
from replicator.network.streams import guarded
from replicator.runtime.environment import run_in_thread
from replicator.runtime.garbage import set_garbage_aside
from replicator.runtime.log_lines import log_to_stderr
from replicator.runtime.loop_watch import LoopWatch
from replicator.runtime.metrics import LmtpMetrics, LoopMetrics, RefusalMetrics
from replicator.users import UserDirectory
from replicator.workers.channel import Channel
from replicator.workers.remote_mail import RemoteMail
from replicator.workers.remote_metrics import tell_metrics
from replicator.workers.remote_places import RemotePlaces

log = logging.getLogger(__name__)

CORE = 0  # file descriptor of the connection to the core


@dataclass(frozen=True)
class Order:
    """What a door is to do. `lmtp`: file descriptors of the listening sockets that it has inherited."""

    number: int
    config: Config
    log_level: str
    lmtp: tuple[int, ...]

    def packed(self) -> bytes:
        """Return the order as `unpacked` takes it."""
        return pickle.dumps(self)

    @staticmethod
    def unpacked(packed: bytes) -> Order:
        """Return an order that the core has packed: nobody else can write to the connection."""
        order = pickle.loads(packed)  # noqa: S301
        assert isinstance(order, Order)
        return order


class Door:
    """The door of this process. `nursery` has all that it does."""

    def __init__(self, stream: trio.abc.Stream, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._channel = Channel(stream)
        self._channel.calls["begin"] = self._begin
        self._channel.quick_calls["ping"] = lambda: None

    async def run(self) -> None:
        """Do what the core orders until it ends the connection."""
        await self._channel.run()
        self._nursery.cancel_scope.cancel()

    async def _begin(self, packed: bytes) -> str | None:
        """Open the door. Return why that is not possible."""
        order = Order.unpacked(packed)
        config, channel = order.config, self._channel
        log_to_stderr(order.log_level, f"door {order.number}")
        registry = CollectorRegistry()
        try:
            certificates = Certificates(config.tls, config.certificates)
        except ConfigError as error:
            return str(error)
        users = UserDirectory(config.users.passwd_file)
        users.refresh()
        lmtp = LmtpServer(
            LmtpServices(
                mail=RemoteMail(channel, config.content.inline_max_bytes),
                users=users,
                node_name=host_name(config.node.id, config.node.cluster),
                tls=certificates.for_clients,
                metrics=LmtpMetrics(registry),
                limits=config.limits,
                refusals=RefusalMetrics(registry),
                doorkeeper=RemotePlaces(channel),
            )
        )
        channel.calls["reload"] = partial(_reload, certificates)
        self._nursery.start_soon(tell_metrics, registry, channel)
        handler = guarded(behind_proxies(lmtp.serve, config.proxy.trusted))
        set_garbage_aside()
        await self._nursery.start(partial(trio.serve_listeners, handler, [_listener(number) for number in order.lmtp]))
        self._nursery.start_soon(LoopWatch(LoopMetrics(registry)).run)
        return None


async def _reload(certificates: Certificates) -> str | None:
    """Read the certificates again. Return what is wrong with them; then all stays as it was."""
    try:
        await run_in_thread(certificates.reload)
    except ConfigError as error:
        return str(error)
    return None


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
    trio.run(_run)
