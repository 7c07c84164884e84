"""Certificates that are read again while a node runs, with real handshakes."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme

from replicator.certificates import Certificates
from replicator.errors import ConfigError
from tests.end_to_end.helpers.certificates import certificate


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


async def shown_to(trusting: trustme.CA, context: ssl.SSLContext | None) -> str:
    """Return the common name that a server with this context shows to a client."""
    assert context is not None
    client_context = ssl.create_default_context()
    trusting.configure_trust(client_context)
    near, far = trio.testing.memory_stream_pair()
    client = trio.SSLStream(near, client_context, server_hostname="localhost")
    server = trio.SSLStream(far, context, server_side=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.do_handshake)
        nursery.start_soon(server.do_handshake)
    subject = dict(part[0] for part in client.getpeercert()["subject"])
    return str(subject["commonName"])


async def test_handshakes_after_a_reload_use_the_new_certificate(tmp_path: Path, ca: trustme.CA) -> None:
    paths = certificate(ca, tmp_path, "dc1")
    certificates = Certificates(paths)
    new = certificate(ca, tmp_path, "dc2")
    new.certificate.replace(paths.certificate)
    new.key.replace(paths.key)
    assert await shown_to(ca, certificates.for_clients()) == "dc1"
    certificates.reload()
    assert await shown_to(ca, certificates.for_clients()) == "dc2"


@pytest.mark.parametrize("broken", ["certificate", "key", "ca"])
async def test_broken_file_is_refused_and_the_old_certificate_stays(
    tmp_path: Path, ca: trustme.CA, broken: str
) -> None:
    paths = certificate(ca, tmp_path, "dc1")
    certificates = Certificates(paths)
    (tmp_path / getattr(paths, broken)).write_text("no certificate\n", "ascii")
    with pytest.raises(ConfigError, match=r"^\[tls\]: cannot "):
        certificates.reload()
    assert await shown_to(ca, certificates.for_clients()) == "dc1"
