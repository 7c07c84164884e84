"""Certificates: [tls] between nodes, [[certificate]] for clients, [client_certificates] of clients."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from replicator.config import values
from replicator.config.formatting import path_text
from replicator.config.source import Section


class TlsMode(StrEnum):
    """Protection of links: by certificates of both ends, or by none."""

    MUTUAL = "mutual"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """PEM files. With `ca`, nodes authenticate each other: both present a certificate signed by that CA."""

    certificate: Path
    key: Path
    ca: Path | None = None


def read_tls(section: Section, directory: Path, file: values.PathParser) -> tuple[TlsConfig | None, bool]:
    """Read [tls]. Return the certificates, and True if links go without."""
    mode = section.take("mode", values.choice(TlsMode), TlsMode.MUTUAL)
    if not section.given or mode is TlsMode.NONE:
        for key in ("certificate", "key", "ca"):  # such a key in another section may be meant for this one
            if section.take(key, file, None) is not None:
                section.problem(key, 'it has no use with mode = "none"; leave one of the two out')
        return None, mode is TlsMode.NONE
    return TlsConfig(
        certificate=section.take_required("certificate", file, directory / "node.pem"),
        key=section.take_required("key", file, directory / "node.key"),
        ca=section.take("ca", file, None),
    ), False


def format_tls(tls: TlsConfig | None, directory: Path, *, plain_links: bool = False) -> str:
    """Return [tls] as a file in `directory` has it; empty if it has none."""
    if tls is None:
        return '[tls]\nmode = "none"    # links are not encrypted\n' if plain_links else ""
    ca = "" if tls.ca is None else f"ca = {path_text(tls.ca, directory)}    # signs the certificates of all nodes\n"
    return f"[tls]\ncertificate = {path_text(tls.certificate, directory)}\nkey = {path_text(tls.key, directory)}\n{ca}"


@dataclass(frozen=True, slots=True)
class CertificateConfig:
    """PEM files of a certificate, with those that lead to its CA, and of its key: for mail clients and MTAs."""

    file: Path
    key: Path


def read_certificate(section: Section, directory: Path, file: values.PathParser) -> CertificateConfig:
    """Read a [[certificate]]."""
    return CertificateConfig(
        file=section.take_required("file", file, directory / "mail.pem"),
        key=section.take_required("key", file, directory / "mail.key"),
    )


def format_certificate(certificate: CertificateConfig, directory: Path) -> str:
    """Return a [[certificate]] as a file in `directory` has it."""
    file, key = path_text(certificate.file, directory), path_text(certificate.key, directory)
    return f"[[certificate]]    # for mail clients and MTAs, by the names in it\nfile = {file}\nkey = {key}\n"


@dataclass(frozen=True, slots=True)
class ClientCertificatesConfig:
    """PEM files: the CA of certificates with which mail clients may log in, and its list of revoked ones (a CRL)."""

    ca: Path
    crl: Path | None = None


def read_client_certificates(
    section: Section, directory: Path, file: values.PathParser
) -> ClientCertificatesConfig | None:
    """Read [client_certificates]; None: the file has no such section."""
    if not section.given:
        section.learn("ca", "crl")
        return None
    return ClientCertificatesConfig(
        ca=section.take_required("ca", file, directory / "clients.pem"), crl=section.take("crl", file, None)
    )


def format_client_certificates(clients: ClientCertificatesConfig | None, directory: Path) -> str:
    """Return [client_certificates] as a file in `directory` has it; empty for None."""
    if clients is None:
        return ""
    crl = f"crl = {path_text(clients.crl, directory)}\n" if clients.crl else ""
    return f"[client_certificates]    # with which mail clients log in\nca = {path_text(clients.ca, directory)}\n{crl}"
