"""Certificates and configurations that change while real nodes run."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast
from urllib.request import urlopen

import pytest
import trio
from cryptography import x509

from benchmarks.clusters.cluster import Cluster
from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import RefusedError
from replicator.cli.authority import Authority
from replicator.cli.target import NodeUrl
from replicator.config import Address, Config, ListenConfig, MastershipConfig, PeerConfig, default_config
from replicator.node import run_node
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.end_to_end.helpers.ledger import log_in

PATIENT = MastershipConfig(timeout_s=60)  # no pause of a slow machine breaks a link


def two_nodes(directory: Path) -> tuple[Authority, Config, Config]:
    authority = Authority.create(directory, "tests")
    first, second, http = (Address("127.0.0.1", port) for port in free_ports(3))
    for sid in ("dc1", "dc2"):
        authority.issue(sid)
    near = default_config("dc1", directory, listen=ListenConfig(first, http=http), peers=(PeerConfig("dc2", second),))
    far = default_config("dc2", directory, listen=ListenConfig(second), peers=(PeerConfig("dc1", first),))
    near = replace(near, tls=authority.files("dc1"), mastership=PATIENT)
    return authority, near, replace(far, tls=authority.files("dc2"), mastership=PATIENT)


async def shown_by(config: Config) -> int:
    """Return the serial number of the certificate that the node shows to a new connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    assert isinstance(config.listen.peer, Address)
    stream = trio.SSLStream(await trio.open_tcp_stream(*config.listen.peer), context)
    await stream.do_handshake()
    shown = stream.getpeercert(binary_form=True)
    await trio.aclose_forcefully(stream)
    assert isinstance(shown, bytes)
    return x509.load_der_x509_certificate(shown).serial_number


def client(config: Config) -> NodeClient:
    assert config.listen.http is not None
    return NodeClient(NodeUrl(*config.listen.http))


async def link_of(config: Config) -> tuple[bool, int | None]:
    """Return whether the node's link is up, and since when."""
    with client(config) as asking:
        (link,) = (await trio.to_thread.run_sync(asking.status)).links
    return link.up, link.since_ms


async def linked(config: Config) -> tuple[bool, int | None]:
    while not (link := await link_of(config))[0]:  # noqa: ASYNC110 - of another node
        await trio.sleep(0.05)
    return link


def metric(config: Config, file: str) -> float:
    """Return the time at which the node's metrics say that the certificate expires."""
    with urlopen(f"http://{config.listen.http}/metrics") as answer:
        text = answer.read().decode()
    (value,) = re.findall(
        rf'^replicator_certificate_expires_timestamp_seconds{{file="{re.escape(file)}"}} (\S+)$', text, re.MULTILINE
    )
    return float(value)


async def test_new_connections_use_the_renewed_certificate_and_links_stay(tmp_path: Path) -> None:
    authority, near, far = two_nodes(tmp_path)
    with trio.fail_after(60):
        async with running([near, far]):
            link, before = await linked(near), await shown_by(near)
            renewed = authority.renew("dc1")
            assert await shown_by(near) == before
            with client(near) as asking:
                certificates = await trio.to_thread.run_sync(asking.reload)
                told = (await trio.to_thread.run_sync(asking.status)).certificates
            assert await shown_by(near) == renewed.serial_number != before
            assert await link_of(near) == link
            assert tuple(certificates) == told
            while await trio.to_thread.run_sync(metric, near, told[0].file) != told[0].expires_ms / 1000:  # noqa: ASYNC110
                await trio.sleep(0.05)  # metrics follow at the next heartbeat
            assert [(each.file, each.name) for each in told] == [
                (str(tmp_path / "dc1.pem"), "dc1"),
                (str(tmp_path / "ca.pem"), "tests"),
            ]
            assert told[0].expires_ms == renewed.not_valid_after_utc.timestamp() * 1000


async def test_broken_certificate_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    _, near, far = two_nodes(tmp_path)
    with trio.fail_after(60):
        async with running([near, far]):
            link, before = await linked(near), await shown_by(near)
            (tmp_path / "dc1.pem").write_bytes((tmp_path / "dc2.pem").read_bytes())  # the key does not fit
            with client(near) as asking, pytest.raises(RefusedError, match=r"stay as they were: \[tls\]: cannot "):
                await trio.to_thread.run_sync(asking.reload)
            assert await shown_by(near) == before
            assert await link_of(near) == link


async def test_each_request_to_reload_is_carried_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A SIGHUP with a broken certificate, and one with a good one."""
    authority, near, _ = two_nodes(tmp_path)
    send, receive = trio.open_memory_channel[None](0)
    ready = trio.Event()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(run_node, near, ready=ready.set, reloads=receive))
            await ready.wait()
            good = (tmp_path / "dc1.pem").read_bytes()
            (tmp_path / "dc1.pem").write_bytes(b"")
            await send.send(None)
            while "certificates and keys stay as they were: [tls]: cannot " not in caplog.text:  # noqa: ASYNC110
                await trio.sleep(0.01)
            (tmp_path / "dc1.pem").write_bytes(good)
            renewed = authority.renew("dc1")
            await send.send(None)
            while await shown_by(near) != renewed.serial_number:  # noqa: ASYNC110 - of the node
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


def test_changed_configuration_is_in_force_or_said_to_need_a_restart(tmp_path: Path) -> None:
    with Cluster(tmp_path, ["alice"], size=1, copies=1) as cluster:
        (node,) = cluster.nodes
        file = tmp_path / "dc1.toml"
        before = file.read_text()

        def reload(*options: str) -> tuple[int, str]:
            command = [sys.executable, "-m", "replicator", "reload", *(options or ("--config", str(file)))]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.returncode, done.stdout + done.stderr

        client = log_in(node, "alice")
        assert client.append("INBOX", "", "", b"\r\n" + 600 * b"x")[0] == "OK"
        file.write_text(f'{before}\n[log]\nkeep = "3d"\n[quota]\nstorage = "1KiB"\n')
        code, said = reload()
        assert (code, said.splitlines()[-1]) == (0, "dc1 needs a restart to use the new values of log.keep")
        kind, reason = client.append("INBOX", "", "", b"\r\n" + 600 * b"x")
        assert (kind, b"[OVERQUOTA]" in reason[0]) == ("NO", True)

        file.write_text(f'{before}\n[log]\nkeep = "3 days"\n')
        code, said = reload("--url", "http://{}:{}".format(*node.address("http")))
        assert (code, "stay as they were" in said, f"{file}:" in said, "keep" in said) == (1, True, True, True)
        assert cast("list[str]", node.get("/api/v1/status")["restart_for"]) == ["log.keep"]

        file.write_text(before)
        assert reload()[0] == 0
        assert node.get("/api/v1/status")["restart_for"] == []
        assert client.append("INBOX", "", "", b"\r\n" + 600 * b"x")[0] == "OK"
        client.logout()
