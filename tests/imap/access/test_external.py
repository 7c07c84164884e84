"""EXTERNAL (RFC 4422 appendix A) with certificates of clients, over real TLS."""

from __future__ import annotations

import logging
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme
from cryptography.x509.oid import ExtendedKeyUsageOID

from replicator.config import CertificateConfig, ClientCertificatesConfig
from replicator.errors import ConfigError
from replicator.imap.server import serve_imap
from replicator.imap.services import ImapServices
from replicator.network.certificates import Certificates, identity_of
from replicator.users import UserDirectory, delete_user
from tests.client_authority import DAY, NOW, ClientAuthority
from tests.imap.access.farewells import EXPIRED
from tests.imap.arrangements import ARRANGEMENTS
from tests.imap.client import Client, services
from tests.one_door import remote_users
from tests.one_node import HookedMail, run_inline

MAIL = "mail.example.org"
NO = "t NO [AUTHENTICATIONFAILED] The certificate is not accepted; the server's log says why"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def clients() -> ClientAuthority:
    return ClientAuthority.create()


@pytest.fixture
def shown(authority: trustme.CA, tmp_path: Path) -> list[CertificateConfig]:
    """The node's certificates, one for each of two names."""
    configured = []
    for name in ("first.example.org", MAIL):
        issued = authority.issue_cert(name)
        configured.append(CertificateConfig(tmp_path / f"{name}.pem", tmp_path / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(configured[-1].file)
        issued.private_key_pem.write_to_path(configured[-1].key)
    return configured


@pytest.fixture
def certificates(shown: list[CertificateConfig], clients: ClientAuthority, tmp_path: Path) -> Certificates:
    clients.write_to(tmp_path / "clients.pem")
    clients.revoke(tmp_path / "crl.pem", 99)
    return Certificates(
        None, shown, of_clients=ClientCertificatesConfig(tmp_path / "clients.pem", tmp_path / "crl.pem")
    )


@pytest.fixture(params=ARRANGEMENTS)
async def served(
    mail: HookedMail, users: UserDirectory, certificates: Certificates, path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[ImapServices]:
    if request.param == "in the core":
        yield replace(services(mail), users=users, tls=certificates.for_imap)
        return
    async with remote_users(users, UserDirectory(path, key=users.key)) as (apart, _):
        yield replace(services(mail), users=apart, tls=certificates.for_imap)


@dataclass
class Door:
    """The IMAP door of a node, and the authorities of its certificate and of its clients'."""

    served: ImapServices
    certificates: Certificates
    authority: trustme.CA
    clients: ClientAuthority
    directory: Path

    @asynccontextmanager
    async def over_tls(
        self, certificate: Path | None, *, tls_1_2: bool = False, name: str = MAIL
    ) -> AsyncIterator[Client]:
        """Connect a client from another machine that shows this certificate, over TLS from the beginning."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if certificate is not None:
            context.load_cert_chain(certificate)
        if tls_1_2:
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(serve_imap, theirs, self.served, address="192.0.2.7", tls_first=True))
            yield Client(trio.SSLStream(ours, context, server_hostname=name, https_compatible=True))
            await ours.aclose()


@pytest.fixture
def door(
    served: ImapServices,
    certificates: Certificates,
    authority: trustme.CA,
    clients: ClientAuthority,
    tmp_path: Path,
) -> Door:
    return Door(served, certificates, authority, clients, tmp_path)


async def alert(client: Client) -> str | None:
    """Return the alert of TLS by which the client learns why it gets no connection."""
    with pytest.raises(trio.BrokenResourceError) as broken:
        await client.line()
    assert isinstance(broken.value.__cause__, ssl.SSLError)
    return broken.value.__cause__.reason


def external(user: str = "") -> str:
    return f"AUTHENTICATE EXTERNAL {b64encode(user.encode()).decode() or '='}"


@pytest.mark.parametrize("tls_1_2", [False, True])
@pytest.mark.parametrize("name", [MAIL, "first.example.org"])
async def test_certificate_logs_its_user_in(door: Door, name: str, *, tls_1_2: bool) -> None:
    certificate = door.clients.issue(door.directory / "alice.pem", "someone", emails=["Alice@Example.org"])
    for user in ("", "alice", "alice+x@example.org"):
        async with door.over_tls(certificate, tls_1_2=tls_1_2, name=name) as client:
            assert "AUTH=EXTERNAL AUTH=PLAIN" in await client.line()
            assert (await client.run(external(user)))[-1].startswith("t OK")
            assert (await client.run("SELECT INBOX"))[-1].startswith("t OK")


async def test_empty_initial_response_may_come_later(door: Door) -> None:
    certificate = door.clients.issue(door.directory / "alice.pem", "alice")
    async with door.over_tls(certificate) as client:
        await client.line()
        await client.send("t AUTHENTICATE EXTERNAL\r\n")
        assert await client.line() == "+ "
        await client.send("\r\n")
        assert (await client.line()).startswith("t OK")


@pytest.mark.parametrize(
    ("names", "emails", "user"),
    [
        (["bob"], [], "bob"),
        (["bob@example.org"], [], "bob"),
        (["bob"], ["alice@example.org"], "alice"),
        (["bob"], ["alice@example.org", "bob@example.org"], None),
        (["alice", "bob"], [], None),
        ([], [], None),
    ],
)
async def test_one_name_of_the_certificate_counts(
    door: Door, names: list[str], emails: list[str], user: str | None
) -> None:
    certificate = door.clients.issue(door.directory / "client.pem", *names, emails=emails)
    async with door.over_tls(certificate) as client:
        assert ("AUTH=EXTERNAL" in await client.line()) is (user is not None)
        if user is None:
            assert (await client.run(external()))[-1].startswith("t NO [CANNOT] Mechanism EXTERNAL is not supported")
            assert (await client.run("LOGIN alice secret"))[-1].startswith("t OK")
        else:
            other = {"alice": "bob", "bob": "alice"}[user]
            assert await client.run(external(other)) == [NO]
            assert (await client.run(external(user)))[-1].startswith("t OK")


async def test_client_without_a_certificate_logs_in_by_password(door: Door) -> None:
    async with door.over_tls(None) as client:
        assert "EXTERNAL" not in await client.line()
        assert (await client.run(external()))[-1].startswith("t NO [CANNOT]")
        assert (await client.run("LOGIN alice secret"))[-1].startswith("t OK")


async def test_refusals_are_logged(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "replicator.imap")
    certificate = door.clients.issue(door.directory / "carol.pem", "carol")
    async with door.over_tls(certificate) as client:
        await client.line()
        assert await client.run(external()) == [NO]
        assert await client.run(external("alice")) == [NO]
        assert (await client.run("AUTHENTICATE EXTERNAL /w=="))[-1].startswith("t BAD Expected base64")
    why = "the certificate is for carol, who is no user here or not the one that the client names"
    assert [record.getMessage() for record in caplog.records] == [
        f'login failed user={user} client=192.0.2.7 mechanism=EXTERNAL reason="{why}"' for user in ("carol", "alice")
    ]


@pytest.mark.parametrize("tls_1_2", [False, True])
@pytest.mark.parametrize(
    ("what", "why", "told"),
    [
        ("expired", "certificate has expired", "SSLV3_ALERT_CERTIFICATE_EXPIRED"),
        ("foreign", "unable to get local issuer certificate", "TLSV1_ALERT_UNKNOWN_CA"),
        ("revoked", "certificate revoked", "SSLV3_ALERT_CERTIFICATE_REVOKED"),
        ("for servers", "unsuitable certificate purpose", "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE"),
        ("no list", "CRL has expired", "SSLV3_ALERT_CERTIFICATE_EXPIRED"),
    ],
)
async def test_certificate_that_is_not_valid_fails_the_handshake(
    door: Door, caplog: pytest.LogCaptureFixture, what: str, why: str, told: str, *, tls_1_2: bool
) -> None:
    """A client with such a certificate cannot log in by its password either; one without a certificate can."""
    caplog.set_level(logging.INFO, "replicator.imap")
    issuing = ClientAuthority.create("others") if what == "foreign" else door.clients
    certificate = issuing.issue(
        door.directory / "client.pem",
        "alice",
        expires=NOW - DAY if what == "expired" else NOW + DAY,
        serial=99 if what == "revoked" else 7,
        usage=ExtendedKeyUsageOID.SERVER_AUTH if what == "for servers" else ExtendedKeyUsageOID.CLIENT_AUTH,
    )
    if what == "no list":
        door.clients.revoke(door.directory / "crl.pem", until=NOW - DAY)
        door.certificates.install(door.certificates.read())
    async with door.over_tls(certificate, tls_1_2=tls_1_2) as client:
        assert await alert(client) == told
    [said] = [record.getMessage() for record in caplog.records]
    assert said == f'TLS refused client=192.0.2.7 reason="the client\'s certificate cannot be verified: {why}"'
    async with door.over_tls(None) as client:
        await client.line()
        assert (await client.run("LOGIN alice secret"))[-1].startswith("t OK")


async def test_certificate_that_is_revoked_at_a_reload_is_refused(door: Door) -> None:
    certificate = door.clients.issue(door.directory / "alice.pem", "alice", serial=100)
    async with door.over_tls(certificate) as client:
        assert "AUTH=EXTERNAL" in await client.line()
    door.clients.revoke(door.directory / "crl.pem", 100)
    door.certificates.install(door.certificates.read())
    async with door.over_tls(certificate) as client:
        assert await alert(client) == "SSLV3_ALERT_CERTIFICATE_REVOKED"


async def test_session_ends_with_its_certificate_and_its_user(door: Door, path: Path) -> None:
    now_ms = int(NOW.timestamp() * 1000)
    users = UserDirectory(path, run_in_thread=run_inline, clock_ms=lambda: now_ms)
    door.served = replace(door.served, users=users)
    certificate = door.clients.issue(door.directory / "alice.pem", "alice")
    for end in ("certificate", "user"):
        async with door.over_tls(certificate) as client:
            await client.line()
            assert (await client.run(external()))[-1].startswith("t OK")
            now_ms += 23 * 3600 * 1000
            assert (await client.run("NOOP"))[-1].startswith("t OK")
            if end == "user":
                delete_user(path, "alice")
            now_ms += 3600 * 1000 if end == "certificate" else 0
            assert (await client.run("NOOP"))[0] == EXPIRED
            now_ms = int(NOW.timestamp() * 1000)


async def test_other_doors_ask_for_no_certificate(
    certificates: Certificates, authority: trustme.CA, tmp_path: Path
) -> None:
    """An MTA or a browser may have one of another CA, which must not end its connections."""
    foreign = ClientAuthority.create("others").issue(tmp_path / "mx.pem", "mx")
    context, accepting = ssl.create_default_context(), certificates.for_clients()
    assert accepting is not None
    authority.configure_trust(context)
    context.load_cert_chain(foreign)
    ours, theirs = trio.testing.memory_stream_pair()
    server = trio.SSLStream(theirs, accepting, server_side=True)
    client = trio.SSLStream(ours, context, server_hostname=MAIL)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, b"x")
        assert await server.receive_some() == b"x"
    assert server.getpeercert() is None


@pytest.mark.parametrize("name", ["clients.pem", "crl.pem"])
def test_broken_file_is_refused_by_name(certificates: Certificates, tmp_path: Path, name: str) -> None:
    before = certificates.for_imap()
    (tmp_path / name).write_text("nonsense\n", "ascii")
    with pytest.raises(ConfigError, match=rf"^\[client_certificates\]: cannot .*{name}"):
        certificates.install(certificates.read())
    assert certificates.for_imap() is before
    (tmp_path / name).write_bytes((tmp_path / f"{MAIL}.key").read_bytes())
    with pytest.raises(ConfigError, match=rf"^\[client_certificates\]: cannot .*{name}"):
        certificates.install(certificates.read())


def test_authority_of_clients_is_shown_with_the_other_certificates(certificates: Certificates, tmp_path: Path) -> None:
    assert certificates.files()[tmp_path / "clients.pem"].name == "clients"


@pytest.mark.parametrize("tls_1_2", [False, True])
def test_session_that_tls_resumes_counts_until_the_next_reload(
    certificates: Certificates, authority: trustme.CA, clients: ClientAuthority, tmp_path: Path, *, tls_1_2: bool
) -> None:
    """A resumed handshake shows and verifies no certificate (RFC 8446 section 2.2); TLS remembers the first one."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.load_cert_chain(clients.issue(tmp_path / "alice.pem", "alice", serial=100))
    if tls_1_2:
        context.maximum_version = ssl.TLSVersion.TLSv1_2

    def connect(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None, str | None]:
        """Return the session, whether it was resumed, and whom the client's certificate names."""
        ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(ours, theirs, server_hostname=MAIL, session=session)
        accepting = certificates.for_imap()
        assert accepting is not None
        server = accepting.wrap_bio(theirs, ours, server_side=True)
        for side in (client, server, client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        server.write(b"x")
        assert client.read(1) == b"x"
        identity = identity_of(server.getpeercert(binary_form=True) or b"")
        return client.session, client.session_reused, identity.name if identity else None

    session, resumed, name = connect(None)
    assert (resumed, name) == (False, "alice")
    assert connect(session)[1:] == (True, "alice")
    clients.revoke(tmp_path / "crl.pem", 100)
    certificates.install(certificates.read())
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate revoked"):
        connect(session)
