"""Two linked nodes in this process, with a mail client for each."""

from __future__ import annotations

import imaplib
from pathlib import Path

from replicator.config import Address, Config, ListenConfig, PeerConfig, SocketPath, default_config
from tests.end_to_end.helpers.in_process import free_ports
from tests.end_to_end.helpers.mail_clients import log_in

SIDS = ("dc1", "dc2")


def configs(directory: Path) -> list[Config]:
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


def client_of(config: Config) -> imaplib.IMAP4:
    assert config.listen.imap is not None
    client = imaplib.IMAP4(*config.listen.imap)
    log_in(client, "alice", "secret")
    return client
