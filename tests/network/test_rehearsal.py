"""What a node finds wrong with its own certificates: whatever other nodes would refuse, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from replicator.config import ClientCertificatesConfig, TlsConfig
from replicator.network.certificates import Certificates
from replicator.network.rehearsal import certificate_faults

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
PAST, LONG_AGO, SOON, LATE = NOW - DAY, NOW - 2 * DAY, NOW + DAY, NOW + 365 * DAY

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def ecdsa_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def rsa_key() -> Key:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass(frozen=True)
class Issued:
    certificate: x509.Certificate
    key: Key

    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


def issue(
    name: str,
    issuer: Issued | None,
    key: Key,
    *,
    begins: datetime = PAST,
    ends: datetime = LATE,
    uses: Sequence[x509.ObjectIdentifier] = (),
    is_ca: bool = True,
) -> Issued:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if uses:
        made = made.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return Issued(made.sign(key if issuer is None else issuer.key, hashes.SHA256()), key)


def faults(directory: Path, leaf: Issued, chain: Sequence[Issued], *cas: Issued) -> list[str]:
    tls = TlsConfig(directory / "dc1.pem", directory / "dc1.key", directory / "ca.pem")
    tls.certificate.write_bytes(b"".join(one.pem() for one in (leaf, *chain)))
    tls.key.write_bytes(leaf.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (directory / "ca.pem").write_bytes(b"".join(one.pem() for one in cas))
    found = certificate_faults("dc1", tls, Certificates(tls))
    return [fault.replace(f"{directory}/", "") for fault in found]


@pytest.fixture
def root() -> Issued:
    return issue("root", None, ecdsa_key())


@pytest.mark.parametrize("key", [ecdsa_key(), rsa_key()], ids=["ECDSA", "RSA"])
def test_good_certificates_have_no_faults(tmp_path: Path, root: Issued, key: Key) -> None:
    between = issue("between", root, key)
    leaf = issue("dc1", between, key, is_ca=False)
    assert faults(tmp_path, leaf, [between], root) == []
    assert faults(tmp_path, leaf, [], root, between) == []
    assert faults(tmp_path, issue("dc1", root, key, is_ca=False), [], root) == []


def test_a_certificate_without_those_between_it_and_the_ca_is_a_fault(tmp_path: Path, root: Issued) -> None:
    leaf = issue("dc1", issue("between", root, ecdsa_key()), ecdsa_key(), is_ca=False)
    [fault] = faults(tmp_path, leaf, [], root)
    assert fault.startswith("dc1.pem is not signed by this node's [tls] ca")


@pytest.mark.parametrize("in_chain", [True, False])
def test_an_expired_certificate_above_the_node_s_is_named(tmp_path: Path, root: Issued, *, in_chain: bool) -> None:
    between = issue("between", root, ecdsa_key(), begins=LONG_AGO, ends=PAST)
    leaf = issue("dc1", between, ecdsa_key(), is_ca=False)
    file = "dc1.pem" if in_chain else "ca.pem"
    [fault] = faults(tmp_path, leaf, [between] if in_chain else [], *([root] if in_chain else [root, between]))
    assert fault == f"dc1.pem cannot be used for links: between, until {PAST:%Y-%m-%d}, in {file} has expired"


def test_a_certificate_above_the_node_s_that_is_not_valid_yet_is_named(tmp_path: Path, root: Issued) -> None:
    between = issue("between", root, ecdsa_key(), begins=SOON)
    [fault] = faults(tmp_path, issue("dc1", between, ecdsa_key(), is_ca=False), [between], root)
    said = f"between, until {LATE:%Y-%m-%d}, in dc1.pem is not valid yet; check the clocks of both nodes"
    assert fault == f"dc1.pem cannot be used for links: {said}"


def test_a_certificate_of_the_node_that_is_not_valid_yet_is_a_fault(tmp_path: Path, root: Issued) -> None:
    [fault] = faults(tmp_path, issue("dc1", root, ecdsa_key(), begins=SOON, is_ca=False), [], root)
    assert fault.startswith("dc1.pem is not valid yet; check the clocks of both nodes (dc1, until ")


@pytest.mark.parametrize("use", [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
def test_a_certificate_that_is_good_for_one_side_only_is_a_fault(
    tmp_path: Path, root: Issued, use: x509.ObjectIdentifier
) -> None:
    leaf = issue("dc1", root, ecdsa_key(), uses=[use], is_ca=False)
    [fault] = faults(tmp_path, leaf, [], root)
    assert fault.startswith("dc1.pem cannot be used for links: unsuitable certificate purpose (dc1, until ")
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    assert faults(tmp_path, issue("dc1", root, ecdsa_key(), uses=both, is_ca=False), [], root) == []


@pytest.mark.parametrize("ends", [PAST, LATE])
def test_a_list_of_revoked_certificates_that_is_out_of_date_is_a_fault(
    tmp_path: Path, root: Issued, ends: datetime
) -> None:
    made = x509.CertificateRevocationListBuilder(root.certificate.subject, LONG_AGO, ends)
    crl = tmp_path / "clients.crl"
    crl.write_bytes(made.sign(root.key, hashes.SHA256()).public_bytes(Encoding.PEM))
    ca = tmp_path / "clients.pem"
    ca.write_bytes(root.pem())
    found = certificate_faults("dc1", None, Certificates(None, of_clients=ClientCertificatesConfig(ca, crl)))
    said = f"{crl} counts until {PAST:%Y-%m-%d} only, and all certificates of clients are refused; replace it"
    assert list(found) == ([said] if ends is PAST else [])
