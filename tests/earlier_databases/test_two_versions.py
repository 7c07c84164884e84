"""A cluster with nodes of two versions: they replicate, part and heal; one is upgraded, and goes back."""

from __future__ import annotations

import imaplib
import shutil
import sqlite3
from pathlib import Path

import pytest

from benchmarks.clients.wire import MeasurementError
from benchmarks.clusters.cluster import Cluster, Node
from benchmarks.clusters.prepared import DATABASE
from benchmarks.clusters.states import run_task
from protocol.commands import PROTOCOL_VERSION
from replicator.store.db.schema import SCHEMA_VERSION
from tests.earlier_databases import earlier_program
from tests.earlier_databases.earlier_program import ROOT, Machine
from tests.end_to_end.helpers.mail_clients import deliver, flags, imap, uids, until

UNAVAILABLE = earlier_program.reason_unavailable()
CHECKED_WITHIN_S = 120.0
AGREE_WITHIN_S = 60.0

Shown = dict[str, list[tuple[str, frozenset[bytes], bytes]]]
"""Folder -> UID, flags and content of each message."""


def test_the_earlier_program_speaks_the_protocol_of_today() -> None:
    assert earlier_program.PROTOCOL_VERSION == PROTOCOL_VERSION, "name the commit that has changed the protocol"


@pytest.mark.long
@pytest.mark.skipif(UNAVAILABLE is not None, reason=f"earlier version: {UNAVAILABLE}")
def test_nodes_of_two_versions_replicate_and_one_is_upgraded_and_goes_back(tmp_path: Path) -> None:
    """One story, since each node's start takes seconds."""
    earlier = earlier_program.extract(tmp_path / "earlier")
    machines = {"dc1": Machine(tmp_path / "dc1-program", earlier), "dc2": Machine(tmp_path / "dc2-program", ROOT)}
    sites = {sid: machine.site() for sid, machine in machines.items()}
    with Cluster(tmp_path / "nodes", ["alice"], size=2, copies=1, proxied=True, sites=sites) as cluster:
        old, new = cluster.nodes
        assert (schema(old), schema(new)) == (earlier_program.SCHEMA_VERSION, SCHEMA_VERSION)
        check_both_directions(cluster)
        check_fork(cluster)

        old.stop()
        deliver(new, [mail("while it is upgraded")], ["alice"])
        machines["dc1"].install(ROOT)
        old.start()
        assert schema(old) == SCHEMA_VERSION
        check_equal(cluster)
        for node in cluster.nodes:
            assert run_task(node, "check", {}, CHECKED_WITHIN_S)["damage"] == {}
        check_both_directions(cluster)
        check_equal(cluster)

        check_going_back(cluster, old, machines["dc1"], earlier)


def check_both_directions(cluster: Cluster) -> None:
    """Each node shows what clients do at the other one, whoever masters INBOX."""
    first, second = cluster.nodes
    for here, there in ((first, second), (second, first)):
        before = len(uids(client := imap(there)))
        deliver(here, [mail(f"small at {here.sid}"), mail(f"large at {here.sid}", 300_000)], ["alice"])
        until(client, lambda client=client, before=before: len(uids(client)) == before + 2)
        uid = uids(client)[-1]
        client.uid("STORE", uid, "+FLAGS", r"(\Flagged $Keyword)")
        other = imap(here)
        until(other, lambda other=other, uid=uid: flags(other, uid) == {b"\\Flagged", b"$Keyword"})
        other.create("Copies")  # or it is there from before
        assert other.uid("COPY", uid, "Copies")[0] == "OK"
        client.logout()
        other.logout()
    agree(cluster)


def check_fork(cluster: Cluster) -> None:
    """Changes at two nodes that cannot reach each other are at both after the links are mended."""
    nodes = cluster.nodes
    cluster.partition({"dc1"}, {"dc2"})
    cluster.wait_until(lambda statuses: all(status["component"] == [status["sid"]] for status in statuses), 120.0)
    for node in nodes:
        deliver(node, [mail(f"apart at {node.sid}")], ["alice"])
        client = imap(node)
        assert client.create(f"Of-{node.sid}")[0] == "OK"
        assert client.uid("STORE", uids(client)[0], "+FLAGS", f"(${node.sid})")[0] == "OK"
        assert client.uid("COPY", uids(client)[-1], f"Of-{node.sid}")[0] == "OK"
        client.logout()
    cluster.heal()
    cluster.wait_together()
    agree(cluster)
    contents = [content for messages in shown(nodes[0]).values() for _, _, content in messages]
    for node in nodes:
        assert any(content.endswith(mail(f"apart at {node.sid}")) for content in contents)


def check_equal(cluster: Cluster) -> None:
    """Nodes of one version tell by their digests that they show the same."""
    cluster.wait_together()
    cluster.wait_until_equal()
    assert shown(cluster.nodes[0]) == shown(cluster.nodes[1])


def check_going_back(cluster: Cluster, node: Node, machine: Machine, earlier: Path) -> None:
    """Do what installation.md says of going back: the database stays aside, the old version begins with none."""
    before = shown(node)
    node.stop()
    machine.install(earlier)
    with pytest.raises(MeasurementError, match="written by another version"):
        node.start()
    assert schema(node) == SCHEMA_VERSION
    shutil.move(node.data, node.data.with_name("aside"))
    node.start()
    assert schema(node) == earlier_program.SCHEMA_VERSION
    cluster.wait_together()
    agree(cluster)
    assert shown(node) == before
    check_both_directions(cluster)


def agree(cluster: Cluster) -> None:
    """Wait until both nodes show the same to clients: nodes of two versions need not count the same digest."""
    first, second = cluster.nodes
    cluster.wait_until(lambda _: shown(first) == shown(second), AGREE_WITHIN_S)


def shown(node: Node) -> Shown:
    """Return all that a client of the node is shown."""
    client = imap(node, mailbox=None)
    names = [line.rsplit(b' "/" ', 1)[1].decode() for line in client.list()[1] if isinstance(line, bytes)]
    found = {name: messages(client, name) for name in names}
    client.logout()
    return found


def messages(client: imaplib.IMAP4, name: str) -> list[tuple[str, frozenset[bytes], bytes]]:
    assert client.select(name, readonly=True)[0] == "OK"
    return [(uid, frozenset(flags(client, uid)), content(client, uid)) for uid in uids(client)]


def content(client: imaplib.IMAP4, uid: str) -> bytes:
    [(_, octets), *_] = client.uid("FETCH", uid, "(BODY.PEEK[])")[1]
    return bytes(octets)


def schema(node: Node) -> int:
    connection = sqlite3.connect(node.data / DATABASE)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def mail(subject: str, octets: int = 0) -> bytes:
    """Return a mail whose text has at least that many octets."""
    text = f"{subject}\r\n" * (1 + octets // (len(subject) + 2))
    return f"Message-ID: <{subject.replace(' ', '.')}@example.org>\r\nSubject: {subject}\r\n\r\n{text}".encode()
