"""A Dovecot that syncs with one node of a cluster, and then with the other one."""

from __future__ import annotations

import imaplib
from dataclasses import replace
from pathlib import Path

import trio

from replicator.config import Address, Config, DoveadmConfig
from tests.dsync.dovecot import PASSWORD, Dovecot, dovecot, needs_dovecot
from tests.dsync.sides import Master
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.end_to_end.helpers.two_nodes import client_of, configs

USER = "alice"
Mails = list[tuple[int, frozenset[str]]]


def with_doors(directory: Path) -> list[Config]:
    (directory / "secret").write_text(f"{PASSWORD}\n", "utf-8")
    doors = [Address("127.0.0.1", port) for port in free_ports(2)]
    return [
        replace(config, listen=replace(config.listen, doveadm=door), doveadm=DoveadmConfig(directory / "secret"))
        for config, door in zip(configs(directory), doors, strict=True)
    ]


def mails(client: imaplib.IMAP4, folder: str) -> Mails:
    """Return UIDs and flags, as the node shows them when it shows what other nodes have said OK for."""
    assert client.select(folder)[0] == "OK"
    found = []
    for line in client.uid("FETCH", "1:*", "(FLAGS)")[1]:
        if line:
            flags = frozenset(flag.decode() for flag in imaplib.ParseFlags(line)) - {"\\Recent"}
            found.append((int(line.partition(b"UID ")[2].split(b" ")[0].rstrip(b")")), flags))
    client.close()
    return found


def at_dovecot(server: Dovecot, folder: str) -> Mails:
    return [(uid, flags) for uid, _, flags in server.mails(USER, folder)]


@needs_dovecot
async def test_any_node_will_do(tmp_path: Path) -> None:
    nodes = with_doors(tmp_path)
    with dovecot() as server:
        async with running(nodes):
            await trio.to_thread.run_sync(use, server, nodes)


def use(server: Dovecot, nodes: list[Config]) -> None:
    masters = [Master(server, f"tcp:{node.listen.doveadm}", user=USER) for node in nodes]
    clients = [client_of(node) for node in nodes]

    def sync(at: int, kind: str = "c") -> None:
        done = trio.from_thread.run(masters[at].sync, kind)
        assert done.returncode == 0, done
        for folder in ("INBOX", "Work"):
            assert at_dovecot(server, folder) == mails(clients[at], folder) == mails(clients[1 - at], folder), folder

    for number in range(3):
        server.save(USER, b"Subject: %d\r\n\r\n" % number)
    server.do("mailbox", "create", "-u", USER, "Work")
    sync(0)
    for at in (1, 0, 1, 0):
        for client in clients:
            client.append("INBOX", "(\\Flagged)", imaplib.Time2Internaldate(1e9), b"Subject: of a node\r\n\r\n")
            client.append("Work", "", imaplib.Time2Internaldate(1e9), b"Subject: at work\r\n\r\n")
        clients[at].select("INBOX")
        clients[at].uid("STORE", "2", "+FLAGS" if at else "-FLAGS", "(\\Seen kw)")
        server.save(USER, b"Subject: under the UID of a node's mail\r\n\r\n")
        server.do("flags", "add", "-u", USER, "\\Answered", "mailbox", "INBOX", "uid", "1")
        sync(at, "s" if at else "c")
    clients[0].select("INBOX")
    clients[0].uid("STORE", "1", "+FLAGS", "(\\Deleted)")
    clients[0].expunge()
    server.do("expunge", "-u", USER, "mailbox", "INBOX", "uid", "3")
    sync(1)
    assert len(at_dovecot(server, "INBOX")) == 3 + 4 * 3 - 2
    for client in clients:
        client.logout()
