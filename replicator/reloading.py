"""Configuration, certificates and the identity provider's keys, read again while the node runs.

That happens at SIGHUP and by `replicator reload`. Of the configuration, the other nodes of the cluster, on how many
nodes each change is to be, the node's priority, and quotas can change in a running node. It tells which other keys have
changed, and keeps its former values of those until it is restarted.

One reading runs at a time. Whoever asks meanwhile shares the next one, because the files may have changed since the
present one began.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

import trio

from replicator.config import Config, changed_keys
from replicator.errors import ConfigError
from replicator.network.certificates import Certificates
from replicator.oauth import ProviderKeys
from replicator.runtime.environment import Environment
from replicator.runtime.process.service_manager import ServiceManager
from replicator.status import CertificateStatus

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Seconds from one reading at a signal to the next: each logs a line, and programs may send signals without end."""


class Configuration:
    """The configuration's file, against the configuration that the node runs with. Belongs to the event loop.

    `read` reads the file, which blocks, and raises ConfigError. `install` puts in force what can be: the `quota`,
    `peers`, `durability`, `node.removed` and `node.priority` of a configuration.
    """

    def __init__(self, running: Config, read: Callable[[], Config], install: Callable[[Config], None]) -> None:
        self._running = running
        self.read = read
        self._install = install
        self.restart_for: tuple[str, ...] = ()
        """Keys that have changed in the file, and whose new values need a restart."""

    def install(self, new: Config) -> None:
        """Put in force what can be. Log which keys that changed, and which need a restart."""
        changed = changed_keys(self._running, new)
        in_force = _in_force(self._running, new)
        self._install(in_force)
        self._running = in_force
        self.restart_for = changed_keys(self._running, new)
        if at_once := [key for key in changed if key not in self.restart_for]:
            log.info("the configuration was read again; in force now: %s", ", ".join(at_once))
        if self.restart_for:
            log.warning("the configuration has changed; in force after a restart: %s", ", ".join(self.restart_for))


def _in_force(running: Config, new: Config) -> Config:
    """Return the running configuration with all that a node can take over from the new one.

    With another [tls], peers wait for the restart: the new file is right about them only together with its [tls]. So do
    the copies that they are to have.
    """
    node = replace(running.node, priority=new.node.priority)
    running = replace(running, quota=new.quota, node=node)
    if (running.tls, running.plain_links) != (new.tls, new.plain_links):
        return running
    node = replace(node, removed=new.node.removed)
    return replace(running, node=node, peers=new.peers, durability=new.durability)


class Reloading:
    """The reading again of a node's configuration and certificates, and of the file of `keys`.

    `elsewhere` has the node's other processes read them, too, and may raise ConfigError. `manager` is told of readings.
    `exposed` returns which files of secrets others can read, and waits for the disk. `faults` returns why others would
    refuse the certificates in use.
    Belongs to the event loop.
    """

    def __init__(
        self,
        certificates: Certificates,
        environment: Environment,
        keys: ProviderKeys | None = None,
        *,
        elsewhere: Callable[[], Awaitable[None]] | None = None,
        manager: ServiceManager | None = None,
        configuration: Configuration | None = None,
        exposed: Callable[[], Iterable[str]] = tuple,
        faults: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._configuration = configuration
        self._manager = manager or ServiceManager()
        self._certificates = certificates
        self._elsewhere = elsewhere
        self._exposed = exposed
        self._faults = faults
        self._keys = keys
        self._environment = environment
        self._turn = trio.Lock()
        self._asked = 0
        self._answered = 0  # all who asked up to this number
        self._problem: ConfigError | None = None

    def shown(self) -> Sequence[CertificateStatus]:
        """Return the certificates in use."""
        return [
            CertificateStatus(str(file), certificate.name, int(certificate.expires.timestamp() * 1000))
            for file, certificate in self._certificates.files().items()
        ]

    def restart_for(self) -> Sequence[str]:
        """Return the keys of the configuration that have changed in its file and need a restart."""
        return self._configuration.restart_for if self._configuration else ()

    async def reload(self) -> Sequence[CertificateStatus]:
        """Read all again, and return the certificates. Raises ConfigError; then all stays as it was."""
        self._asked += 1
        number = self._asked
        async with self._turn:
            if self._answered < number:
                with self._manager.reloading():
                    await self._read()
        if self._problem is not None:
            raise ConfigError(str(self._problem)) from self._problem
        return self.shown()

    async def reload_at_each(self, signals: AsyncIterator[object]) -> None:
        """Reload at each signal until cancelled. Signals that come within a pause have one reading after it."""
        async for _ in signals:
            try:
                await self.reload()
            except ConfigError as error:
                log.warning("configuration, certificates and keys stay as they were: %s", error)
            await trio.sleep(PAUSE_S)

    async def _read(self) -> None:
        asked = self._asked
        try:
            config = await self._environment.run_in_thread(self._configuration.read) if self._configuration else None
            keys = await self._keys.read() if self._keys is not None else None
            contexts = await self._environment.run_in_thread(self._certificates.read)
            if self._elsewhere is not None:
                await self._elsewhere()
        except ConfigError as error:
            self._answered, self._problem = asked, error
            return
        self._certificates.install(contexts)
        if self._configuration is not None and config is not None:
            self._configuration.install(config)
        if self._keys is not None and keys is not None:
            self._keys.install(keys, asked=True)
        self._answered, self._problem = asked, None
        names = ", ".join(each.file for each in self.shown())
        log.info("the certificates were read again: %s", names or "there are none")
        for warning in (*await self._environment.run_in_thread(self._exposed), *self._faults()):
            log.warning("%s", warning)
