"""The users of a configured server, and the trial of its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from replicator.config import LdapConfig
from replicator.errors import ConfigError
from replicator.runtime.environment import Abandoning
from replicator.runtime.metrics import UserSourceMetrics
from replicator.users import NO_LIMITS, ExternalDirectory, QuotaLimits, SourceError

if TYPE_CHECKING:
    from replicator.user_sources.ldap import LdapSource


def users_of_server(
    config: LdapConfig,
    clock_ms: Callable[[], int],
    registry: CollectorRegistry,
    *,
    quota: QuotaLimits = NO_LIMITS,
    key: bytes | None = None,
) -> ExternalDirectory:
    """Return the users of an LDAP server, which is not asked yet. Raises ConfigError if ldap3 is missing."""
    return ExternalDirectory(
        _source(config),
        found_s=config.cache_s,
        missing_s=config.cache_missing_s,
        quota=quota,
        clock_ms=clock_ms,
        key=key,
        metrics=UserSourceMetrics(registry),
    )


async def ldap_faults(config: LdapConfig) -> tuple[str, str] | None:
    """Ask the server about somebody. Return the key of [ldap] that does not work, and why; None: all is well.

    Raises ConfigError if ldap3 is missing.
    """
    source = _source(config)
    try:
        await source.rehearse()
    except SourceError as error:
        return getattr(error, "key", "url"), str(error)
    finally:
        source.close()
    return None


def _source(config: LdapConfig) -> LdapSource:
    try:
        from replicator.user_sources.ldap import LdapSource  # noqa: PLC0415 - an extra, which may be missing
    except ImportError as error:
        text = "it needs the library ldap3: install mail-replicator with the extra `ldap`"
        raise ConfigError(f"[ldap]: {text} ({error})") from error
    return LdapSource(config, Abandoning())
