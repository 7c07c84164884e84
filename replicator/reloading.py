"""Certificates that a running node reads again: at SIGHUP, and when `replicator reload` asks for it.

One reading runs at a time. Whoever asks meanwhile shares the next one, because the files may have changed since the
present one began.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence

import trio

from replicator.certificates import Certificates
from replicator.errors import ConfigError
from replicator.runtime.environment import Environment
from replicator.status import CertificateStatus

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Seconds from one reading at a signal to the next: each logs a line, and programs may send signals without end."""


class Reloading:
    """The reading again of a node's certificates. Belongs to the event loop."""

    def __init__(self, certificates: Certificates, environment: Environment) -> None:
        self._certificates = certificates
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
        """Read the certificates again, and return them. Raises ConfigError; then all stay as they were."""
        self._asked += 1
        number = self._asked
        async with self._turn:
            if self._answered < number:
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
                log.warning("the certificates stay as they were: %s", error)
            await trio.sleep(PAUSE_S)

    async def _read(self) -> None:
        asked = self._asked
        try:
            await self._environment.run_in_thread(self._certificates.reload)
        except ConfigError as error:
            self._answered, self._problem = asked, error
            return
        self._answered, self._problem = asked, None
        names = ", ".join(each.file for each in self.shown())
        log.info("the certificates were read again: %s", names or "there are none")
        for warning in await self._environment.run_in_thread(self._certificates.exposed):
            log.warning("%s", warning)
