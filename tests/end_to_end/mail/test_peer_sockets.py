"""Links over sockets in the file system, between real nodes."""

from __future__ import annotations

import imaplib
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trustme

from replicator.config import Address, Config, ListenConfig, PeerConfig, SocketPath, default_config
from replicator.network.streams import listen
from tests.end_to_end.helpers.certificates import certificate
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.end_to_end.helpers.mail_clients import log_in

SIDS = ("dc1", "dc2")


def configs(directory: Path) -> list[Config]:
    """Return two nodes that reach each other by sockets in the directory."""
    (directory / "users.passwd").write_text("alice:{PLAIN}secret\n", "utf-8")
    sockets = {sid: SocketPath(directory / f"{sid}.sock") for sid in SIDS}
    return [
        default_config(
            sid,
            directory,
            listen=ListenConfig(peer=sockets[sid], imap=Address("127.0.0.1", port)),
            peers=tuple(PeerConfig(other, sockets[other]) for other in SIDS if other != sid),
        )
        for sid, port in zip(SIDS, free_ports(len(SIDS)), strict=True)
    ]


def append(config: Config) -> None:
    assert config.listen.imap is not None
    with imaplib.IMAP4(*config.listen.imap) as client:
        log_in(client, "alice", "secret")
        assert client.append("INBOX", "", "", b"Subject: x\r\n\r\nx\r\n")[0] == "OK"


def wait_for_messages(config: Config, expected: int) -> None:
    assert config.listen.imap is not None
    with imaplib.IMAP4(*config.listen.imap) as client:
        log_in(client, "alice", "secret")
        while client.status("INBOX", "(MESSAGES)")[1] != [b'"INBOX" (MESSAGES %d)' % expected]:
            pass


@pytest.mark.parametrize("secured", [False, True])
async def test_nodes_link_by_sockets(tmp_path: Path, *, secured: bool) -> None:
    nodes = configs(tmp_path)
    if secured:
        ca = trustme.CA()
        nodes = [replace(node, tls=certificate(ca, tmp_path, node.node.id)) for node in nodes]
    with trio.fail_after(60):
        # The second time, the sockets of the first time are still there.
        for expected, (near, far) in enumerate((nodes, nodes[::-1]), start=1):
            async with running(nodes):
                await trio.to_thread.run_sync(append, near)
                await trio.to_thread.run_sync(wait_for_messages, far, expected)
                modes = {stat.S_IMODE((tmp_path / f"{sid}.sock").stat().st_mode) for sid in SIDS}
                assert modes == {0o600}


async def test_socket_on_which_a_program_listens_is_left_alone(tmp_path: Path) -> None:
    address = SocketPath(tmp_path / "dc1.sock")
    [listener] = await listen(address)
    async with listener:
        with pytest.raises(
            OSError, match=r"cannot listen on unix:.*dc1\.sock: Address already in use; another program"
        ):
            await listen(address)
        async with await trio.open_unix_socket(address.path), await listener.accept():
            pass
