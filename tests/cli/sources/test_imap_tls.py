"""TLS to IMAP servers, with Debian's Dovecot: certificates are checked, and passwords are never sent unencrypted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from benchmarks.clusters.cluster import PASSWORD, reserve_ports
from replicator.cli.importing.sources import Credentials, source_at
from replicator.cli.sources import SourceError
from replicator.cli.sources.imap import connection
from tests.cli.sources.lying_server import lying_server
from tests.dovecot_accounts import dovecot, fill
from tests.imap_data.dovecot import needs_dovecot

USER = "alice"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ports(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Run a Dovecot with TLS; yield its ports, by schemes."""
    directory = tmp_path_factory.mktemp("tls")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    certificate.private_key_pem.write_to_path(directory / "key.pem")
    [reserved] = reserve_ports(1)
    port = int(reserved.getsockname()[1])
    extra = f"""
ssl = yes
ssl_cert = <{directory}/cert.pem
ssl_key = <{directory}/key.pem
service imap-login {{
  inet_listener imaps {{
    address = 127.0.0.1
    port = {port}
    ssl = yes
  }}
}}
"""
    with reserved, dovecot(extra=extra) as server:
        fill(server, USER)
        yield {"imap": server.address.port, "imaps": port}


@pytest.fixture
def trusting(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no host be this machine: STARTTLS is for others."""
    monkeypatch.setattr(connection, "is_loopback", lambda _: False)


def messages(place: str, password: str = PASSWORD) -> int:
    with closing(source_at(place, "INBOX", Credentials(password))) as source:
        [inbox] = [folder for folder in source.folders if folder.name == "INBOX"]
        with source.open(inbox) as reader:
            return sum(1 for read in reader.texts(reader.listing(None).messages) if read.text)


@needs_dovecot
@pytest.mark.usefixtures("far", "trusting")
@pytest.mark.parametrize("scheme", ["imap", "imaps"])
def test_mail_is_read_by_tls(ports: dict[str, int], scheme: str) -> None:
    assert messages(f"{scheme}://{USER}@127.0.0.1:{ports[scheme]}") == 9


@needs_dovecot
@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("scheme", ["imap", "imaps"])
def test_certificate_of_an_unknown_authority_is_refused(ports: dict[str, int], scheme: str) -> None:
    with pytest.raises(SourceError, match="the certificate is not trusted"):
        messages(f"{scheme}://{USER}@127.0.0.1:{ports[scheme]}")


@needs_dovecot
@pytest.mark.usefixtures("trusting")
def test_wrong_password_is_told_and_not_shown(ports: dict[str, int]) -> None:
    with pytest.raises(SourceError, match="AUTHENTICATIONFAILED") as refused:
        messages(f"imaps://{USER}@127.0.0.1:{ports['imaps']}", "wrong secret")
    assert "wrong secret" not in str(refused.value)


@pytest.mark.usefixtures("far")
def test_password_is_not_sent_without_tls() -> None:
    with lying_server() as server, pytest.raises(SourceError, match="try imaps://"):
        messages(server.url)
    assert not [command for command in server.asked if command.startswith((b"LOGIN", b"AUTH"))]


@pytest.mark.usefixtures("far")
def test_server_that_speaks_before_tls_is_not_believed() -> None:
    capability = b"* CAPABILITY IMAP4rev1 STARTTLS\r\n"
    with lying_server(CAPABILITY=capability) as server, pytest.raises(SourceError):
        messages(server.url)
    assert server.asked == [b"CAPABILITY", b"STARTTLS"]


def test_imaps_needs_tls_at_the_server() -> None:
    with lying_server() as server, pytest.raises(SourceError, match="TLS does not begin at this port; for STARTTLS"):
        messages(server.url.replace("imap:", "imaps:"))
