"""Errors of commands where `--url` leads to nothing that answers."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_port(ca: trustme.CA) -> Iterator[int]:
    """A port where one client is greeted with TLS, as mail.example.org."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("mail.example.org").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                context.wrap_socket(connection, server_side=True).close()

        greeting = threading.Thread(target=greet)
        greeting.start()
        yield server.getsockname()[1]
        greeting.join()


@pytest.mark.parametrize("url", ["http://127.0.0.1:0", "https://127.0.0.1:0", "http://[::1]:0"])
def test_port_0_is_told(invoke: Invoke, url: str) -> None:
    result = invoke("status", "--url", url)
    assert (result.exit_code, "there is no port 0; give the port of the node's `listen.http`" in result.stderr) == (
        2,
        True,
    )


def test_https_where_there_is_no_tls_is_told(served: ServedNode, invoke: Invoke) -> None:
    url = served.url.replace("http:", "https:")
    result = invoke("reload", "--url", url)
    assert (result.exit_code, result.stderr) == (
        1,
        f"Error: {url}: no TLS here; if it is a node's `listen.http` on loopback, use http://\n",
    )


def test_http_where_there_is_tls_is_told(invoke: Invoke, tls_port: int) -> None:
    result = invoke("reload", "--url", f"http://127.0.0.1:{tls_port}")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: http://127.0.0.1:{tls_port}: no answer (")
    assert result.stderr.endswith("); is the node running? If it takes HTTPS only, use https://\n")


def test_certificate_of_another_name_is_told(
    invoke: Invoke, tls_port: int, ca: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    result = invoke("reload", "--url", f"https://127.0.0.1:{tls_port}")
    assert result.exit_code == 1
    assert "certificate is not valid for '127.0.0.1'; use a name that is in the certificate" in result.stderr
    assert "SSL_CERT_FILE" not in result.stderr


def test_certificate_of_an_unknown_authority_is_told(invoke: Invoke, tls_port: int) -> None:
    result = invoke("reload", "--url", f"https://127.0.0.1:{tls_port}")
    assert (result.exit_code, "if you trust its CA, name the file of that in SSL_CERT_FILE" in result.stderr) == (
        1,
        True,
    )


def test_file_of_authorities_that_is_missing_is_told(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    result = invoke("reload", "--url", "https://127.0.0.1:1")
    assert result.exit_code == 2
    assert f"the variable SSL_CERT_FILE: there is no file {tmp_path / 'none.pem'}" in result.stderr


@pytest.mark.parametrize("command", [("who", "\udcff"), ("fetch", "\udcff", "INBOX", "1"), ("quota", "\udcff")])
def test_names_that_are_no_text_are_told(invoke: Invoke, command: tuple[str, ...]) -> None:
    result = invoke(*command, "--url", "http://127.0.0.1:9")
    assert (result.exit_code, result.stderr) == (1, "Error: '\\udcff' is not UTF-8, as names are\n")
