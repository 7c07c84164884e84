"""A master whose process is paused, and resumes when another node has become master."""

from __future__ import annotations

import imaplib
import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from benchmarks.clusters.cluster import Cluster, Node
from tests.effort import examples
from tests.end_to_end.helpers.ledger import fetch, log_in

SIDS = ("dc1", "dc3")  # the root, and a node that does not dial
ROUNDS = examples(1, 2)
USERS = [f"{sid}-{number}" for sid in SIDS for number in range(ROUNDS)]
SHORT_TIMEOUTS = '[mastership]\nheartbeat = "500ms"\ntimeout = "2s"\n'
WAITING = 5  # commands, each on a connection of its own
APPENDUID = re.compile(rb"OK \[APPENDUID \d+ (\d+)\]")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("still") / "nodes", USERS, extra=SHORT_TIMEOUTS) as started:
        yield started


def send_append(client: imaplib.IMAP4, token: str) -> None:
    """Send a whole APPEND at once; it waits in the node's socket while the node does not read it."""
    body = f"Message-ID: <{token}@example.org>\r\n\r\nx\r\n".encode()
    client.send(b"a APPEND INBOX {%d+}\r\n%s\r\n" % (len(body), body))


def uid_told(client: imaplib.IMAP4) -> int:
    while not (line := client.readline()).startswith(b"a "):
        assert line, "the connection has ended"
    told = APPENDUID.search(line)
    assert told, line
    return int(told[1])


def append(client: imaplib.IMAP4, token: str) -> int:
    send_append(client, token)
    return uid_told(client)


def shown(node: Node, user: str) -> dict[str, int]:
    with log_in(node, user) as client:
        client.select("INBOX")
        return {message.token: message.uid for message in fetch(client)}


@pytest.mark.long
@pytest.mark.parametrize("sid", SIDS)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_paused_master_carries_out_waiting_commands_without_a_fork(cluster: Cluster, sid: str, number: int) -> None:
    """Every UID that a client is told stays, with 2 copies and the default of `when_short`."""
    user, node, other = f"{sid}-{number}", cluster.node(sid), cluster.node("dc2")
    cluster.wait_together()
    with ExitStack() as stack:
        waiting = [stack.enter_context(log_in(node, user)) for _ in range(WAITING)]
        elsewhere = stack.enter_context(log_in(other, user))
        told = {"first": append(waiting[0], "first")}
        cluster.wait_until_equal()
        node.pause()
        try:
            for at, client in enumerate(waiting):
                send_append(client, f"waits-{at}")
            told |= {token: append(elsewhere, token) for token in ("elsewhere-1", "elsewhere-2")}
        finally:
            node.resume()
        told |= {f"waits-{at}": uid_told(client) for at, client in enumerate(waiting)}
        told["later"] = append(elsewhere, "later")
        cluster.wait_together()
        cluster.wait_until_equal()
    for one in cluster.nodes:
        assert shown(one, user) == told, f"{one.sid} shows other UIDs than clients were told"
    assert "this node stood still for " in node.log_tail()
