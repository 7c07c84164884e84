"""Stalls of a node: no task may hold its event loop, for any request of clients, mail servers, programs and nodes.

One node is sent the heaviest that each of its doors accepts, at mailboxes of tens of thousands of messages, and tells
by its own metrics for how long it was held. The time of the processor counts, and so a busy machine is not to blame.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks.clients.wire import ImapClient, connect_lmtp, deliver
from benchmarks.clusters.cluster import Cluster, Node
from protocol.commands import PROTOCOL_VERSION, Hello, Links, Ping
from protocol.stream_codec import Encoder
from tests.end_to_end.helpers.stalls import Stalls, stalls

pytestmark = pytest.mark.long

MESSAGES = 32_768
HELD_MAX_S = 0.2  # of the processor: twice the longest that was measured on a busy machine, without collections
COLLECTIONS = 1  # full ones of garbage that may come meanwhile; each takes 0.1 s and more with so much in memory
TREES, LEVELS = 320, 31  # nearly as many folders as a user may have


class Gauge:
    """Stalls of the node's loop by each command. Work that it leaves to do may count for the next one."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._last = stalls(node)
        self.table: list[tuple[str, Stalls]] = []

    def measure(self, what: str, do: Callable[[], object]) -> None:
        do()
        before, self._last = self._last, stalls(self._node)
        self.table.append((what, self._last.since(before)))


def pipelined(node: Node, commands: bytes, count: int) -> None:
    """Log in as alice, send many commands at once, and read as many answers."""
    with ImapClient(node.address("imap"), "alice", "bench") as client:
        client.connection.send(commands)
        client.connection.receive_lines(count)


def ask(node: Node, method: str, path: str, body: bytes | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", node.ports["http"], timeout=70)
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def run(client: ImapClient, text: str | bytes) -> bytes:
    """Send a command and read up to its answer, whatever that is."""
    line = text.encode() if isinstance(text, str) else text
    client.connection.send(b"x " + line + b"\r\n")
    while True:
        for answer in client.connection.receive():
            if answer.startswith(b"x "):
                return answer


def play_peer(node: Node, commands: bytes) -> None:
    """Be dc1, and send these commands once the link is up. Read until the node is silent for a second."""
    encoder = Encoder()
    hello = Hello(PROTOCOL_VERSION, "dc1", f"dc1.{time.time_ns():x}", "mail", (), time.time_ns() // 1_000_000)
    with socket.create_connection(node.address("peer"), timeout=60) as stream:
        stream.sendall(encoder.request("hello", hello))
        assert b"HELLO" in stream.recv(65536)
        stream.sendall(encoder.request(None, Links(())))
        stream.settimeout(1.0)
        try:
            stream.sendall(commands)
            while stream.recv(1 << 20):
                pass
        except OSError:
            pass


def nested(levels: int) -> bytes:
    """Return a mail with parts within parts."""
    heads = "".join(f'Content-Type: multipart/mixed; boundary="b{n}"\r\n\r\n--b{n}\r\n' for n in range(levels))
    return f"Subject: deep\r\n{heads}\r\nend\r\n".encode()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("stalls") / "nodes"
    users = ["alice", "bob", "carol", *(f"user{number}" for number in range(100))]
    with Cluster(directory, users, size=2, late=["dc1"]) as cluster:
        yield cluster.node("dc2")


def fill(node: Node) -> None:
    with connect_lmtp(node.address("lmtp")) as lmtp:
        deliver(lmtp, ["alice"], b"Subject: one\r\n\r\nof many\r\n")
    with ImapClient(node.address("imap"), "alice", "bench") as client:
        run(client, "CREATE Copies")
        run(client, "SELECT INBOX")
        count = 1
        while count < MESSAGES:
            run(client, "COPY 1:* INBOX")
            run(client, "NOOP")
            count *= 2


def create_folders(node: Node) -> None:
    with ImapClient(node.address("imap"), "bob", "bench") as client:
        for number in range(TREES):
            run(client, f"CREATE top/{number}/" + "/".join(f"{level}" for level in range(LEVELS - 2)))


def test_nothing_from_outside_holds_the_loop(node: Node) -> None:
    gauge = Gauge(node)
    measure = gauge.measure
    measure("fill an INBOX by COPY", lambda: fill(node))
    imap, peer = node.address("imap"), Encoder()
    with ImapClient(imap, "alice", "bench") as watcher, ImapClient(imap, "alice", "bench") as client:
        every_second = ",".join(str(number) for number in range(1, 20_000, 2))[:60_000].rpartition(",")[0]
        measure("SELECT", lambda: run(watcher, "SELECT INBOX"))
        run(client, "SELECT INBOX")
        for text in (
            "STATUS INBOX (MESSAGES UNSEEN UIDNEXT)",
            "FETCH 1:* (UID FLAGS INTERNALDATE RFC822.SIZE)",
            "FETCH 1:2000 (ENVELOPE BODYSTRUCTURE BODY.PEEK[])",
            "UID SEARCH NOT SEEN",
            f"SEARCH UID {every_second}",
            "SEARCH " + "OR TEXT x " * 40 + "ALL",
            "SEARCH RETURN (SAVE) NOT SEEN",
            "UID SEARCH RETURN (ALL) $",
            "SORT (REVERSE ARRIVAL SIZE) UTF-8 $",
            "SORT (SUBJECT REVERSE FROM) UTF-8 1:5000",
            "THREAD REFERENCES UTF-8 1:5000",
            r"STORE 1:* +FLAGS (\Flagged $One)",
            r"STORE 1:* -FLAGS.SILENT (\Flagged)",
            r"STORE 1:* FLAGS (\Seen $Two)",
            rf"UID STORE {every_second} +FLAGS.SILENT (\Answered)",
            rf"STORE {every_second} -FLAGS (\Answered)",
            f"COPY {every_second} Copies",
        ):
            measure(text[:40], lambda text=text: run(client, text))  # type: ignore[misc]
        measure("NOOP of a session that watched", lambda: run(watcher, "NOOP"))
        measure("COPY 1:* Copies", lambda: run(client, "COPY 1:* Copies"))
        measure("MOVE 1:10000 Copies", lambda: run(client, "MOVE 1:10000 Copies"))
        measure("NOOP after a MOVE", lambda: run(watcher, "NOOP"))
        run(client, r"STORE 1:* +FLAGS.SILENT (\Deleted)")
        run(watcher, "NOOP")
        measure("EXPUNGE of all", lambda: run(client, "EXPUNGE"))
        measure("NOOP after an EXPUNGE", lambda: run(watcher, "NOOP"))
        run(client, "SELECT Copies")
        run(client, r"STORE 1:* +FLAGS.SILENT (\Deleted)")
        measure("CLOSE", lambda: run(client, "CLOSE"))
        for name, line in {
            "keywords": b"STORE 1 FLAGS (" + b" ".join(b"k%d" % number for number in range(9000))[:60_000] + b")",
            "no command": b"A" * 65_000,
            "unknown words": b"NOOP " + b"A " * 32_000,
            "a name": b'CREATE "' + b"a/" * 32_000 + b'"',
            "parentheses": b"SEARCH " + b"(" * 30_000,
            "fetch items": b"FETCH 1 (" + b"FLAGS " * 10_000 + b"UID)",
            "quoted": b'LIST "" "' + rb"\\" * 30_000 + b'"',
        }.items():
            measure(f"64 KiB of {name}", lambda line=line: run(client, line))  # type: ignore[misc]
    measure("20,000 NOOPs at once", lambda: pipelined(node, b"a NOOP\r\n" * 20_000, 20_000))
    measure("20,000 CAPABILITYs", lambda: pipelined(node, b"a CAPABILITY\r\n" * 20_000, 40_000))

    measure("CREATE of 10,000 folders", lambda: create_folders(node))
    with ImapClient(imap, "bob", "bench") as client:
        for text in (
            'LIST "" "*"',
            'LIST "" "%*%*%*%*%*%*%*x"',
            'LSUB "" "*"',
            "CREATE other",
            "STATUS top/1 (MESSAGES)",
            "SUBSCRIBE top",
            "RENAME top/0 moved",
            "RENAME top elsewhere",
            "DELETE elsewhere/1/0/1/2",
            "DELETE elsewhere",
        ):
            measure(text, lambda text=text: run(client, text))  # type: ignore[misc]

    with connect_lmtp(node.address("lmtp")) as lmtp:

        def send(commands: bytes, answers: int) -> None:
            lmtp.send(commands)
            lmtp.receive_lines(answers)

        measure("LMTP: 20,000 NOOPs", lambda: send(b"NOOP\r\n" * 20_000, 20_000))
        many = b"".join(b"RCPT TO:<user%d>\r\n" % (number % 100) for number in range(5000))
        measure("LMTP: 5,000 recipients", lambda: send(b"MAIL FROM:<a@example.org>\r\n" + many + b"RSET\r\n", 5002))
        header = b"".join(b"X-Field-%d: a value (comment) of a field\r\n" % number for number in range(10_000))
        for name, mail in {
            "10,000 header fields": header + b"\r\nbody\r\n",
            "a header field of 8 MiB": b"Subject: " + b"a word\r\n " * 1_000_000 + b"\r\n\r\nbody\r\n",
            "10,000 addresses": b"To: " + b"A B <a@example.org>,\r\n " * 10_000 + b"c@example.org\r\n\r\nbody\r\n",
            "100 nested parts": nested(100),
            "10,000 nested parts": nested(10_000),
            "4 MiB of empty lines": b"Subject: x\r\n\r\n" + b"\r\n" * 2_000_000,
            "100,000 small parts": b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n'
            + b"--b\r\n\r\nx\r\n" * 100_000,
        }.items():
            measure(f"LMTP: {name}", lambda mail=mail: deliver(lmtp, ["carol"], mail))  # type: ignore[misc]

    with ImapClient(imap, "carol", "bench") as client:
        measure("SELECT of monsters", lambda: run(client, "SELECT INBOX"))
        for text in ("ENVELOPE", "BODYSTRUCTURE", "BODY.PEEK[HEADER.FIELDS (X-FIELD-9999)]", "BODY.PEEK[TEXT]<0.99>"):
            measure(f"FETCH {text} of monsters", lambda text=text: run(client, f"FETCH 1:* ({text})"))  # type: ignore[misc]
        measure("SEARCH TEXT in monsters", lambda: run(client, "SEARCH TEXT nowhere"))
        for text in ("SEARCH FROM nobody", "SORT (TO SUBJECT DISPLAYTO) UTF-8 ALL", "THREAD REFS UTF-8 ALL"):
            measure(f"{text} of monsters", lambda text=text: run(client, text))  # type: ignore[misc]

    heads = {"dc1": ["dc1.1", 1], "dc2": ["dc2.1", 1]}
    planned = [
        {"user": f"u{number}", "mailbox": f"{number:032x}", "uidvalidity": 1, "heads": heads} for number in range(5000)
    ]
    for name, body in {
        "a plan of 5,000 mailboxes": json.dumps({"mailboxes": planned, "dry_run": True}).encode(),
        "4 MiB of brackets": b"[" * (4 << 20),
        "4 MiB of objects": b'{"a":[' + b"{}," * ((4 << 20) // 3 - 10) + b"1]}",
        "4 MiB of numbers": b'{"a":[' + b"1," * ((4 << 20) // 2 - 10) + b"1]}",
    }.items():
        measure(f"POST apply: {name}", lambda body=body: ask(node, "POST", "/api/v1/apply", body))  # type: ignore[misc]
    for path in ("/metrics", "/api/v1/status", "/api/v1/mailboxes", "/api/v1/users/alice/messages", "/healthz"):
        measure(f"GET {path}", lambda path=path: ask(node, "GET", path))  # type: ignore[misc]

    pings = b"".join(peer.request(f"r{number}", Ping()) for number in range(100_000))
    measure("peer: 100,000 PINGs", lambda: play_peer(node, pings))
    notices = peer.request(None, Links(())) * 100_000
    measure("peer: 100,000 LINKS", lambda: play_peer(node, notices))

    for what, held in gauge.table:
        print(f"{held.total_s:6.3f} s in {held.times:3.0f} times, each below {held.longest_below_s} s: {what}")  # noqa: T201
    heavy = {what: held for what, held in gauge.table if held.longer_than(HELD_MAX_S)}
    assert sum(held.longer_than(HELD_MAX_S) for held in heavy.values()) <= COLLECTIONS, heavy
