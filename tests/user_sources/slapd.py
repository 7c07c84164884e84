"""A private LDAP server: Debian's slapd on loopback, with a few people."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

SLAPD = Path("/usr/sbin/slapd")
ADD = shutil.which("ldapadd")

needs_slapd = pytest.mark.skipif(
    not SLAPD.exists() or ADD is None, reason="log-ins at LDAP are left out: apt-get install slapd ldap-utils"
)

BASE = "ou=people,dc=example,dc=org"
SERVICE_DN = "cn=mail,dc=example,dc=org"
SERVICE_PASSWORD = "of the service"

CONFIGURATION = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {directory}/slapd.pid
TLSCertificateFile {directory}/server.pem
TLSCertificateKeyFile {directory}/server.key
TLSCACertificateFile {directory}/ca.pem
database mdb
suffix "dc=example,dc=org"
rootdn "cn=root,dc=example,dc=org"
rootpw root
directory {directory}/db
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact="cn=mail,dc=example,dc=org" read by * none
"""

PEOPLE = """\
dn: dc=example,dc=org
objectClass: dcObject
objectClass: organization
o: Example
dc: example

dn: cn=mail,dc=example,dc=org
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: mail
userPassword: of the service

dn: ou=people,dc=example,dc=org
objectClass: organizationalUnit
ou: people
"""

PERSON = """
dn: uid={uid},ou=people,dc=example,dc=org
objectClass: inetOrgPerson
uid: {uid}
cn: {uid}
sn: {uid}
userPassword: {password}
"""


@dataclass(frozen=True)
class Slapd:
    """A server that runs. `ca`: the PEM file of the CA of its certificate, which is for `localhost`."""

    directory: Path
    ldap_port: int
    ldaps_port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"ldap://localhost:{self.ldap_port}"

    @property
    def ldaps_url(self) -> str:
        return f"ldaps://localhost:{self.ldaps_port}"

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def password_file(self) -> Path:
        return self.directory / "service.password"

    def add(self, uid: str, password: str = "secret", *more: str) -> None:
        """Add a person, with more lines of LDIF."""
        self.change("ldapadd", PERSON.format(uid=uid, password=password) + "".join(f"{line}\n" for line in more))

    def replace(self, uid: str, attribute: str, value: str) -> None:
        lines = f"dn: uid={uid},{BASE}\nchangetype: modify\nreplace: {attribute}\n{attribute}: {value}\n"
        self.change("ldapmodify", lines)

    def delete(self, uid: str) -> None:
        self.change("ldapmodify", f"dn: uid={uid},{BASE}\nchangetype: delete\n")

    def change(self, command: str, ldif: str) -> None:
        root = ["-x", "-H", self.url, "-D", "cn=root,dc=example,dc=org", "-w", "root"]
        subprocess.run([command, *root], input=ldif.encode(), check=True, capture_output=True, timeout=30)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@contextmanager
def slapd(directory: Path) -> Iterator[Slapd]:
    """Run a server with its data in a directory."""
    (directory / "db").mkdir(parents=True)
    _certify(directory)
    (directory / "service.password").write_text(f"{SERVICE_PASSWORD}\n")
    (directory / "slapd.conf").write_text(CONFIGURATION.format(directory=directory))
    ports = [_free_port() for _ in range(2)]
    server = _started(directory, *ports)
    try:
        server.change("ldapadd", PEOPLE)
        yield server
    finally:
        server.stop()


def _certify(directory: Path) -> None:
    """Write a certificate for a server, and the CA that has signed it."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
    certificate.private_key_pem.write_to_path(directory / "server.key")


def recertified(server: Slapd) -> Slapd:
    """Run a server again that was stopped, with a certificate of another CA."""
    _certify(server.directory)
    return restarted(server)


def restarted(server: Slapd) -> Slapd:
    """Run a server again that was stopped: the same people, at the same ports."""
    return _started(server.directory, server.ldap_port, server.ldaps_port)


def _started(directory: Path, ldap_port: int, ldaps_port: int) -> Slapd:
    urls = f"ldap://127.0.0.1:{ldap_port} ldaps://127.0.0.1:{ldaps_port}"
    with (directory / "slapd.log").open("ab") as log:
        process = subprocess.Popen(
            [SLAPD, "-d", "0", "-f", directory / "slapd.conf", "-h", urls], stdout=log, stderr=log
        )
    server = Slapd(directory, ldap_port, ldaps_port, process)
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", ldaps_port), timeout=1).close()
        except OSError:
            continue
        return server
    raise AssertionError((directory / "slapd.log").read_text())


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
