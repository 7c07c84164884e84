"""A node behind a real HAProxy, which names its clients by the PROXY protocol."""

from __future__ import annotations

import imaplib
import logging
import shutil
import smtplib
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

from replicator.config import Address, CertificateConfig, Config, ListenConfig, ProxyConfig, default_config
from tests.end_to_end.helpers.in_process import free_ports, running

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
    assert HAPROXY is not None
    imap, imaps, lmtp = (Address("127.0.0.1", port) for port in free_ports(3))
    front = ListenConfig(imap=imap, imaps=imaps, lmtp=lmtp)
    file = directory / "haproxy.cfg"
    file.write_text(haproxy_file(front, config.listen), "utf-8")
    with trio.fail_after(60):
        async with running([config]), trio.open_nursery() as nursery:
            command = [HAPROXY, "-db", "-f", str(file)]
            await nursery.start(partial(trio.run_process, command, stderr=subprocess.DEVNULL))
            for address in (imap, imaps, lmtp):
                await reachable(address)
            yield front
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


async def test_limits_logs_and_trace_headers_name_the_client_behind_haproxy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "mail.pem")
    issued.private_key_pem.write_to_path(tmp_path / "mail.key")
    context = ssl.create_default_context()
    ca.configure_trust(context)
    (tmp_path / "users.passwd").write_text("alice:{PLAIN}secret\n", "utf-8")
    imap, imaps, lmtp = (Address("127.0.0.1", port) for port in free_ports(3))
    config = replace(
        default_config("dc1", tmp_path, listen=ListenConfig(imap=imap, imaps=imaps, lmtp=lmtp)),
        certificates=(CertificateConfig(tmp_path / "mail.pem", tmp_path / "mail.key"),),
        proxy=ProxyConfig((ip_network("127.0.0.1"),)),
    )
    with caplog.at_level(logging.INFO):
        async with behind_haproxy(config, tmp_path) as front:
            mail = await trio.to_thread.run_sync(use_mail, front, context)
    assert f"Received: from mx.example ([{CLIENT}])".encode() in mail
    assert f"login ok user=alice client={CLIENT}" in caplog.text
