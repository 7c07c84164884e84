"""All that a node does about Dovecots, put together by its configuration: the door, and the syncs that it begins."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import trio
from prometheus_client import CollectorRegistry

from replicator.config import Config, DovecotConfig
from replicator.dsync.door.server import DsyncServer, DsyncServices
from replicator.dsync.node_mail.former_users import FormerUsers
from replicator.dsync.node_mail.last_syncs import LastSyncFiles
from replicator.dsync.node_mail.mail_replica import MailReplicas
from replicator.dsync.pushes.dovecot import Dovecot
from replicator.dsync.pushes.neighbours import Neighbour
from replicator.dsync.pushes.pusher import Pusher, PushServices
from replicator.dsync.users import Syncing, Users
from replicator.mail.mailstore import CoreMailStore
from replicator.network.certificates import dovecot_context
from replicator.runtime.environment import Environment
from replicator.runtime.files.first_line import first_line
from replicator.runtime.metrics import DoveadmMetrics, DovecotMetrics, RefusalMetrics
from replicator.runtime.sessions import Sessions

LOCKED_BY_OTHERS = "zz-"
"""Begin of this side's name: of two sides, the one with the smaller name locks the user, and Dovecot is to do that."""

CONTEXT_S = 60.0
"""Seconds after which a TLS context is made anew, as the file of the CA may be another one: that takes some 50 ms."""


class DovecotSyncs:
    """The syncs of one node with Dovecots."""

    def __init__(
        self,
        config: Config,
        mail: CoreMailStore,
        users: Users,
        environment: Environment,
        registry: CollectorRegistry,
        *,
        neighbours: Callable[[], Iterable[Neighbour]] = tuple,
    ) -> None:
        """`neighbours` returns the nodes that are linked with this one."""
        self._config = config
        self._users = users
        self._environment = environment
        self._registry = registry
        files = LastSyncFiles(config.node.dovecots)
        self._former_users = FormerUsers(mail, users, files)
        self._replica_of = MailReplicas(
            mail,
            files,
            environment.clock_ms,
            partial(environment.open_scratch, config.node.data),
        ).of
        self._hostname = LOCKED_BY_OTHERS + config.node.cluster
        self._syncing = Syncing()
        metrics = DovecotMetrics(registry)
        services = PushServices(mail, users, self._replica_of, self._hostname, self._syncing, metrics, neighbours)
        self._pushers = [Pusher(dovecot, self._dovecot(dovecot), services) for dovecot in config.dovecots]

    def door(self, sessions: Sessions, refusals: RefusalMetrics) -> Callable[[trio.abc.Stream], Awaitable[None]] | None:
        """Return the handler of connections at the door; None if it is not configured. To be called once."""
        if self._config.doveadm.password_file is None:
            return None
        services = DsyncServices(
            users=self._users,
            replica_of=self._replica_of,
            password=self._password(self._config.doveadm.password_file),
            hostname=self._hostname,
            metrics=DoveadmMetrics(self._registry),
            limits=self._config.limits,
            refusals=refusals,
            sessions=sessions,
            syncing=self._syncing,
            clock_ms=self._environment.clock_ms,
        )
        return DsyncServer(services).serve

    def runs(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Return the tasks that sync, and the one that forgets former users."""
        return [*(pusher.run for pusher in self._pushers), self._former_users.run]

    def problems(self) -> Sequence[str]:
        """Return what an operator should know."""
        return [problem for pusher in self._pushers for problem in pusher.problems()]

    def _password(self, file: Path) -> Callable[[], Awaitable[bytes]]:
        return partial(self._environment.run_in_thread, partial(first_line, file))

    def _dovecot(self, config: DovecotConfig) -> Dovecot:
        made: ssl.SSLContext | None = None
        made_at = -CONTEXT_S

        async def context() -> ssl.SSLContext | None:
            nonlocal made, made_at
            if trio.current_time() >= made_at + CONTEXT_S:
                made = await self._environment.run_in_thread(partial(dovecot_context, config))
                made_at = trio.current_time()
            return made

        return Dovecot(config.address, self._password(config.password_file), context, config.replicator)
