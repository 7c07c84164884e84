"""The certificate of a server that knows the users: by which CA it is verified, and what a refusal is about."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from pathlib import Path

from replicator.config import DovecotAuthConfig, EndpointConfig, UserServerConfig
from replicator.errors import ConfigError

TlsContext = Callable[[], ssl.SSLContext | None]
"""Returns the TLS context for the next connection; None: connections are not encrypted."""

_UNKNOWN_ISSUER = re.compile("issuer certificate|self.signed")
"""OpenSSL's words for a certificate that no CA has signed which is trusted."""


def ca_of(config: UserServerConfig | None) -> Path | None:
    """Return the file of the CA by which a server's certificate is verified; None: there is none."""
    return None if config is None or isinstance(config, DovecotAuthConfig) or not config.has_tls else config.ca


def section_of(config: UserServerConfig | None) -> str:
    """Return the section of the configuration that is about a server."""
    return "[endpoint]" if isinstance(config, EndpointConfig) else "[ldap]"


def server_context(config: UserServerConfig | None) -> ssl.SSLContext | None:
    """Return the TLS context for a server; None: connections are not encrypted. Waits for the disk.

    Raises ConfigError if the file of the CA cannot be used.
    """
    if config is None or isinstance(config, DovecotAuthConfig) or not config.has_tls:
        return None
    try:
        return ssl.create_default_context(cafile=config.ca)
    except OSError as error:  # an SSLError is one
        raise ConfigError(f"{section_of(config)} ca: {config.ca} cannot be used: {error}") from error


def key_of_refusal(reason: str) -> str:
    """Return the key to look at first: `ca`, or for all other reasons, such as the server's name, `url`."""
    return "ca" if _UNKNOWN_ISSUER.search(reason) else "url"
