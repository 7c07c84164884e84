"""A node that has lost its disk, while no other node can be reached: it serves nobody (design section 7)."""

from __future__ import annotations

import http.client
import imaplib
import json
import shutil
import smtplib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.cluster import PASSWORD, Cluster, Node
from tests.end_to_end.test_three_nodes import deliver, imap, uids

MAILS = 5


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "nodes", ["alice", "bob"]) as started:
        deliver(started.nodes[0], [f"Subject: {number}\r\n\r\nx\r\n".encode() for number in range(MAILS)], ["alice"])
        started.wait_until_equal()
        yield started


def uidvalidity(node: Node) -> bytes:
    client = imap(node)
    ((value,),) = [client.response("UIDVALIDITY")[1]]
    assert isinstance(value, bytes)
    client.logout()
    return value


def health(node: Node) -> tuple[int, list[str]]:
    connection = http.client.HTTPConnection(*node.address("http"))
    connection.request("GET", "/healthz")
    response = connection.getresponse()
    document = json.loads(response.read())
    connection.close()
    return response.status, document["reasons"]


def check_that_it_serves_nobody(node: Node) -> None:
    client = imaplib.IMAP4(*node.address("imap"))
    with pytest.raises(imaplib.IMAP4.error, match=r"\[UNAVAILABLE\] this node is new"):
        client.login("alice", PASSWORD)
    client.shutdown()
    with smtplib.LMTP(*node.address("lmtp")) as sender, pytest.raises(smtplib.SMTPDataError) as caught:
        sender.sendmail("sender@example.org", ["bob"], b"Subject: too early\r\n\r\nx\r\n")
    assert caught.value.smtp_code == 451
    assert str(caught.value.smtp_error).startswith("b'4.3.0 ")
    status, (reason,) = health(node)
    assert status == http.client.SERVICE_UNAVAILABLE
    assert "dc1 (not reached), dc2 (not reached)" in reason
    assert "--new-cluster" in reason
    assert node.get("/api/v1/status")["not_serving"] == [reason]
    assert reason in node.log_tail()


def test_an_empty_node_waits_for_the_cluster_that_it_was_of(cluster: Cluster) -> None:
    before = uidvalidity(cluster.nodes[0])
    for node in cluster.nodes:
        node.stop()
    empty = cluster.node("dc3")
    shutil.rmtree(empty.data)
    empty.start()
    check_that_it_serves_nobody(empty)
    cluster.node("dc1").start()
    cluster.node("dc2").start()
    cluster.wait_together()
    cluster.wait_until_equal()
    assert {uidvalidity(node) for node in cluster.nodes} == {before}
    client = imap(empty)
    assert len(uids(client)) == MAILS
    client.logout()
    deliver(empty, [b"Subject: after\r\n\r\nx\r\n"], ["bob"])
    assert health(empty) == (http.client.OK, [])


def test_a_cluster_is_begun_without_nodes_that_are_not_there(tmp_path: Path) -> None:
    with Cluster(tmp_path / "nodes", ["alice"], late=["dc2", "dc3"]) as cluster:
        deliver(cluster.nodes[0], [b"Subject: first\r\n\r\nx\r\n"], ["alice"])
        before = uidvalidity(cluster.nodes[0])
        cluster.nodes[2].start()
        cluster.wait_together()
        cluster.wait_until_equal()
        assert uidvalidity(cluster.nodes[2]) == before
