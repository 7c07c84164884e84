"""Logs of two real nodes when TLS between them fails: each end names the address, the certificate and the reason."""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme

from replicator.config import Address, Config, ListenConfig, PeerConfig, default_config
from replicator.network.certificates import Certificate
from tests.end_to_end.helpers.certificates import certificate
from tests.end_to_end.helpers.in_process import free_ports, running

EXPIRED = datetime(2026, 1, 1, tzinfo=UTC)
CALLED = "a connection ended before its HELLO was accepted: "
UNKNOWN = "all nodes need certificates of one CA"


def two_nodes(directory: Path, near: trustme.CA, far: trustme.CA) -> tuple[Config, Config]:
    """Return dc1, which dials, and dc2, with certificates of these authorities."""
    first, second = (Address("127.0.0.1", port) for port in free_ports(2))

    def node(sid: str, own: Address, other: str, there: Address, ca: trustme.CA) -> Config:
        listen, peers = ListenConfig(peer=own), (PeerConfig(other, there),)
        return replace(default_config(sid, directory, listen=listen, peers=peers), tls=certificate(ca, directory, sid))

    return node("dc1", first, "dc2", second, near), node("dc2", second, "dc1", first, far)


def expired(ca: trustme.CA, directory: Path, config: Config) -> Config:
    return replace(config, tls=certificate(ca, directory, config.node.id, not_after=EXPIRED))


async def logged(caplog: pytest.LogCaptureFixture, nodes: list[Config], *lines: str) -> None:
    """Run the nodes until all these lines have been logged."""
    with trio.fail_after(60):
        async with running(nodes):
            while not all(any(record.getMessage() == line for record in caplog.records) for line in lines):  # noqa: ASYNC110 - of the log
                await trio.sleep(0.01)


async def test_certificate_that_has_expired_at_the_node_that_is_dialled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = trustme.CA()
    near, far = two_nodes(tmp_path, ca, ca)
    await logged(
        caplog,
        [near, expired(ca, tmp_path, far)],
        f"link to dc2 is down: TLS with {far.listen.peer}: its certificate has expired (dc2, until 2026-01-01)",
        f"{CALLED}TLS with 127.0.0.1: this node's certificate has expired, by the clock of the other side"
        " (dc2, until 2026-01-01)",
    )


async def test_certificate_that_has_expired_at_the_node_that_dials(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = trustme.CA()
    near, far = two_nodes(tmp_path, ca, ca)
    await logged(
        caplog,
        [expired(ca, tmp_path, near), far],
        f"link to dc2 is down: TLS with {far.listen.peer}: this node's certificate has expired, by the clock of the"
        " other side (dc1, until 2026-01-01)",
        f"{CALLED}TLS with 127.0.0.1: its certificate has expired",
    )


async def test_certificate_of_an_unknown_authority(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    near, far = two_nodes(tmp_path, trustme.CA(), trustme.CA())
    assert far.tls is not None
    other = Certificate.of_pem(far.tls.certificate.read_bytes())
    await logged(
        caplog,
        [near, far],
        f"link to dc2 is down: TLS with {far.listen.peer}: its certificate is not signed by this node's [tls] ca;"
        f" {UNKNOWN} ({other})",
        f"{CALLED}TLS with 127.0.0.1: this node's certificate is not signed by the other side's [tls] ca;"
        f" {UNKNOWN} ({other})",
    )


async def test_certificate_that_makes_no_sense(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """OpenSSL shows a certificate of version 10, of which nothing else can be told."""
    near, far = two_nodes(tmp_path, trustme.CA(), trustme.CA())
    assert near.tls is not None
    assert far.tls is not None
    der = ssl.PEM_cert_to_DER_cert(far.tls.certificate.read_text("ascii"))
    strange = ssl.DER_cert_to_PEM_cert(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (tmp_path / "strange.pem").write_text(strange, "ascii")
    server.load_cert_chain(tmp_path / "strange.pem", far.tls.key)

    async def answer(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await trio.SSLStream(stream, server, server_side=True).do_handshake()

    assert isinstance(far.listen.peer, Address)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, answer, far.listen.peer.port, host="127.0.0.1"))
        await logged(
            caplog,
            [near],
            f"link to dc2 is down: TLS with {far.listen.peer}: its certificate is not signed by this node's [tls] ca;"
            f" {UNKNOWN}",
        )
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("at", ["the node that dials", "the node that is dialled"])
async def test_node_without_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture, at: str) -> None:
    ca = trustme.CA()
    near, far = two_nodes(tmp_path, ca, ca)
    if at == "the node that dials":
        near = replace(near, tls=None)
        lines = (
            (
                "link to dc2 is down: the connection was closed before HELLO; if the other node has [tls], this one"
                " needs it too"
            ),
            f"{CALLED}TLS with 127.0.0.1: the other side does not speak TLS; if it is a node, it needs [tls] too",
        )
    else:
        far = replace(far, tls=None)
        lines = (
            (
                f"link to dc2 is down: TLS with {far.listen.peer}: the other side closed the connection before TLS"
                " began: either it has no [tls], or its log says why"
            ),
            f"{CALLED}the other side speaks TLS, and this node has no [tls] with a ca",
        )
    await logged(caplog, [near, far], *lines)


async def test_certificate_of_another_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ca = trustme.CA()
    near, far = two_nodes(tmp_path, ca, ca)
    impostor = replace(far, tls=certificate(ca, tmp_path, "dc3"))
    await logged(
        caplog,
        [near, impostor],
        f"link to dc2 is down: the certificate of {far.listen.peer} names dc3, localhost, and dc2 was expected;"
        " the common name or a DNS name of a node's certificate must be its node.id",
    )


def unreadable(ca: trustme.CA, directory: Path, config: Config) -> ssl.SSLContext:
    """Return the context of a server whose certificate OpenSSL takes, and whose date is none."""
    tls = certificate(ca, directory, config.node.id)
    der = ssl.PEM_cert_to_DER_cert(tls.certificate.read_text("ascii"))
    date = b"\x17\x0d000101"  # in DER: a UTCTime of 13 characters, on 1 January 2000
    assert date in der
    tls.certificate.write_text(ssl.DER_cert_to_PEM_cert(der.replace(date, b"\x17\x0d999999")), "ascii")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    return context


async def test_certificate_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    near, far = two_nodes(tmp_path, trustme.CA(), trustme.CA())
    assert isinstance(far.listen.peer, Address)
    context = unreadable(trustme.CA(), tmp_path, far)

    async def answer(stream: trio.SSLStream[trio.SocketStream]) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.do_handshake()
        await trio.aclose_forcefully(stream)

    serve = partial(trio.serve_ssl_over_tcp, answer, far.listen.peer.port, context, host=far.listen.peer.host)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        await logged(
            caplog,
            [near],
            f"link to dc2 is down: TLS with {far.listen.peer}: its certificate is not signed by this node's [tls] ca;"
            f" {UNKNOWN}",
        )
        nursery.cancel_scope.cancel()
