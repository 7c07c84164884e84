"""`replicator ca`: files that real nodes and OpenSSL accept."""

from __future__ import annotations

import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from cryptography import x509

from replicator.config import Address, ListenConfig, PeerConfig, TlsConfig, config_text, default_config, load_config
from tests.cli.conftest import Invoke
from tests.end_to_end.helpers.in_process import free_ports, running


@pytest.fixture
def directory(tmp_path: Path, invoke: Invoke) -> Path:
    """A directory with a CA and the certificate of dc1."""
    for command in (["init"], ["issue", "dc1", "--host", "mail.example.org", "--host", "192.0.2.1"]):
        result = invoke("ca", *command, "--dir", tmp_path / "ca")
        assert result.exit_code == 0, result.output
    return tmp_path / "ca"


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def names(file: Path) -> list[str]:
    extension = certificate(file).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in extension.value]


async def test_nodes_with_issued_certificates_link(
    directory: Path, invoke: Invoke, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert invoke("ca", "issue", "dc2", "--dir", directory).exit_code == 0
    doors = {sid: Address("127.0.0.1", port) for sid, port in zip(("dc1", "dc2"), free_ports(2), strict=True)}
    configs = []
    for sid, other in (("dc1", "dc2"), ("dc2", "dc1")):
        listen, peers = ListenConfig(peer=doors[sid]), (PeerConfig(other, doors[other]),)
        tls = TlsConfig(directory / f"{sid}.pem", directory / f"{sid}.key", directory / "ca.pem")
        file = directory / f"{sid}.toml"
        config = default_config(sid, directory, listen=listen, peers=peers)
        file.write_text(config_text(replace(config, tls=tls), directory), "utf-8")
        configs.append(load_config(file))
    with trio.fail_after(60):
        async with running(configs):
            while not all(f"link to {sid} is up" in caplog.text for sid in doors):  # noqa: ASYNC110 - of the log
                await trio.sleep(0.01)


def test_printed_section_is_that_of_a_configuration(directory: Path, invoke: Invoke) -> None:
    result = invoke("ca", "issue", "dc2", "--dir", directory)
    file = directory / "dc2.toml"
    file.write_text('node.id = "dc2"\n' + result.stdout[result.stdout.index("[tls]") :], "utf-8")
    assert load_config(file).tls == TlsConfig(directory / "dc2.pem", directory / "dc2.key", directory / "ca.pem")


def test_certificate_names_the_node_and_its_hosts_for_a_year(directory: Path) -> None:
    assert names(directory / "dc1.pem") == ["dc1", "mail.example.org", "192.0.2.1"]
    issued, authority = certificate(directory / "dc1.pem"), certificate(directory / "ca.pem")
    assert issued.subject.rfc4514_string() == "CN=dc1"
    issued.verify_directly_issued_by(authority)
    now = datetime.now(UTC)
    assert timedelta(days=364) < issued.not_valid_after_utc - now <= timedelta(days=365)
    assert timedelta(days=3649) < authority.not_valid_after_utc - now <= timedelta(days=3650)


@pytest.mark.parametrize("name", ["ca.key", "dc1.key"])
def test_keys_are_for_their_owner_alone(directory: Path, name: str) -> None:
    assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("command", [["init"], ["issue", "dc1"]])
def test_nothing_is_overwritten(directory: Path, invoke: Invoke, command: list[str]) -> None:
    before = {file.name: file.read_bytes() for file in directory.iterdir()}
    result = invoke("ca", *command, "--dir", directory)
    assert (result.exit_code, "exists already, and is not overwritten" in result.stderr) == (1, True)
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == before


def test_renewed_certificate_has_the_same_key_and_names_and_lasts_longer(directory: Path, invoke: Invoke) -> None:
    file, key = directory / "dc1.pem", (directory / "dc1.key").read_bytes()
    old, old_names = certificate(file), names(file)
    result = invoke("ca", "renew", "dc1", "--dir", directory)
    assert result.exit_code == 0, result.output
    new = certificate(file)
    assert (new.public_key(), names(file)) == (old.public_key(), old_names)
    assert new.serial_number != old.serial_number
    assert new.not_valid_after_utc >= old.not_valid_after_utc
    assert (directory / "dc1.key").read_bytes() == key
    assert sorted(path.name for path in directory.iterdir()) == ["ca.key", "ca.pem", "dc1.key", "dc1.pem"]


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (["issue", "Bad"], 2, "expected a node id"),
        (["issue", "dc2", "--host", "a b"], 1, "'a b' is neither a host name nor an IP address"),
        (["renew", "dc2"], 1, "make it with `replicator ca issue dc2 --dir"),
        (["init", "--name", ""], 1, "--name: expected 1 to 64 printable characters"),
    ],
)
def test_mistakes_are_explained(directory: Path, invoke: Invoke, command: list[str], code: int, text: str) -> None:
    result = invoke("ca", *command, "--dir", directory)
    assert (result.exit_code, text in result.stderr) == (code, True), result.output


def test_certificate_needs_a_ca(tmp_path: Path, invoke: Invoke) -> None:
    result = invoke("ca", "issue", "dc1", "--dir", tmp_path)
    assert (result.exit_code, f"make one with `replicator ca init --dir {tmp_path}`" in result.stderr) == (1, True)


def test_damaged_key_is_named(directory: Path, invoke: Invoke) -> None:
    (directory / "ca.key").write_text("no key\n", "ascii")
    result = invoke("ca", "issue", "dc2", "--dir", directory)
    assert (result.exit_code, f"{directory / 'ca.key'}: this private key cannot be read" in result.stderr) == (1, True)
