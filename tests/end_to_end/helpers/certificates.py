"""Certificates of nodes, as files."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import trustme

from replicator.config import TlsConfig


def certificate(ca: trustme.CA, directory: Path, sid: str, *, not_after: datetime | None = None) -> TlsConfig:
    """Write a certificate that names this node, and return the paths. It is valid until `not_after`."""
    issued = ca.issue_cert("localhost", "127.0.0.1", common_name=sid, not_after=not_after)
    paths = TlsConfig(directory / f"{sid}.pem", directory / f"{sid}.key", directory / f"{sid}-ca.pem")
    issued.cert_chain_pems[0].write_to_path(paths.certificate)
    issued.private_key_pem.write_to_path(paths.key)
    assert paths.ca is not None
    ca.cert_pem.write_to_path(paths.ca)
    return paths
