"""Certificates that are read again while a node runs, with real handshakes."""

from __future__ import annotations

import hashlib
import os
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from replicator.config import CertificateConfig, OauthConfig
from replicator.errors import ConfigError
from replicator.network.certificates import Certificate, Certificates, ServerContext
from tests.end_to_end.helpers.certificates import certificate

NOBODY = 65534


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize(("signed_by", "hashed_by"), [("SHA-256", "sha256"), ("SHA-384", "sha384"), ("Ed25519", None)])
def test_end_point_is_hashed_as_the_certificate_was_signed(
    tmp_path: Path, signed_by: str, hashed_by: str | None
) -> None:
    """RFC 5929 section 4.1; undefined for signatures without a hash of their own."""
    key = ed25519.Ed25519PrivateKey.generate() if hashed_by is None else ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mail")])
    now = datetime.now(UTC)
    unsigned = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    algorithm = {"SHA-256": hashes.SHA256(), "SHA-384": hashes.SHA384(), "Ed25519": None}[signed_by]
    signed = unsigned.sign(key, algorithm)
    paths = CertificateConfig(tmp_path / "mail.pem", tmp_path / "mail.key")
    paths.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    context = Certificates(None, [paths]).for_clients()
    assert isinstance(context, ServerContext)
    der = signed.public_bytes(serialization.Encoding.DER)
    assert context.end_point == (hashed_by and hashlib.new(hashed_by, der).digest())


async def shown_to(trusting: trustme.CA, context: ssl.SSLContext | None, name: str = "localhost") -> str:
    """Return the common name that a server with this context shows to a client that asks for `name`."""
    assert context is not None
    client_context = ssl.create_default_context()
    trusting.configure_trust(client_context)
    client_context.check_hostname = name == "localhost"
    near, far = trio.testing.memory_stream_pair()
    client = trio.SSLStream(near, client_context, server_hostname=name)
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
    certificates.install(certificates.read())
    assert await shown_to(ca, certificates.for_clients()) == "dc2"


@pytest.mark.parametrize("broken", ["certificate", "key", "ca"])
async def test_broken_file_is_refused_and_the_old_certificate_stays(
    tmp_path: Path, ca: trustme.CA, broken: str
) -> None:
    paths = certificate(ca, tmp_path, "dc1")
    certificates = Certificates(paths)
    (tmp_path / getattr(paths, broken)).write_text("no certificate\n", "ascii")
    with pytest.raises(ConfigError, match=r"^\[tls\]: cannot "):
        certificates.install(certificates.read())
    assert await shown_to(ca, certificates.for_clients()) == "dc1"


@pytest.mark.parametrize(
    ("broken", "content", "why"),
    [
        ("certificate", b"", r"/dc1\.pem: it does not begin with a usable certificate in the form PEM \("),
        ("certificate", None, r"/dc1\.pem: No such file or directory$"),
        ("ca", b"", r"/dc1-ca\.pem: it does not begin with a usable certificate in the form PEM \("),
        ("key", b"", r"dc1\.key: one of them does not hold what it should, in the form PEM$"),
        ("key", trustme.CA().issue_cert("dc2").private_key_pem.bytes(), r"dc1\.key: the key is another certificate's$"),
    ],
)
def test_error_names_the_file_and_what_is_wrong_with_it(
    tmp_path: Path, ca: trustme.CA, broken: str, content: bytes | None, why: str
) -> None:
    paths = certificate(ca, tmp_path, "dc1")
    certificates = Certificates(paths)
    file: Path = getattr(paths, broken)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=why):
        certificates.install(certificates.read())


def test_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(tmp_path: Path, ca: trustme.CA) -> None:
    paths = certificate(ca, tmp_path, "dc1")
    certificates = Certificates(paths)
    key = serialization.load_pem_private_key(paths.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    kind = serialization.PrivateFormat.PKCS8
    paths.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, locked))
    with pytest.raises(ConfigError, match="the key has a passphrase; remove it"):
        certificates.install(certificates.read())


def test_name_of_a_certificate_is_short_and_printable() -> None:
    pem = trustme.CA().issue_cert(common_name="dc2\n\x1b[31m" + 40 * "x").cert_chain_pems[0].bytes()
    assert Certificate.of_pem(pem).name == "dc2??[31m" + 40 * "x"


def for_clients(ca: trustme.CA, directory: Path, name: str, *names: str) -> CertificateConfig:
    issued = ca.issue_cert(*names, common_name=name)
    config = CertificateConfig(directory / f"{name}.pem", directory / f"{name}.key")
    issued.cert_chain_pems[0].write_to_path(config.file)
    issued.private_key_pem.write_to_path(config.key)
    return config


async def test_clients_are_shown_the_certificate_with_the_name_that_they_ask_for(
    tmp_path: Path, ca: trustme.CA
) -> None:
    own = certificate(ca, tmp_path, "dc1")
    certificates = Certificates(
        own,
        [
            for_clients(ca, tmp_path, "first", "mail.example.org"),
            for_clients(ca, tmp_path, "second", "imap.example.net", "*.example.com"),
        ],
    )
    shown = {
        name: await shown_to(ca, certificates.for_clients(), name)
        for name in (
            "mail.example.org",
            "IMAP.example.net",
            "any.example.com",
            "too.deep.example.com",
            "example.com",
            "unknown.example",
        )
    }
    assert list(shown.values()) == ["first", "second", "second", "first", "first", "first"]
    assert {file.stem for file in certificates.files()} == {"dc1", "dc1-ca", "first", "second"}
    new = for_clients(ca, tmp_path, "third", "imap.example.net")
    new.file.replace(tmp_path / "second.pem")
    new.key.replace(tmp_path / "second.key")
    certificates.install(certificates.read())
    assert await shown_to(ca, certificates.for_clients(), "imap.example.net") == "third"
    (tmp_path / "second.key").write_text("no key\n", "ascii")
    with pytest.raises(ConfigError, match=r"^\[\[certificate\]\]: cannot use .*second.pem with its key .*second.key"):
        certificates.install(certificates.read())


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09"),  # version 3 of X.509: version 10
        (b"\x55\x1d\x23", b"\x55\x1d\x11"),  # the key of the CA: a second extension for names
    ],
)
async def test_certificate_that_makes_no_sense_is_refused_and_the_old_one_stays(
    tmp_path: Path, ca: trustme.CA, was: bytes, becomes: bytes
) -> None:
    config = for_clients(ca, tmp_path, "first", "localhost")
    certificates = Certificates(None, [config])
    der = ssl.PEM_cert_to_DER_cert(config.file.read_text("ascii"))
    config.file.write_text(ssl.DER_cert_to_PEM_cert(der.replace(was, becomes)), "ascii")
    with pytest.raises(ConfigError, match=r"^\[\[certificate\]\]: cannot read .*first\.pem"):
        certificates.install(certificates.read())
    assert await shown_to(ca, certificates.for_clients()) == "first"


def test_old_versions_of_tls_are_refused(tmp_path: Path, ca: trustme.CA) -> None:
    own = certificate(ca, tmp_path, "dc1")
    for shown in ((), (for_clients(ca, tmp_path, "first", "mail.example.org"),)):
        certificates = Certificates(own, shown)
        for context in (certificates.for_clients(), certificates.accepting(), certificates.dialling()):
            assert context is not None
            assert context.minimum_version == ssl.TLSVersion.TLSv1_2


async def test_clients_need_no_tls_between_nodes(tmp_path: Path, ca: trustme.CA) -> None:
    certificates = Certificates(None, [for_clients(ca, tmp_path, "first", "localhost")])
    assert await shown_to(ca, certificates.for_clients()) == "first"
    assert certificates.accepting() is None


def test_authority_of_the_identity_provider_is_read_with_the_certificates(tmp_path: Path, ca: trustme.CA) -> None:
    file = tmp_path / "id-ca.pem"
    ca.cert_pem.write_to_path(file)
    oauth = OauthConfig("https://id.example.org", "mail", "https://id.example.org/keys", "email", file)
    certificates = Certificates(None, oauth=oauth)
    context = certificates.for_provider()
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(context.get_ca_certs()) == 1  # and not those of the system
    assert list(certificates.files()) == [file]
    file.write_text("nonsense\n", "ascii")
    with pytest.raises(ConfigError, match=r"^\[oauth\]: cannot "):
        certificates.install(certificates.read())
    assert certificates.for_provider() is context
    assert Certificates(None, oauth=replace(oauth, jwks=tmp_path / "keys.json", ca=None)).for_provider() is None


def test_a_file_that_the_nodes_user_may_not_read_is_named_with_what_is_needed(tmp_path: Path, ca: trustme.CA) -> None:
    paths = certificate(ca, tmp_path, "dc1")
    paths.certificate.chmod(0)
    user = os.geteuid()
    os.seteuid(user or NOBODY)  # root reads whatever it likes
    try:
        with pytest.raises(ConfigError, match=r"dc1\.pem: Permission denied; the node's user must be able to read it"):
            Certificates(paths)
    finally:
        os.seteuid(user)
