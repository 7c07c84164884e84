"""TLS on links and for clients, with real certificates over real sockets."""

from __future__ import annotations

import imaplib
import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trustme

from protocol.commands import Hello
from protocol.stream_codec import Encoder
from replicator.config import Address, Config, ListenConfig, PeerConfig, default_config
from tests.end_to_end.helpers.certificates import certificate
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.end_to_end.helpers.mail_clients import log_in

PASSWORD = "secret"
HELLO = Encoder().request("hello", Hello(1, "dc2", "dc2.x", "mail", (), 0))


def configs(directory: Path, authorities: list[trustme.CA]) -> list[Config]:
    (directory / "users.passwd").write_text(f"alice:{{PLAIN}}{PASSWORD}\n", "utf-8")
    sids = [f"dc{number + 1}" for number in range(len(authorities))]
    ports = free_ports(3 * len(sids))
    doors = {sid: [Address("127.0.0.1", port) for port in ports[3 * at : 3 * at + 3]] for at, sid in enumerate(sids)}
    return [
        replace(
            default_config(
                sid,
                directory,
                listen=ListenConfig(*doors[sid]),
                peers=tuple(PeerConfig(other, doors[other][0]) for other in sids if other != sid),
            ),
            tls=certificate(ca, directory, sid),
        )
        for sid, ca in zip(sids, authorities, strict=True)
    ]


def append_and_count(near: Config, far: Config, trust: trustme.CA) -> int:
    """Append a mail at one node over STARTTLS, and return the number of messages at the other one."""
    context = ssl.create_default_context()
    trust.configure_trust(context)
    found = 0
    for config, body in ((near, b"Subject: x\r\n\r\nx\r\n"), (far, None)):
        assert config.listen.imap is not None
        with imaplib.IMAP4(*config.listen.imap) as client:
            assert "STARTTLS" in client.capabilities
            client.starttls(context)
            log_in(client, "alice", PASSWORD)
            if body is not None:
                assert client.append("INBOX", "", "", body)[0] == "OK"
            for _ in range(500):
                _, data = client.status("INBOX", "(MESSAGES)")
                assert data[0] is not None
                found = int(data[0].split()[-1].rstrip(b")"))
                if found or body is not None:
                    break
    return found


async def test_nodes_of_one_authority_link_and_clients_use_starttls(tmp_path: Path) -> None:
    ca = trustme.CA()
    near, far = configs(tmp_path, [ca, ca])
    with trio.fail_after(60):
        async with running([near, far]):
            assert await trio.to_thread.run_sync(append_and_count, near, far, ca) == 1


async def test_certificate_is_refused_from_a_node_that_it_does_not_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = trustme.CA()
    near, far = configs(tmp_path, [ca, ca])
    impostor = replace(far, tls=certificate(ca, tmp_path, "dc3"))
    with trio.fail_after(60):
        async with running([near, impostor]):
            while "names dc3, localhost, and dc2 was expected" not in caplog.text:  # noqa: ASYNC110 - of the log
                await trio.sleep(0.01)


async def test_node_with_a_certificate_of_another_authority_gets_no_link(tmp_path: Path) -> None:
    ca, stranger = trustme.CA(), trustme.CA()
    near, far = configs(tmp_path, [ca, stranger])
    assert isinstance(near.listen.peer, Address)
    with trio.fail_after(60):
        async with running([near]):
            # A HELLO in the clear, or under the wrong certificate, gets nothing but the end of the connection.
            plain = await trio.open_tcp_stream(*near.listen.peer)
            await plain.send_all(HELLO)
            answer = b""
            with suppress(trio.BrokenResourceError):
                while data := await plain.receive_some():
                    answer += data
            await trio.aclose_forcefully(plain)
            assert b"HELLO" not in answer

            assert far.tls is not None
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=far.tls.ca)
            context.load_cert_chain(far.tls.certificate, far.tls.key)
            context.check_hostname = False
            stream = trio.SSLStream(await trio.open_tcp_stream(*near.listen.peer), context)
            with pytest.raises(trio.BrokenResourceError):
                await stream.send_all(HELLO)
            await trio.aclose_forcefully(stream)
