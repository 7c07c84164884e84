"""The TLS contexts of a node, made of its certificate files and replaced when these are read again.

This is the one place that makes TLS contexts, and that `reload` updates. Whoever begins a handshake asks here for the
current context; connections that are up keep the context of their handshake.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.x509.oid import NameOID

from replicator.config import TlsConfig
from replicator.errors import ConfigError


class Certificate(NamedTuple):
    """What people and metrics are told about a certificate. Prints as `dc2, until 2026-01-01`."""

    name: str
    expires: datetime

    @classmethod
    def of_pem(cls, pem: bytes) -> Certificate:
        """Return the description of the first certificate in a PEM file. Raises ValueError."""
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME) or list(certificate.subject)
        return cls(str(names[0].value) if names else "without a name", certificate.not_valid_after_utc)

    def __str__(self) -> str:
        return f"{self.name}, until {self.expires.astimezone(UTC):%Y-%m-%d}"


class _Contexts(NamedTuple):
    """The contexts made of the files as they were at one time."""

    files: Mapping[Path, Certificate]
    for_clients: ssl.SSLContext | None = None
    accepting: ssl.SSLContext | None = None
    dialling: ssl.SSLContext | None = None


class Certificates:
    """The node's certificates. Without configuration there are no contexts, and connections are not encrypted.

    Raises ConfigError if a file cannot be used.
    """

    def __init__(self, config: TlsConfig | None) -> None:
        self._config = config
        self._contexts = _read(config)

    def reload(self) -> None:
        """Read all files again, for the handshakes from now on. Waits for the disk.

        Raises ConfigError if one cannot be used; then all contexts stay as they were.
        """
        self._contexts = _read(self._config)

    def for_clients(self) -> ssl.SSLContext | None:
        """Return the context for clients of the doors."""
        return self._contexts.for_clients

    def accepting(self) -> ssl.SSLContext | None:
        """Return the context for peers that dial this node."""
        return self._contexts.accepting

    def dialling(self) -> ssl.SSLContext | None:
        """Return the context for peers that this node dials."""
        return self._contexts.dialling

    def files(self) -> Mapping[Path, Certificate]:
        """Return the certificates in use, by the files that they were read from."""
        return self._contexts.files

    def own(self) -> Certificate:
        """Return the node's certificate, if there are contexts."""
        assert self._config is not None, "there are no contexts"
        return self._contexts.files[self._config.certificate]


def _read(config: TlsConfig | None) -> _Contexts:
    if config is None:
        return _Contexts({})
    for_clients = _context(config, ssl.PROTOCOL_TLS_SERVER)
    if config.ca is None:
        return _Contexts(_described(config.certificate), for_clients)
    return _Contexts(
        _described(config.certificate, config.ca),
        for_clients,
        accepting=_context(config, ssl.PROTOCOL_TLS_SERVER, peers=True),
        dialling=_context(config, ssl.PROTOCOL_TLS_CLIENT, peers=True),
    )


def _described(*files: Path) -> Mapping[Path, Certificate]:
    try:
        return {file: Certificate.of_pem(file.read_bytes()) for file in files}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"[tls]: cannot read the certificate in one of {', '.join(map(str, files))}: {error}"
        ) from error


def _context(config: TlsConfig, kind: int, *, peers: bool = False) -> ssl.SSLContext:
    """Return a TLS context with this node's certificate. With `peers`, the other side needs one signed by our CA."""
    context = ssl.SSLContext(kind)
    try:
        context.load_cert_chain(config.certificate, config.key)
        if peers:
            context.check_hostname = False  # a certificate names a node, not a host: see `TlsStream.certified_names`
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(config.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"[tls]: cannot use {config.certificate}, {config.key} or {config.ca}: {error}") from error
    return context
