"""Mail at three node processes: delivery at one node, and reading and changes at others."""

from __future__ import annotations

import imaplib
import re
from collections.abc import Iterator

import pytest

from benchmarks.clusters.cluster import Cluster, Node
from tests.end_to_end.helpers.mail_clients import OUR_HEADERS, deliver, flags, hard_messages, imap, uids, until

FORMER_RETURN_PATH = re.compile(rb"\AReturn-Path:[^\r]*\r\n")  # final delivery replaces it


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "nodes", ["alice", "bob"], "", {}) as started:
        yield started


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[list[Node]]:
    """The nodes, which must show the same after each test."""
    yield cluster.nodes
    cluster.wait_until_equal()


def folders(client: imaplib.IMAP4) -> str:
    return str(client.list()[1])


def test_hard_messages_read_back_byte_for_byte_at_another_node(nodes: list[Node]) -> None:
    sent = hard_messages()
    deliver(nodes[0], sent, ["alice", "bob"])
    for user in ("alice", "bob"):
        client = imap(nodes[1], user)
        until(client, lambda client=client: len(uids(client)) == len(sent))
        for uid, message in zip(uids(client), sent, strict=True):
            _, data = client.uid("FETCH", uid, "(RFC822.SIZE BODY.PEEK[] BODYSTRUCTURE ENVELOPE)")
            assert isinstance(data[0], tuple)
            head, body = data[0]
            ours = OUR_HEADERS.match(body)
            assert ours is not None
            expected = message if message.endswith(b"\r\n") else message + b"\r\n"
            assert body[ours.end() :] == FORMER_RETURN_PATH.sub(b"", expected)
            size = re.search(rb"RFC822\.SIZE (\d+)", head)
            assert size is not None
            assert int(size[1]) == len(body)
            client.uid("FETCH", uid, "(BODY.PEEK[HEADER] BODY.PEEK[TEXT] BODY.PEEK[1])")
        client.logout()


def test_a_flag_set_at_one_node_shows_at_another(nodes: list[Node]) -> None:
    deliver(nodes[0], [b"Subject: flags\r\n\r\nx\r\n"], ["alice"])
    far, near = imap(nodes[2]), imap(nodes[0])
    until(far, lambda: uids(far, "SUBJECT", "flags"))
    uid = uids(far, "SUBJECT", "flags")[-1]
    far.uid("STORE", uid, "+FLAGS", r"(\Flagged $Important)")
    until(near, lambda: flags(near, uid) == {b"\\Flagged", b"$Important"})
    near.uid("STORE", uid, "-FLAGS", r"(\Flagged)")
    until(far, lambda: flags(far, uid) == {b"$Important"})
    far.logout()
    near.logout()


def test_copy_move_expunge_and_folders_from_different_nodes(nodes: list[Node]) -> None:
    first, second, third = (imap(node, "bob") for node in nodes)
    for number in range(3):
        first.append("INBOX", "", "", f"Subject: to move {number}\r\n\r\nx\r\n".encode())
    assert second.create("Archive/2026")[0] == "OK"
    until(third, lambda: "Archive/2026" in folders(third))
    until(third, lambda: len(uids(third, "SUBJECT", '"to move"')) == 3)
    one, two, three = uids(third, "SUBJECT", '"to move"')
    assert third.uid("COPY", one, "Archive/2026")[0] == "OK"
    assert third.uid("MOVE", two, "Archive/2026")[0] == "OK"
    second.select("Archive/2026")
    until(second, lambda: len(uids(second)) == 2)
    second.select("INBOX")  # the deletion of a selected folder would end the connection
    until(first, lambda: two not in uids(first))
    first.uid("STORE", three, "+FLAGS", r"(\Deleted)")
    first.expunge()
    until(third, lambda: three not in uids(third))
    assert one in uids(third)
    assert first.rename("Archive/2026", "Archive/Done")[0] == "OK"
    until(third, lambda: "Archive/Done" in folders(third))
    assert third.delete("Archive/Done")[0] == "OK"
    until(first, lambda: "Archive/Done" not in folders(first))
    assert first.subscribe("Archive")[0] == "OK"
    until(second, lambda: "Archive" in str(second.lsub()[1]))
    for client in (first, second, third):
        client.logout()


def test_an_idle_at_one_node_hears_of_a_delivery_at_another(nodes: list[Node]) -> None:
    client = imap(nodes[1])
    client.noop()
    before = len(uids(client))
    client.send(b"i1 IDLE\r\n")
    assert client.readline().startswith(b"+")
    deliver(nodes[0], [b"Subject: now\r\n\r\nx\r\n"], ["alice"])
    client.sock.settimeout(20)
    line = client.readline()
    while b"EXISTS" not in line:
        assert line
        line = client.readline()
    assert line == b"* %d EXISTS\r\n" % (before + 1)
    client.send(b"DONE\r\n")
    while not line.startswith(b"i1 OK"):
        line = client.readline()
    client.shutdown()
