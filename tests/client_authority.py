"""A CA for certificates of mail clients, and its lists of revoked ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)
NOW = datetime.now(UTC)


@dataclass
class ClientAuthority:
    """A CA for certificates of clients, without the restrictions of trustme's."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, name: str = "clients") -> ClientAuthority:
        key, subject = ec.generate_private_key(ec.SECP256R1()), named(name)
        unsigned = x509.CertificateBuilder(subject, subject, key.public_key(), 1, NOW - DAY, NOW + 10 * DAY)
        unsigned = unsigned.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        return cls(key, unsigned.sign(key, hashes.SHA256()))

    def issue(
        self,
        file: Path,
        *names: str,
        emails: Sequence[str] = (),
        expires: datetime = NOW + DAY,
        serial: int = 7,
        usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
    ) -> Path:
        """Write a certificate with these common names and addresses, and its key, to one file."""
        key = ec.generate_private_key(ec.SECP256R1())
        unsigned = x509.CertificateBuilder(
            self.certificate.subject, named(*names), key.public_key(), serial, NOW - 2 * DAY, expires
        ).add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if emails:
            others = x509.SubjectAlternativeName([x509.DNSName("dns"), *map(x509.RFC822Name, emails)])
            unsigned = unsigned.add_extension(others, critical=False)
        pem = unsigned.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        file.write_bytes(pem + key.private_bytes(serialization.Encoding.PEM, *private))
        return file

    def write_to(self, file: Path) -> None:
        file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def revoke(self, file: Path, *serials: int, until: datetime = NOW + DAY) -> None:
        """Write a list of revoked certificates."""
        revoked = [x509.RevokedCertificateBuilder(each, NOW - DAY).build() for each in serials]
        unsigned = x509.CertificateRevocationListBuilder(
            self.certificate.subject, NOW - 2 * DAY, until, revoked_certificates=revoked
        )
        file.write_bytes(unsigned.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def named(*names: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
