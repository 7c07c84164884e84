"""A node behind a real HAProxy, which names its clients by the PROXY protocol."""

from __future__ import annotations

import csv
import imaplib
import logging
import shutil
import smtplib
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path

import pytest
import trio
import trustme

from replicator.config import Address, CertificateConfig, Config, HttpConfig, ListenConfig, ProxyConfig, default_config
from replicator.http.tokens import Role, add_token
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.end_to_end.helpers.pages import block, put

HAPROXY = shutil.which("haproxy")
pytestmark = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed: apt-get install haproxy")

CLIENT = "198.51.100.7"  # what HAProxy takes for its client's address


def haproxy_file(front: ListenConfig, back: ListenConfig) -> str:
    text = "defaults\n    mode tcp\n    timeout connect 5s\n    timeout client 60s\n    timeout server 60s\n"
    for door in ("imap", "imaps", "lmtp"):
        text += f"listen {door}\n    bind {getattr(front, door)}\n"
        text += f"    tcp-request connection set-src str({CLIENT})\n"
        text += f"    server node {getattr(back, door)} send-proxy-v2\n"
    return text


@asynccontextmanager
async def behind_haproxy(config: Config, directory: Path) -> AsyncIterator[ListenConfig]:
    """Run a node and HAProxy, and yield the addresses of the latter."""
    imap, imaps, lmtp = (Address("127.0.0.1", port) for port in free_ports(3))
    front = ListenConfig(imap=imap, imaps=imaps, lmtp=lmtp)
    with trio.fail_after(60):
        async with running([config]), haproxy(haproxy_file(front, config.listen), directory, imap, imaps, lmtp):
            yield front


@asynccontextmanager
async def haproxy(text: str, directory: Path, *addresses: Address) -> AsyncIterator[None]:
    """Run HAProxy with a configuration, by which it listens at these addresses."""
    assert HAPROXY is not None
    file = directory / "haproxy.cfg"
    file.write_text(text, "utf-8")
    async with trio.open_nursery() as nursery:
        command = [HAPROXY, "-db", "-f", str(file)]
        await nursery.start(partial(trio.run_process, command, stderr=subprocess.DEVNULL))
        for address in addresses:
            await reachable(address)
        yield
        nursery.cancel_scope.cancel()


async def reachable(address: Address) -> None:
    while True:
        try:
            await (await trio.open_tcp_stream(*address)).aclose()
        except OSError:
            await trio.sleep(0.02)
        else:
            return


def use_mail(front: ListenConfig, context: ssl.SSLContext) -> bytes:
    """Deliver a mail, see that a password needs TLS, and return the mail as it is read by IMAPS."""
    assert front.lmtp is not None
    assert front.imap is not None
    assert front.imaps is not None
    with smtplib.LMTP(*front.lmtp, local_hostname="mx.example") as mta:
        mta.sendmail("a@example.org", ["alice"], b"Subject: x\r\n\r\nx\r\n")
    with imaplib.IMAP4(*front.imap) as plain:
        assert "LOGINDISABLED" in plain.capabilities
    with imaplib.IMAP4_SSL(*front.imaps, ssl_context=context) as client:
        client.login("alice", "secret")
        client.select("INBOX")
        _, data = client.fetch("1", "(BODY[])")
        assert isinstance(data[0], tuple)
        return data[0][1]


def node_for_proxies(directory: Path) -> tuple[Config, ssl.SSLContext]:
    """Return a node with alice, and what its clients trust."""
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    ca.cert_pem.write_to_path(directory / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(directory / "mail.pem")
    issued.private_key_pem.write_to_path(directory / "mail.key")
    context = ssl.create_default_context()
    ca.configure_trust(context)
    (directory / "users.passwd").write_text("alice:{PLAIN}secret\n", "utf-8")
    imap, imaps, lmtp, http = (Address("127.0.0.1", port) for port in free_ports(4))
    config = replace(
        default_config("dc1", directory, listen=ListenConfig(imap=imap, imaps=imaps, lmtp=lmtp, http=http)),
        certificates=(CertificateConfig(directory / "mail.pem", directory / "mail.key"),),
        proxy=ProxyConfig((ip_network("127.0.0.1"),)),
        http=HttpConfig(directory / "http.tokens"),  # as every listener that others reach
    )
    add_token(directory / "http.tokens", "somebody", Role.READ)
    return config, context


def test_haproxy_finds_no_fault_with_the_page(tmp_path: Path) -> None:
    assert HAPROXY is not None
    node_for_proxies(tmp_path)
    page = put(block("operations.md", "Behind HAProxy"), ("/etc/haproxy/ca.pem", f"{tmp_path}/ca.pem"))
    (tmp_path / "haproxy.cfg").write_text(page, "utf-8")
    command = [HAPROXY, "-c", "-f", str(tmp_path / "haproxy.cfg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


async def test_haproxy_sends_clients_to_nodes_that_are_healthy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of the page's nodes runs. Here its HTTP listener is on loopback, where it speaks no TLS."""
    config, context = node_for_proxies(tmp_path)
    front, away = (Address("127.0.0.1", port) for port in free_ports(2))
    assert config.listen.http is not None
    page = put(
        block("operations.md", "Behind HAProxy"),
        ("bind :993", f"bind {front}"),
        (" port 1080 check-ssl verify required ca-file /etc/haproxy/ca.pem verifyhost mail.example.org", ""),
        ("server dc1 10.1.0.11:993", f"server dc1 {away} port {away.port}"),
        ("server dc2 10.1.0.12:993", f"server dc2 {config.listen.imaps} port {config.listen.http.port}"),
    )

    told = tmp_path / "told"
    page = f"global\n    stats socket {told}\n{page}"

    def log_in() -> str:
        with imaplib.IMAP4_SSL(*front, ssl_context=context) as client:
            return client.login("alice", "secret")[0]

    with caplog.at_level(logging.INFO), trio.fail_after(60):
        async with running([config]), haproxy(page, tmp_path, front):
            while "INI" in (checks := await trio.to_thread.run_sync(found_by_checks, told)).values():  # noqa: ASYNC110
                await trio.sleep(0.1)
            assert checks == {"dc1": "L4CON", "dc2": "L7OK"}
            assert await trio.to_thread.run_sync(log_in) == "OK"
    assert "login ok user=alice client=127.0.0.1" in caplog.text


def found_by_checks(told: Path) -> dict[str, str]:
    """Return what came of the last check of each server, in HAProxy's words; INI: there was none yet."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(told))
        asking.sendall(b"show stat\n")
        answer = b"".join(iter(lambda: asking.recv(65536), b"")).decode()
    rows = csv.DictReader(answer.removeprefix("# ").splitlines())
    return {row["svname"]: row["check_status"].lstrip("* ") for row in rows if row["svname"] in ("dc1", "dc2")}


async def test_limits_logs_and_trace_headers_name_the_client_behind_haproxy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, context = node_for_proxies(tmp_path)
    with caplog.at_level(logging.INFO):
        async with behind_haproxy(config, tmp_path) as front:
            mail = await trio.to_thread.run_sync(use_mail, front, context)
    assert f"Received: from mx.example ([{CLIENT}])".encode() in mail
    assert f"login ok user=alice client={CLIENT}" in caplog.text
