"""A node's mail that is pushed to Debian's Dovecot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import trio
from prometheus_client import CollectorRegistry

from replicator.config import Address, DovecotConfig
from replicator.dsync.node_mail.last_syncs import LastSyncFiles
from replicator.dsync.node_mail.mail_replica import MailReplicas
from replicator.dsync.pushes.dovecot import Dovecot as RemoteDovecot
from replicator.dsync.pushes.pusher import Pusher, PushServices
from replicator.dsync.users import Syncing, Users
from replicator.runtime.environment import wall_clock_ms
from replicator.runtime.metrics import DovecotMetrics
from tests.dsync.dovecot import SDBOX, Dovecot, dovecot
from tests.dsync.sides import USER, DovecotSide, NodeSide, password
from tests.end_to_end.helpers.in_process import free_ports
from tests.one_node import HookedMail, Names

LISTENER = """
service doveadm {{{{
  inet_listener {{{{
    address = 127.0.0.1
    port = {port}
  }}}}
}}}}
"""


@contextmanager
def listening_dovecot(location: str = SDBOX, more: str = "") -> Iterator[tuple[Dovecot, Address]]:
    """Run a Dovecot whose doveadm can be reached over TCP."""
    [port] = free_ports(1)
    with dovecot(location, LISTENER.format(port=port) + more) as server:
        yield server, Address("127.0.0.1", port)


async def no_tls() -> None:
    await trio.lowlevel.checkpoint()


def remote(address: Address, *, tells_replicator: bool = False) -> RemoteDovecot:
    return RemoteDovecot(address, password, no_tls, tells_replicator)


def config_of(address: Address) -> DovecotConfig:
    """Return a configuration by which the Dovecot is seldom asked, so that what a test sees are pushes."""
    return DovecotConfig(address, Path("secret"), sync_every_s=3600.0)


def pusher_of(
    mail: HookedMail,
    address: Address,
    *,
    users: Users | None = None,
    config: DovecotConfig | None = None,
    registry: CollectorRegistry | None = None,
    syncing: Syncing | None = None,
    clock_ms: Callable[[], int] = wall_clock_ms,
    open_scratch: Callable[[], BinaryIO] = TemporaryFile,
) -> Pusher:
    memory = LastSyncFiles(mail.store.path.parent / "dovecots")
    replicas = MailReplicas(mail, memory, clock_ms, open_scratch)
    users = users or Names(USER, "u2")
    services = PushServices(mail, users, replicas.of, "zz-test", syncing or Syncing(), DovecotMetrics(registry))
    config = config or config_of(address)
    return Pusher(config, remote(address, tells_replicator=config.replicator), services)


@asynccontextmanager
async def running(pusher: Pusher) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pusher.run)
        yield
        nursery.cancel_scope.cancel()


WITHIN_S = 30.0
QUIET_S = 3.0


async def until(is_true: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(WITHIN_S):
        while not await is_true():  # looks at a Dovecot, which takes a while
            pass


async def until_equal(server: Dovecot, mail: HookedMail) -> None:
    sides = DovecotSide(server), NodeSide(mail)

    async def are_equal() -> bool:
        there, here = [await side.shown() for side in sides]
        return there == here

    await until(are_equal)


def syncs(registry: CollectorRegistry, address: Address, result: str = "done") -> float:
    labels = {"dovecot": str(address), "result": result}
    return registry.get_sample_value("replicator_dovecot_syncs_total", labels) or 0
