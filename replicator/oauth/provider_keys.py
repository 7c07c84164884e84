"""The provider's keys that are in force: the last that could be read, from a file or over HTTPS.

They are read at the start, at intervals, at a reload, and when a token names a key that is not among them, because
providers change their keys; but for that at most once in a minute, because anybody may name any key. While reading
fails, the last keys stay in force.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import trio

from replicator.config import OauthConfig
from replicator.errors import ConfigError, UnavailableError
from replicator.oauth.https_get import DEADLINE_S, HttpsError, https_get
from replicator.oauth.key_set import JWKS_BYTES_MAX, Key, KeySet, KeySetError
from replicator.runtime.environment import Environment
from replicator.runtime.logs.fields import LogFields
from replicator.runtime.metrics import OauthMetrics

log = logging.getLogger(__name__)

WAIT_S = DEADLINE_S + 2
"""Seconds for which a client waits for keys, at most."""

PAUSE_S = 60.0
"""Seconds from one reading to the next that an unknown key brings about, or a failure."""


def key_source(
    config: OauthConfig, environment: Environment, context: Callable[[], ssl.SSLContext | None]
) -> Callable[[], Awaitable[KeySet]]:
    """Return a function that reads the configured keys. It raises ConfigError that names the key and the place.

    `context` returns the TLS context for the provider's URL.
    """

    async def read() -> KeySet:
        try:
            data = await _read(config.jwks, environment, context)
            return await environment.run_in_thread(partial(KeySet.parse, data, config.algorithms))
        except (KeySetError, HttpsError) as error:
            reason: object = error
        except OSError as error:
            reason = error.strerror or error
        raise ConfigError(f"[oauth] jwks: cannot use {config.jwks}: {reason}")

    return read


async def _read(jwks: Path | str, environment: Environment, context: Callable[[], ssl.SSLContext | None]) -> bytes:
    """Return the octets of the keys. Raises KeySetError, HttpsError, OSError."""
    if isinstance(jwks, str):
        tls = context()
        assert tls is not None, "there is a context for each URL"
        return await https_get(jwks, tls, body_bytes_max=JWKS_BYTES_MAX)
    return await environment.run_in_thread(partial(_content, jwks))


def _content(file: Path) -> bytes:
    with file.open("rb") as stream:
        data = stream.read(JWKS_BYTES_MAX + 1)
    if len(data) > JWKS_BYTES_MAX:
        raise KeySetError(f"it is larger than {JWKS_BYTES_MAX} bytes")
    return data


class ProviderKeys:
    """The keys in force. Belongs to the event loop; `run` is its one task, and reads them. Time is trio's."""

    def __init__(
        self, read: Callable[[], Awaitable[KeySet]], *, refresh_s: float, metrics: OauthMetrics | None = None
    ) -> None:
        """`read` raises ConfigError where it fails."""
        self.read = read
        self._refresh_s = refresh_s
        self._metrics = metrics or OauthMetrics()
        self._keys: KeySet | None = None
        self._problem: str | None = None
        self._reading = True  # the first one is about to begin
        self._began_s = trio.current_time()
        self._asked, self._done = trio.Event(), trio.Event()

    async def run(self) -> None:
        """Read the keys at intervals, and whenever a client needs it, until cancelled."""
        while True:
            self._reading, self._began_s, self._asked = True, trio.current_time(), trio.Event()
            try:
                self.install(await self.read())
            except ConfigError as error:
                self._note_problem(error)
            done, self._done = self._done, trio.Event()
            self._reading = False
            done.set()
            with trio.move_on_after(self._refresh_s if self._problem is None else min(PAUSE_S, self._refresh_s)):
                await self._asked.wait()

    def install(self, keys: KeySet, *, asked: bool = False) -> None:
        """Put these keys in force. `asked`: an operator asked for them, and looks into the log, changed or not."""
        self._metrics.read(ok=True)
        if asked or self._problem is not None or keys != self._keys:
            ids = ",".join(key.kid or "-" for key in keys.keys)
            log.info("the identity provider's keys were read %s", LogFields({"keys": len(keys.keys), "ids": ids}))
        self._keys, self._problem = keys, None

    async def fitting(self, kid: str | None, algorithm: str) -> Sequence[Key]:
        """Return the keys that may have made a signature. If there is none, they may be read again first.

        Raises UnavailableError while no keys could be read yet.
        """
        if not (fitting := self._fitting(kid, algorithm)):
            await self._read_again()
            fitting = self._fitting(kid, algorithm)
        if self._keys is None:
            raise UnavailableError("the identity provider's keys cannot be read now; try again later")
        return fitting

    def _fitting(self, kid: str | None, algorithm: str) -> Sequence[Key]:
        return self._keys.fitting(kid, algorithm) if self._keys is not None else ()

    async def _read_again(self) -> None:
        """Wait for the reading under way, or for a new one; return at once if the last one began a moment ago."""
        if not self._reading:
            if trio.current_time() < self._began_s + PAUSE_S:
                return
            self._asked.set()
        with trio.move_on_after(WAIT_S):
            await self._done.wait()

    def _note_problem(self, error: ConfigError) -> None:
        self._metrics.read(ok=False)
        consequence = "nobody can log in by a token" if self._keys is None else "the last keys stay in force"
        text = f"{error}; {consequence}"
        if text != self._problem:
            log.warning("%s", text)
        self._problem = text
