"""A small certificate authority (CA) in a directory: the certificates by which the nodes of a cluster trust each other.

The directory holds `ca.pem` and `ca.key`, and `NODE.pem` and `NODE.key` for each node. Private keys are readable by
their owner alone. Nothing is overwritten except a certificate that is renewed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from replicator.cli.target import CommandError
from replicator.config import TlsConfig

AUTHORITY_DAYS = 3650
NODE_DAYS = 365
BACKDATED = timedelta(hours=1)  # for nodes whose clocks are behind this machine's
NAME_MAX = 64  # RFC 5280 appendix A.1, ub-common-name
_HOST = re.compile(r"(?=.{1,253}\Z)(?!-)[A-Za-z0-9-]{1,63}(?<!-)(?:\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


@dataclass(frozen=True, slots=True)
class Authority:
    """The CA in a directory."""

    directory: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, directory: Path, name: str) -> Authority:
        """Make a new CA. Raises CommandError if the directory has one, or cannot be written to."""
        if not 0 < len(name) <= NAME_MAX or not name.isprintable():
            raise CommandError(f"--name: expected 1 to {NAME_MAX} printable characters, not {name[:60]!r}")
        file, key_file = directory / "ca.pem", directory / "ca.key"
        for taken in (file, key_file):
            if taken.exists():
                raise CommandError(f"{taken} exists already, and is not overwritten; use another --dir")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject, subject, key.public_key(), datetime.now(UTC) + timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_new(key_file, _key_pem(key), 0o600)
            _write_new(file, _pem(certificate), 0o644)
        except OSError as error:
            raise _cannot_write(error, directory) from error
        return cls(directory, certificate, key)

    @classmethod
    def open(cls, directory: Path) -> Authority:
        """Return the CA in the directory. Raises CommandError."""
        file = directory / "ca.pem"
        if not file.exists():
            raise CommandError(f"there is no CA in {directory}; make one with `replicator ca init --dir {directory}`")
        return cls(directory, _read_certificate(file), _read_key(directory / "ca.key"))

    def files(self, node: str) -> TlsConfig:
        """Return the files of a node, whether they exist or not."""
        return TlsConfig(self.directory / f"{node}.pem", self.directory / f"{node}.key", self.directory / "ca.pem")

    def issue(self, node: str, hosts: Iterable[str] = ()) -> x509.Certificate:
        """Make a key and a certificate for a node, with further names for clients. Raises CommandError."""
        files, names = self.files(node), _names(node, hosts)
        for taken in (files.certificate, files.key):
            if taken.exists():
                raise CommandError(
                    f"{taken} exists already, and is not overwritten; to prolong a certificate, use"
                    f" `replicator ca renew {node} --dir {self.directory}`"
                )
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(node, names, key.public_key())
        try:
            _write_new(files.key, _key_pem(key), 0o600)
            _write_new(files.certificate, _pem(certificate), 0o644)
        except OSError as error:
            raise _cannot_write(error, self.directory) from error
        return certificate

    def renew(self, node: str) -> x509.Certificate:
        """Replace a node's certificate by one with the same key and names that is valid from now on.

        Raises CommandError. Only one file changes, by renaming, so that a node never finds half of a change.
        """
        files = self.files(node)
        if not files.certificate.exists():
            raise CommandError(
                f"{files.certificate} does not exist; make it with `replicator ca issue {node} --dir {self.directory}`"
            )
        old, key = _read_certificate(files.certificate), _read_key(files.key)
        if old.public_key() != key.public_key():
            raise CommandError(f"{files.key} is not the key of {files.certificate}; put the right one back")
        try:
            names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound as error:
            raise CommandError(f"{files.certificate} names no host: `replicator ca` has not made it") from error
        certificate = self._sign(node, names, key.public_key())
        new = files.certificate.with_suffix(".pem.new")
        try:
            new.unlink(missing_ok=True)
            _write_new(new, _pem(certificate), 0o644)
            new.replace(files.certificate)
        except OSError as error:
            raise _cannot_write(error, self.directory) from error
        return certificate

    def _sign(
        self, node: str, names: x509.SubjectAlternativeName, public_key: ec.EllipticCurvePublicKey
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
        # A certificate is worth nothing once that of its CA has expired.
        end = min(datetime.now(UTC) + timedelta(days=NODE_DAYS), self.certificate.not_valid_after_utc)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]  # of two nodes, one dials
        return (
            _builder(subject, self.certificate.subject, public_key, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(names, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - BACKDATED)
        .not_valid_after(end)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _names(node: str, hosts: Iterable[str]) -> x509.SubjectAlternativeName:
    """Return the names of a certificate: the node's id, by which peers know it, and names for clients."""
    names: list[x509.GeneralName] = [x509.DNSName(node)]
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            if not _HOST.fullmatch(host):
                raise CommandError(f"--host: {host[:60]!r} is neither a host name nor an IP address") from None
            if host != node:
                names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)


def _read_certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CommandError(f"{file}: this certificate cannot be read: {error}") from error


def _read_key(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CommandError(f"{file}: this private key cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CommandError(f"{file}: expected an EC key, as `replicator ca` makes them")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_new(file: Path, content: bytes, mode: int) -> None:
    """Write a file that does not exist yet, with this mode from its first byte on."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as stream:  # noqa: PTH123  it is open already
        stream.write(content)
        stream.flush()
        os.fsync(descriptor)


def _cannot_write(error: OSError, directory: Path) -> CommandError:
    return CommandError(f"{error.filename or directory}: {error.strerror}; check --dir")
