"""TLS for mail clients and MTAs, with certificates of their own: Python's libraries, curl and Debian's swaks."""

from __future__ import annotations

import imaplib
import shutil
import smtplib
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme

from replicator.config import Address, CertificateConfig, Config, ListenConfig, default_config
from tests.end_to_end.helpers.in_process import free_ports, running

MAIL = b"From: a@example.org\r\nSubject: x\r\n\r\nx\r\n"
NAMES = ("mail.example.org", "imap.example.net")
CURL, SWAKS = shutil.which("curl"), shutil.which("swaks")


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusting(ca: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    context.check_hostname = False  # the tests connect to 127.0.0.1; curl checks the name
    return context


@pytest.fixture
def config(tmp_path: Path, ca: trustme.CA) -> Config:
    """A node whose clients have certificates of their own, and which has none for other nodes."""
    certificates = []
    for name in NAMES:
        issued = ca.issue_cert(name, common_name=name)
        certificates.append(CertificateConfig(tmp_path / f"{name}.pem", tmp_path / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(certificates[-1].file)
        issued.private_key_pem.write_to_path(certificates[-1].key)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "users.passwd").write_text("alice:{PLAIN}secret\n", "utf-8")
    imap, imaps, lmtp = (Address("127.0.0.1", port) for port in free_ports(3))
    listen = ListenConfig(imap=imap, imaps=imaps, lmtp=lmtp)
    return replace(default_config("dc1", tmp_path, listen=listen), certificates=tuple(certificates))


@asynccontextmanager
async def served(config: Config) -> AsyncIterator[Config]:
    with trio.fail_after(60):
        async with running([config]):
            yield config


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def address(of: Address | None) -> Address:
    assert of is not None
    return of


def read_by_imaps(config: Config, context: ssl.SSLContext) -> bytes:
    with imaplib.IMAP4_SSL(*address(config.listen.imaps), ssl_context=context) as client:
        assert "STARTTLS" not in client.capabilities
        client.login("alice", "secret")
        client.select("INBOX")
        _, data = client.fetch("1", "(BODY[])")
        assert isinstance(data[0], tuple)
        return data[0][1]


def deliver_by_starttls(config: Config, context: ssl.SSLContext) -> None:
    with smtplib.LMTP(*address(config.listen.lmtp), local_hostname="mx.example") as client:
        client.ehlo()
        assert client.has_extn("STARTTLS")
        client.starttls(context=context)
        client.ehlo()
        assert not client.has_extn("STARTTLS")
        assert not client.sendmail("a@example.org", ["alice"], MAIL)


async def test_mail_comes_by_lmtp_under_tls_and_is_read_by_imaps(config: Config, trusting: ssl.SSLContext) -> None:
    async with served(config):
        await trio.to_thread.run_sync(deliver_by_starttls, config, trusting)
        mail = await trio.to_thread.run_sync(read_by_imaps, config, trusting)
    assert mail.endswith(MAIL)
    assert b"with LMTPS id" in mail


@pytest.mark.skipif(CURL is None, reason="curl is not installed: apt-get install curl")
async def test_curl_reads_by_imaps_under_each_name(config: Config, trusting: ssl.SSLContext, tmp_path: Path) -> None:
    assert CURL is not None
    port = address(config.listen.imaps).port
    async with served(config):
        await trio.to_thread.run_sync(deliver_by_starttls, config, trusting)
        for name in NAMES:
            command = [CURL, "--silent", "--show-error", "--cacert", str(tmp_path / "ca.pem"), "--noproxy", "*"]
            command += ["--resolve", f"{name}:{port}:127.0.0.1", "--user", "alice:secret"]
            url = f"imaps://{name}:{port}/INBOX;MAILINDEX=1"
            assert "Subject: x" in await trio.to_thread.run_sync(partial(run, *command, url))


@pytest.mark.skipif(SWAKS is None, reason="swaks is not installed: apt-get install swaks libnet-ssleay-perl")
async def test_swaks_delivers_under_tls(config: Config, trusting: ssl.SSLContext, tmp_path: Path) -> None:
    assert SWAKS is not None
    host, port = address(config.listen.lmtp)
    command = [SWAKS, "--protocol", "LMTP", "--server", host, "--port", str(port), "--from", "a@x", "--to", "alice"]
    command += ["--tls", "--tls-verify", "--tls-ca-path", str(tmp_path / "ca.pem"), "--tls-sni", NAMES[1]]
    async with served(config):
        said = await trio.to_thread.run_sync(partial(run, *command, "--data", "Subject: by swaks\n\nx"))
        assert NAMES[1] in said
        assert b"by swaks" in await trio.to_thread.run_sync(read_by_imaps, config, trusting)


async def test_plain_text_ends_a_connection_to_the_imaps_port(config: Config) -> None:
    async with served(config):
        async with await trio.open_tcp_stream(*address(config.listen.imaps)) as stream:
            await stream.send_all(b"a LOGIN alice secret\r\n" * 100)
            said = b""
            with suppress(trio.BrokenResourceError):
                while data := await stream.receive_some():
                    said += data
        assert b"OK" not in said
