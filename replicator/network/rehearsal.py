"""A rehearsal of the handshake between nodes: it tells whether others will accept a node's certificate.

The node's certificate stands on both sides, and everything stays in memory. So the rules are those of real links:
OpenSSL's for the certificate and its CA, and that of `links/handshake.py` for the name.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from replicator.config import TlsConfig
from replicator.network.certificates import Certificate, Certificates
from replicator.network.tls_stream import UNVERIFIED, names_of

ROUNDS = 3
"""Times that each side speaks: one more than a handshake of TLS 1.3 takes."""

OUT_OF_DATE: Mapping[int, Callable[[x509.Certificate, datetime], bool]] = {
    9: lambda certificate, now: now < certificate.not_valid_before_utc,
    10: lambda certificate, now: now > certificate.not_valid_after_utc,
}
"""Faults of dates, by OpenSSL's X509_V_ERR code."""


def certificate_faults(node: str, tls: TlsConfig | None, certificates: Certificates) -> Iterator[str]:
    """Yield what is wrong with certificates that can be read: with their dates, and with that for links of `node`."""
    now = datetime.now(UTC)
    expired = {file: certificate for file, certificate in certificates.files().items() if certificate.expires <= now}
    for file, certificate in expired.items():
        yield f"{file} has expired ({certificate}); renew it"
    for file, ends in certificates.lists_end().items():
        if ends <= now:
            yield f"{file} counts until {ends:%Y-%m-%d} only, and all certificates of clients are refused; replace it"
    dialling, accepting = certificates.dialling(), certificates.accepting()
    if tls is None or dialling is None or accepting is None or expired.keys() & {tls.certificate, tls.ca}:
        return
    try:
        names = _names_shown(dialling, accepting)
    except ssl.SSLCertVerificationError as error:
        above = next(_out_of_date_above(tls, error.verify_code, now), None)
        what = UNVERIFIED.get(error.verify_code, f"cannot be used for links: {error.verify_message}")
        if above is not None:
            yield f"{tls.certificate} cannot be used for links: {above} {what}"
        else:
            yield f"{tls.certificate} {what} ({certificates.own()})"
        return
    except ssl.SSLError as error:
        yield f"{tls.certificate} cannot be used for links: {error.reason or error} ({certificates.own()})"
        return
    if node not in names:
        shown = ", ".join(sorted(names)) or "nobody"
        yield (
            f"{tls.certificate} names {shown}, but this node is {node}: the common name or a DNS name of a node's"
            " certificate must be its node.id"
        )


def _out_of_date_above(tls: TlsConfig, code: int, now: datetime) -> Iterator[str]:
    """Yield the certificates that may have this fault of their dates, if the node's own has not: its CA, or others."""
    is_wrong = OUT_OF_DATE.get(code)
    read = [(one, file) for file in (tls.certificate, tls.ca) if file is not None for one in _all_in(file)]
    if is_wrong is None or any(is_wrong(own, now) for own, _ in read[:1]):
        return
    for one, file in read:
        if is_wrong(one, now):
            yield f"{Certificate.of_pem(one.public_bytes(Encoding.PEM))}, in {file}"


def _all_in(file: Path) -> list[x509.Certificate]:
    """Return the certificates of a file that was read before; none if it has changed."""
    with suppress(OSError, ValueError, x509.InvalidVersion):
        return x509.load_pem_x509_certificates(file.read_bytes())
    return []


def _names_shown(dialling: ssl.SSLContext, accepting: ssl.SSLContext) -> frozenset[str]:
    """Return the names that a node sees when it dials itself. Raises SSLError if it refuses itself."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialler = dialling.wrap_bio(back, there)
    acceptor = accepting.wrap_bio(there, back, server_side=True)
    for _ in range(ROUNDS):
        for side in (dialler, acceptor):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return names_of(dialler)
