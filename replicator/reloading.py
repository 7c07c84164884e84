"""Certificates and the identity provider's keys, read again while the node runs: at SIGHUP, and by `replicator reload`.

One reading runs at a time. Whoever asks meanwhile shares the next one, because the files may have changed since the
present one began.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

import trio

from replicator.errors import ConfigError
from replicator.network.certificates import Certificates
from replicator.oauth import ProviderKeys
from replicator.runtime.environment import Environment
from replicator.runtime.process.service_manager import ServiceManager
from replicator.status import CertificateStatus

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Seconds from one reading at a signal to the next: each logs a line, and programs may send signals without end."""


class Reloading:
    """The reading again of a node's certificates, and of the file of `keys`. Belongs to the event loop.

    `elsewhere` has the node's other processes read them, too, and may raise ConfigError. `manager` is told of readings.
    `faults` returns why others would refuse the certificates in use.
    """

    def __init__(
        self,
        certificates: Certificates,
        environment: Environment,
        keys: ProviderKeys | None = None,
        elsewhere: Callable[[], Awaitable[None]] | None = None,
        manager: ServiceManager | None = None,
        *,
        faults: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._manager = manager or ServiceManager()
        self._certificates = certificates
        self._elsewhere = elsewhere
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
                log.warning("certificates and keys stay as they were: %s", error)
            await trio.sleep(PAUSE_S)

    async def _read(self) -> None:
        asked = self._asked
        try:
            keys = await self._keys.read() if self._keys is not None else None
            contexts = await self._environment.run_in_thread(self._certificates.read)
            if self._elsewhere is not None:
                await self._elsewhere()
        except ConfigError as error:
            self._answered, self._problem = asked, error
            return
        self._certificates.install(contexts)
        if self._keys is not None and keys is not None:
            self._keys.install(keys, asked=True)
        self._answered, self._problem = asked, None
        names = ", ".join(each.file for each in self.shown())
        log.info("the certificates were read again: %s", names or "there are none")
        for warning in (*await self._environment.run_in_thread(self._certificates.exposed), *self._faults()):
            log.warning("%s", warning)
