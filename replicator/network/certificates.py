"""The TLS contexts of a node, made of its certificate files and replaced when these are read again.

This is the one place that makes TLS contexts, and that `reload` updates. Whoever begins a handshake asks here for the
current context; connections that are up keep the context of their handshake.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from replicator.config import (
    CertificateConfig,
    ClientCertificatesConfig,
    DovecotConfig,
    OauthConfig,
    TlsConfig,
    UserServerConfig,
)
from replicator.errors import ConfigError
from replicator.user_sources.certificates import ca_of, section_of, server_context
from replicator.users import Identity

CLIENT_CERTIFICATES = "[client_certificates]"

NAME_CHARACTERS_MAX = 64
"""Characters of a name that are shown: RFC 5280 allows as many, but nobody has checked the certificate yet."""


class Certificate(NamedTuple):
    """Description of a certificate for people and metrics. Prints as `dc2, until 2026-01-01`."""

    name: str
    expires: datetime

    @classmethod
    def of_pem(cls, pem: bytes) -> Certificate:
        """Return the description of the first certificate in a PEM file. Raises ValueError."""
        certificate = _parsed(pem)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME) or list(certificate.subject)
        name = str(names[0].value)[:NAME_CHARACTERS_MAX] if names else "without a name"
        shown = "".join(character if character.isprintable() else "?" for character in name)
        return cls(shown, certificate.not_valid_after_utc)

    def __str__(self) -> str:
        return f"{self.name}, until {self.expires.astimezone(UTC):%Y-%m-%d}"


def identity_of(der: bytes) -> Identity | None:
    """Return the identity that a mail client's certificate shows, until the certificate expires. TLS has verified it.

    One rule says whom it names: its e-mail address in subjectAltName (rfc822Name, RFC 5280 section 4.2.1.6), or if it
    has none, its common name. One with several of the kind that counts names nobody: None.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        with suppress(x509.ExtensionNotFound):
            extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            names = extension.value.get_values_for_type(x509.RFC822Name) or names
    except (ValueError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return None
    if len(names) != 1 or not names[0]:
        return None
    return Identity(names[0], int(certificate.not_valid_after_utc.timestamp() * 1000))


def dovecot_context(config: DovecotConfig) -> ssl.SSLContext | None:
    """Return the TLS context for a connection to a Dovecot; None: it is not encrypted.

    Waits for the disk. Raises OSError.
    """
    return ssl.create_default_context(cafile=config.ca) if config.tls else None


class ServerContext(ssl.SSLContext):
    """The TLS context of a server that shows one certificate.

    `end_point`: the data of the channel binding tls-server-end-point (RFC 5929 section 4); None if the certificate is
    signed by an algorithm for which that defines none, such as Ed25519.
    """

    end_point: bytes | None = None


class Contexts(NamedTuple):
    """The contexts made of the files as they were at one time. `lists_end`: until when lists of revoked ones count."""

    files: Mapping[Path, Certificate]
    for_clients: ssl.SSLContext | None = None
    for_imap: ssl.SSLContext | None = None
    for_provider: ssl.SSLContext | None = None
    for_user_server: ssl.SSLContext | None = None
    accepting: ssl.SSLContext | None = None
    dialling: ssl.SSLContext | None = None
    lists_end: Mapping[Path, datetime] = MappingProxyType({})


class Certificates:
    """The node's certificates. Without configuration there are no contexts, and connections are not encrypted.

    `of_clients`: those with which mail clients may log in; `oauth`: the identity provider, whose server has one;
    `user_server`: the server that knows the users, which has one. Raises ConfigError if a file cannot be used.
    """

    def __init__(
        self,
        config: TlsConfig | None,
        for_clients: Sequence[CertificateConfig] = (),
        *,
        of_clients: ClientCertificatesConfig | None = None,
        oauth: OauthConfig | None = None,
        user_server: UserServerConfig | None = None,
    ) -> None:
        self._config = config
        self._for_clients = tuple(for_clients)
        self._of_clients = of_clients
        self._oauth = oauth
        self._user_server = user_server
        self._contexts = self.read()

    def read(self) -> Contexts:
        """Return contexts of the files as they are now, for `install`. Waits for the disk.

        Raises ConfigError if a file cannot be used.
        """
        contexts = _read(self._config, self._for_clients, self._of_clients)
        contexts = contexts._replace(for_user_server=server_context(self._user_server))
        if (authority := ca_of(self._user_server)) is not None:
            described = _described(section_of(self._user_server), authority)
            contexts = contexts._replace(files={**contexts.files, **described})
        if self._oauth is None or not isinstance(self._oauth.jwks, str):
            return contexts
        ca = self._oauth.ca
        files = {**contexts.files, **(_described("[oauth]", ca) if ca is not None else {})}
        return contexts._replace(files=files, for_provider=_for_provider(ca))

    def install(self, contexts: Contexts) -> None:
        """Use these contexts for the handshakes from now on."""
        self._contexts = contexts

    def for_clients(self) -> ssl.SSLContext | None:
        """Return the context for mail clients and MTAs: it shows the certificate with the name that they ask for."""
        return self._contexts.for_clients

    def for_imap(self) -> ssl.SSLContext | None:
        """Return the context for mail clients at IMAP: as `for_clients`, and they may show certificates, too."""
        return self._contexts.for_imap

    def for_provider(self) -> ssl.SSLContext | None:
        """Return the context for the identity provider's server, if the keys come from there."""
        return self._contexts.for_provider

    def for_user_server(self) -> ssl.SSLContext | None:
        """Return the context for the server that knows the users, if it is reached over TLS."""
        return self._contexts.for_user_server

    def accepting(self) -> ssl.SSLContext | None:
        """Return the context for peers that dial this node."""
        return self._contexts.accepting

    def dialling(self) -> ssl.SSLContext | None:
        """Return the context for peers that this node dials."""
        return self._contexts.dialling

    def files(self) -> Mapping[Path, Certificate]:
        """Return the certificates in use, by the files that they were read from."""
        return self._contexts.files

    def lists_end(self) -> Mapping[Path, datetime]:
        """Return until when lists of revoked certificates count, by the files that they were read from."""
        return self._contexts.lists_end

    def own(self) -> Certificate:
        """Return the node's certificate, if there are contexts."""
        assert self._config is not None, "there are no contexts"
        return self._contexts.files[self._config.certificate]


def _read(
    config: TlsConfig | None, for_clients: Sequence[CertificateConfig], of_clients: ClientCertificatesConfig | None
) -> Contexts:
    section, shown = "[[certificate]]", for_clients
    if config is not None and not for_clients:
        section, shown = "[tls]", [CertificateConfig(config.certificate, config.key)]
    files = _described("[[certificate]]", *(one.file for one in for_clients))
    context = for_imap = _for_clients(section, shown)
    if of_clients is not None:
        files = {**files, **_described(CLIENT_CERTIFICATES, of_clients.ca)}
        for_imap = _for_clients(section, shown, of_clients)
    ends = _lists_end(of_clients)
    if config is None:
        return Contexts(files, context, for_imap, lists_end=ends)
    own = (config.certificate,) if config.ca is None else (config.certificate, config.ca)
    contexts = Contexts({**_described("[tls]", *own), **files}, context, for_imap, lists_end=ends)
    if config.ca is None:
        return contexts
    return contexts._replace(
        accepting=_context(config, ssl.PROTOCOL_TLS_SERVER), dialling=_context(config, ssl.PROTOCOL_TLS_CLIENT)
    )


def _parsed(pem: bytes) -> x509.Certificate:
    """Return the first certificate in a PEM file. Raises ValueError."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except x509.InvalidVersion as error:  # which is no ValueError
        raise ValueError(str(error)) from error


def _described(section: str, *files: Path) -> Mapping[Path, Certificate]:
    described: dict[Path, Certificate] = {}
    for file in files:
        try:
            described[file] = Certificate.of_pem(file.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{section}: cannot read the certificate in {file}: {_why(error)}") from error
    return described


def _context(config: TlsConfig, kind: int) -> ssl.SSLContext:
    """Return a TLS context for links, with this node's certificate. The other side needs one signed by our CA."""
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.certificate, config.key, _no_passphrase)
        context.check_hostname = False  # a certificate names a node, not a host: see `TlsStream.certified_names`
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(config.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"[tls]: cannot use {config.certificate}, {config.key} or {config.ca}: {_why(error)}"
        ) from error
    return context


def _for_clients(
    section: str, certificates: Sequence[CertificateConfig], of_clients: ClientCertificatesConfig | None = None
) -> ssl.SSLContext | None:
    """Return a TLS context that shows the certificate with the name that the client asks for, or else the first.

    With `of_clients`, it asks clients for certificates.
    """
    contexts = [(_names(section, one), _shows(section, one)) for one in certificates]
    if not contexts:
        return None
    if of_clients is not None:
        for _, context in contexts:
            _ask_for_certificates(context, of_clients)

    def choose(handshake: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        wanted = (name or "").lower()
        for names, context in contexts:
            if wanted in names or f"*.{wanted.partition('.')[2]}" in names:
                handshake.context = context
                return

    _, first = contexts[0]
    first.sni_callback = choose
    return first


def _shows(section: str, certificate: CertificateConfig) -> ssl.SSLContext:
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate.file, certificate.key, _no_passphrase)
        context.end_point = _end_point(_parsed(certificate.file.read_bytes()))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{section}: cannot use {certificate.file} with its key {certificate.key}: {_why(error)}"
        ) from error
    return context


def _ask_for_certificates(context: ssl.SSLContext, of_clients: ClientCertificatesConfig) -> None:
    """Make the handshake ask for a certificate. A client that shows none is served; a bad one fails the handshake."""
    context.verify_mode = ssl.CERT_OPTIONAL
    try:
        context.load_verify_locations(of_clients.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{CLIENT_CERTIFICATES}: cannot use {of_clients.ca}: {_why(error)}") from error
    if (crl := of_clients.crl) is not None:
        _lists_end(of_clients)
        try:
            context.load_verify_locations(crl)
        except OSError as error:  # an SSLError is one
            raise ConfigError(f"{CLIENT_CERTIFICATES}: cannot use {crl}: {error.strerror}") from error
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def _lists_end(of_clients: ClientCertificatesConfig | None) -> Mapping[Path, datetime]:
    """Return until when the list of revoked certificates counts, by its file. Raises ConfigError."""
    if of_clients is None or of_clients.crl is None:
        return {}
    try:
        ends = x509.load_pem_x509_crl(of_clients.crl.read_bytes()).next_update_utc
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is no CRL in the form PEM ({error})"
        raise ConfigError(f"{CLIENT_CERTIFICATES}: cannot use {of_clients.crl}: {why}") from error
    return {} if ends is None else {of_clients.crl: ends}


def _for_provider(ca: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"[oauth]: cannot use {ca}: {_why(error)}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _end_point(certificate: x509.Certificate) -> bytes | None:
    try:
        algorithm = certificate.signature_hash_algorithm
    except UnsupportedAlgorithm:
        return None
    if algorithm is None:
        return None
    return certificate.fingerprint(hashes.SHA256() if isinstance(algorithm, hashes.MD5 | hashes.SHA1) else algorithm)


def _why(error: Exception) -> str:
    """Return what is wrong with a file, for an operator: libraries say what their parsers have met."""
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is another certificate's"
        return str(error) if error.reason else "one of them does not hold what it should, in the form PEM"
    if isinstance(error, PermissionError):
        return f"{error.strerror}; the node's user must be able to read it"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"it does not begin with a usable certificate in the form PEM ({error})"


def _no_passphrase() -> str:
    """Refuse a key with a passphrase: OpenSSL would ask for it at the terminal, and the node would wait for ever."""
    raise OSError("the key has a passphrase; remove it, for instance by `openssl pkey -in KEY -out NEW`")


def _names(section: str, certificate: CertificateConfig) -> frozenset[str]:
    """Return the DNS names in a certificate, in lower case; `*.` stands for one label (RFC 6125 section 6.4.3)."""
    try:
        parsed = _parsed(certificate.file.read_bytes())
        extension = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return frozenset()
    except (OSError, ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ConfigError(f"{section}: cannot read {certificate.file}: {_why(error)}") from error
    return frozenset(name.lower() for name in extension.value.get_values_for_type(x509.DNSName))
