"""A rehearsal of the handshake between nodes: it tells whether others will accept a node's certificate.

The node's certificate stands on both sides, and everything stays in memory. So the rules are those of real links:
OpenSSL's for the certificate and its CA, and that of `links/handshake.py` for the name.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

from replicator.config import TlsConfig
from replicator.network.certificates import Certificates
from replicator.network.tls_stream import UNVERIFIED, names_of

ROUNDS = 3
"""How often each side speaks: one round more than a handshake of TLS 1.3 takes."""


def certificate_faults(node: str, tls: TlsConfig | None, certificates: Certificates) -> Iterator[str]:
    """Yield what is wrong with certificates that can be read: with their dates, and with that for links of `node`."""
    now = datetime.now(UTC)
    expired = {file: certificate for file, certificate in certificates.files().items() if certificate.expires <= now}
    for file, certificate in expired.items():
        yield f"{file} has expired ({certificate}); renew it"
    dialling, accepting = certificates.dialling(), certificates.accepting()
    if tls is None or dialling is None or accepting is None or expired.keys() & {tls.certificate, tls.ca}:
        return
    try:
        names = _names_shown(dialling, accepting)
    except ssl.SSLCertVerificationError as error:
        what = UNVERIFIED.get(error.verify_code, f"cannot be used for links: {error.verify_message}")
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
