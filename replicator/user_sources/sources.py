"""The users of a configured server, and the trial of its settings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from prometheus_client import CollectorRegistry

from replicator.config import DovecotAuthConfig, EndpointConfig, UserServerConfig
from replicator.errors import ConfigError
from replicator.runtime.environment import Abandoning
from replicator.runtime.metrics import UserSourceMetrics
from replicator.user_sources.certificates import TlsContext, server_context
from replicator.user_sources.dovecot import DovecotSource
from replicator.user_sources.endpoint import EndpointSource
from replicator.users import NO_LIMITS, ExternalDirectory, QuotaLimits, SourceError, UserSource


def users_of_server(
    config: UserServerConfig,
    clock_ms: Callable[[], int],
    registry: CollectorRegistry,
    *,
    context: TlsContext | None = None,
    quota: QuotaLimits = NO_LIMITS,
    key: bytes | None = None,
    masters: Path | None = None,
    separator: str | None = None,
) -> ExternalDirectory:
    """Return the users of a server, which is not asked yet. The rest is as for `ExternalDirectory`.

    `context`: that of connections; None: one by the file of the CA as it is now. Raises ConfigError if the library
    ldap3 is missing, or that file cannot be used.
    """
    return ExternalDirectory(
        _source(config, context or _context_now(config)),
        found_s=config.cache_s,
        missing_s=config.cache_missing_s,
        quota=quota,
        clock_ms=clock_ms,
        key=key,
        metrics=UserSourceMetrics(registry),
        masters=masters,
        separator=separator,
    )


async def server_faults(config: UserServerConfig) -> tuple[str, str] | None:
    """Ask the server about somebody. Return the key that does not work, and why; None: all is well.

    Raises ConfigError if the library ldap3 is missing.
    """
    try:
        context = _context_now(config)
    except ConfigError as error:
        return "ca", str(error).partition(" ca: ")[2]
    try:
        with closing(_source(config, context)) as source:
            await source.rehearse()
    except SourceError as error:
        return getattr(error, "key", "url"), str(error)
    return None


def _context_now(config: UserServerConfig) -> TlsContext:
    """Return a context that stays. Raises ConfigError if the file of the CA cannot be used."""
    context = server_context(config)
    return lambda: context


def _source(config: UserServerConfig, context: TlsContext) -> UserSource:
    """Return the server. Raises ConfigError if the library ldap3 is missing."""
    if isinstance(config, EndpointConfig):
        return EndpointSource(config, context)
    if isinstance(config, DovecotAuthConfig):
        return DovecotSource(config)
    try:
        from replicator.user_sources.ldap import LdapSource  # noqa: PLC0415 - an extra, which may be missing
    except ImportError as error:
        text = "it needs the library ldap3: install mail-replicator with the extra `ldap`"
        raise ConfigError(f"[ldap]: {text} ({error})") from error
    return LdapSource(config, context, Abandoning())
