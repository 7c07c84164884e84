"""LMTP in processes of its own: their shared state, and the fate of mail when one of them, or the core, dies."""

from __future__ import annotations

import shutil
import smtplib
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import psutil
import pytest
import trio
from cryptography import x509

import replicator
from benchmarks.clients.wire import Address as WireAddress
from benchmarks.clients.wire import Connection, MeasurementError, connect_lmtp, deliver
from benchmarks.clusters.cluster import Cluster, Node
from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import NodeError
from replicator.cli.authority import Authority
from replicator.cli.target import NodeUrl
from replicator.config import Address, ListenConfig, ProxyConfig, WorkersConfig, default_config
from replicator.runtime.process.own_program import environment
from replicator.workers.core import door_process
from tests.end_to_end.helpers.doors import PATIENCE_S, clients_of, doors_of, has_ended, wait_for
from tests.end_to_end.helpers.in_process import free_ports, running
from tests.end_to_end.helpers.ledger import Cache, log_in

DOORS = "[workers]\ndoors = 2\n"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Cluster(tmp_path, ["alice"], size=1, copies=1, extra=DOORS) as cluster:
        yield cluster.nodes[0]


@dataclass(eq=False)
class Sender(threading.Thread):
    """A client that delivers one mail after the other until its connection ends, or it is told to stop."""

    connection: Connection
    sender: str
    acknowledged: set[str] = field(default_factory=set)
    broken: bool = False

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()

    @property
    def port(self) -> int:
        return int(self.connection.socket.getsockname()[1])

    def run(self) -> None:
        try:
            with self.connection:
                while not self.stopped.is_set():
                    token = f"{self.sender}.{len(self.acknowledged)}"
                    deliver(self.connection, ["alice"], f"Message-ID: <{token}@example.org>\r\n\r\nx\r\n".encode())
                    self.acknowledged.add(token)
        except (OSError, MeasurementError):
            self.broken = True


def senders_at_both(node: Node) -> list[Sender]:
    """Return clients, of which each door has two at least."""
    senders: list[Sender] = []
    doors = doors_of(node)
    while min(len(clients_of(door)) for door in doors) < 2:
        assert len(senders) < 90, "one door accepts all connections"
        senders.append(Sender(connect_lmtp(node.address("lmtp")), f"sender{len(senders)}"))
    return senders


def delivers_at(door: psutil.Process, node: Node) -> bool:
    """Deliver a mail; return True if it was this door that took it."""
    with connect_lmtp(node.address("lmtp")) as connection:
        deliver(connection, ["alice"], b"Subject: x\r\n\r\nx\r\n")
        return int(connection.socket.getsockname()[1]) in clients_of(door)


def shown(node: Node) -> set[str]:
    client = log_in(node, "alice")
    found = {message.token for message in Cache(node.sid).select(client)}
    client.logout()
    return found


def test_a_door_that_is_killed_takes_its_connections_along_and_nothing_else(node: Node) -> None:
    senders = senders_at_both(node)
    died, stays = doors_of(node)
    lost = {sender for sender in senders if sender.port in clients_of(died)}
    for sender in senders:
        sender.start()
    wait_for("mail arrives", lambda: all(len(sender.acknowledged) > 2 for sender in senders))
    died.kill()
    wait_for("connections end", lambda: all(sender.broken for sender in lost))
    before = {sender: len(sender.acknowledged) for sender in senders}
    wait_for(
        "others go on",
        lambda: all(len(sender.acknowledged) > before[sender] + 2 for sender in senders if sender not in lost),
    )
    wait_for("another process", lambda: len(doors_of(node)) == 2 and stays in doors_of(node))
    for sender in senders:
        sender.stopped.set()
        sender.join()
    assert {sender for sender in senders if sender.broken} == lost
    acknowledged = set[str]().union(*(sender.acknowledged for sender in senders))
    assert acknowledged <= shown(node)
    assert node.get("/healthz")["healthy"]
    new = next(door for door in doors_of(node) if door != stays)
    wait_for("the new process serves clients, too", lambda: delivers_at(new, node))


@pytest.mark.long
def test_a_door_that_hangs_is_replaced(node: Node) -> None:
    hung, stays = doors_of(node)
    hung.suspend()
    wait_for("another process", lambda: has_ended(hung) and len(doors_of(node)) == 2)
    assert stays in doors_of(node)
    new = next(door for door in doors_of(node) if door != stays)
    wait_for("the new process serves clients, too", lambda: delivers_at(new, node))


@pytest.mark.long
def test_doors_end_with_a_core_that_is_killed(node: Node) -> None:
    senders, doors = senders_at_both(node), doors_of(node)
    for sender in senders:
        sender.start()
    wait_for("mail arrives", lambda: all(sender.acknowledged for sender in senders))
    psutil.Process(node.pid).kill()
    for sender in senders:
        sender.join(PATIENCE_S)
    assert all(sender.broken for sender in senders)
    wait_for("doors end", lambda: all(has_ended(door) for door in doors))
    node.wait_ended()
    node.start()
    assert set[str]().union(*(sender.acknowledged for sender in senders)) <= shown(node)


@pytest.mark.long
def test_doors_end_in_order_with_their_node_and_heed_no_signals_themselves(node: Node) -> None:
    doors = doors_of(node)
    with connect_lmtp(node.address("lmtp")) as connection:
        for door in doors:
            door.terminate()
        deliver(connection, ["alice"], b"Subject: x\r\n\r\nx\r\n")
    assert doors_of(node) == doors
    process = psutil.Process(node.pid)
    process.terminate()
    assert node.wait_ended() == 0
    assert all(has_ended(door) for door in doors)


def serial_number(address: Address) -> int:
    """Return the serial number of the certificate that the LMTP door shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with smtplib.LMTP(*address) as client:
        client.starttls(context=context)
        assert isinstance(client.sock, ssl.SSLSocket)
        shown = client.sock.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


@pytest.mark.long
async def test_all_doors_show_renewed_certificates(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "tests")
    authority.issue("dc1")
    lmtp, http = (Address("127.0.0.1", port) for port in free_ports(2))
    config = default_config("dc1", tmp_path, listen=ListenConfig(lmtp=lmtp, http=http))
    config = replace(config, tls=authority.files("dc1"), workers=WorkersConfig(doors=2))
    (tmp_path / "users.passwd").write_text("alice:{PLAIN}secret\n", "utf-8")
    async with running([config]):
        before = await trio.to_thread.run_sync(serial_number, lmtp)
        renewed = authority.renew("dc1")
        with NodeClient(NodeUrl(*http)) as asking:
            await trio.to_thread.run_sync(asking.reload)
        for _ in range(10):  # whichever door accepts
            assert await trio.to_thread.run_sync(serial_number, lmtp) == renewed.serial_number != before


def proxied(address: Address, client: str | None = None) -> Connection:
    """Connect as a proxy that names this client, or that speaks for itself."""
    connection = Connection(WireAddress(*address))
    head = b"\r\n\r\n\0\r\nQUIT\n"
    if client is None:
        connection.send(head + b"\x20\x00\0\0")
    else:
        addresses = IPv4Address(client).packed + IPv4Address("127.0.0.1").packed + struct.pack("!HH", 1, 2)
        connection.send(head + b"\x21\x11" + struct.pack("!H", len(addresses)) + addresses)
    connection.receive_lines(1)
    return connection


def deliver_and_read(lmtp: Address, imap: Address) -> bytes:
    with proxied(lmtp, "203.0.113.9") as sender:
        sender.send(b"LHLO mx.example\r\n")
        while not sender.receive()[-1].startswith(b"250 "):
            pass
        deliver(sender, ["alice"], b"Subject: x\r\n\r\nx\r\n")
    with proxied(imap) as reader:
        reader.send(b"a LOGIN alice secret\r\nb SELECT INBOX\r\nc FETCH 1 BODY.PEEK[HEADER.FIELDS (RECEIVED)]\r\n")
        lines: list[bytes] = []
        while not any(line.startswith(b"c ") for line in lines):
            lines += reader.receive()
    return b"\n".join(lines)


async def test_doors_hear_of_clients_from_proxies(tmp_path: Path) -> None:
    lmtp, imap = (Address("127.0.0.1", port) for port in free_ports(2))
    config = default_config("dc1", tmp_path, listen=ListenConfig(lmtp=lmtp, imap=imap))
    proxy = ProxyConfig((IPv4Network("127.0.0.1/32"),))
    (tmp_path / "users.passwd").write_text("alice:{PLAIN}secret\n", "utf-8")
    async with running([replace(config, proxy=proxy, workers=WorkersConfig(doors=1))]):
        assert b"from mx.example ([203.0.113.9])" in await trio.to_thread.run_sync(deliver_and_read, lmtp, imap)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), "utf-8")


def greeting_of(lmtp: Address) -> bytes:
    with Connection(WireAddress(*lmtp)) as connection:
        return connection.receive()[0]


@pytest.mark.long
async def test_fresh_doors_run_the_program_of_the_disk_if_they_fit_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgraded = tmp_path / "program"
    for package in ("master_election", "protocol", "replicator", "resync"):
        shutil.copytree(Path(replicator.__file__).parents[1] / package, upgraded / package)
    lmtp, http = (Address("127.0.0.1", port) for port in free_ports(2))
    config = default_config("dc1", tmp_path, listen=ListenConfig(lmtp=lmtp, http=http))
    async with running([replace(config, workers=WorkersConfig(doors=1))]):
        before = await trio.to_thread.run_sync(greeting_of, lmtp)
        monkeypatch.setattr(door_process, "environment", lambda: {**environment(), "PYTHONPATH": str(upgraded)})
        edit(upgraded / "replicator" / "lmtp" / "machine.py", "LMTP ready", "LMTP upgraded")
        with NodeClient(NodeUrl(*http)) as asking:
            await trio.to_thread.run_sync(asking.reload)
            upgraded_greeting = before.replace(b"LMTP ready", b"LMTP upgraded")
            assert await trio.to_thread.run_sync(greeting_of, lmtp) == upgraded_greeting != before
            edit(upgraded / "replicator" / "errors.py", "\n\nclass", "\n\n# changed\nclass")
            with pytest.raises(NodeError, match="another one than the node runs; restart the node"):
                await trio.to_thread.run_sync(asking.reload)
        assert await trio.to_thread.run_sync(greeting_of, lmtp) == upgraded_greeting
