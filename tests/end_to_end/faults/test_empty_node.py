"""A node that has lost its disk: it serves clients only once it has met the other nodes (design section 7)."""

from __future__ import annotations

import http.client
import imaplib
import json
import os
import shutil
import smtplib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.clusters.cluster import PASSWORD, Cluster, Node
from tests.end_to_end.helpers.mail_clients import deliver, imap, log_in, uids

MAILS = 5
LARGE_MAILS = 400
BYTES_PER_S = 25_000


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


def check_serves_nobody(node: Node) -> None:
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


@pytest.mark.long
def test_node_with_a_lost_disk_waits_for_its_cluster(cluster: Cluster) -> None:
    before = uidvalidity(cluster.nodes[0])
    for node in cluster.nodes:
        node.stop()
    empty = cluster.node("dc3")
    shutil.rmtree(empty.data)
    empty.start()
    check_serves_nobody(empty)
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


@pytest.mark.long
def test_new_cluster_serves_before_its_late_nodes_start(tmp_path: Path) -> None:
    with Cluster(tmp_path / "nodes", ["alice"], late=["dc2", "dc3"]) as cluster:
        deliver(cluster.nodes[0], [b"Subject: first\r\n\r\nx\r\n"], ["alice"])
        before = uidvalidity(cluster.nodes[0])
        cluster.nodes[2].start()
        cluster.wait_together()
        cluster.wait_until_equal()
        assert uidvalidity(cluster.nodes[2]) == before


@pytest.mark.long
def test_empty_node_shows_a_mailbox_whole_before_it_has_caught_up(tmp_path: Path) -> None:
    with Cluster(tmp_path / "nodes", ["alice", "bob"], proxied=True) as cluster:
        dc1, dc3 = cluster.node("dc1"), cluster.node("dc3")
        deliver(dc1, [f"Subject: {number}\r\n\r\nx\r\n".encode() for number in range(MAILS)], ["alice"])
        large = [f"Subject: {number}\r\n\r\n{os.urandom(10_000).hex()}\r\n".encode() for number in range(LARGE_MAILS)]
        deliver(dc1, large, ["bob"])
        cluster.wait_until_equal()
        before = uidvalidity(dc1)
        dc3.stop()
        shutil.rmtree(dc3.data)
        for other in ("dc1", "dc2"):
            cluster.link(other, "dc3").throttle(BYTES_PER_S)
        dc3.start()
        client = imaplib.IMAP4(*dc3.address("imap"))
        log_in(client, "alice", PASSWORD)
        while (answer := client.select("INBOX"))[0] != "OK":
            assert b"[UNAVAILABLE]" in answer[1][0]  # type: ignore[operator]
        assert client.response("UIDVALIDITY")[1] == [before]
        assert len(uids(client)) == MAILS
        client.logout()
        status, (reason,) = health(dc3)
        assert status == http.client.SERVICE_UNAVAILABLE
        assert "entries that dc1, dc2 had when this node started" in reason
        for other in ("dc1", "dc2"):
            cluster.link(other, "dc3").throttle(float("inf"))
        cluster.wait_until_equal()
        cluster.wait_together()
        assert health(dc3) == (http.client.OK, [])
