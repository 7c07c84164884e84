"""Messages larger than the memory that a node may use for them, some of which are interrupted on their way.

`LARGE_MIB=100` makes them as large as mail servers accept.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.clients.large_mails import ENDS, LETTER, LargeMail
from benchmarks.clients.streaming import StreamingImap, deliver_streamed
from benchmarks.clients.wire import connect_lmtp
from benchmarks.clusters.cluster import PASSWORD, Cluster, Node
from benchmarks.clusters.process_memory import watch
from benchmarks.clusters.states import expect_master, run_task
from protocol.units import MIB
from tests.end_to_end.helpers.mail_clients import OUR_HEADERS

SIZE = int(os.environ.get("LARGE_MIB", "48")) * MIB
INTERRUPTED = SIZE // 4
GROWTH_MAX = min(32 * MIB, SIZE * 2 // 3)  # of a node, which must hold neither such a message nor its attachment
PART_START = min(50_000_000, SIZE // 2)
SLOW_BYTES_PER_S = INTERRUPTED / 4
WITHIN_S = 60.0
SMALL = b"Subject: small\r\n\r\nsmall\r\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes that have handled a smaller message: what they load at its first use takes memory once."""
    users = ["first", "structured", "plain", "scattered", "appended", "sent", "shipped"]
    with Cluster(tmp_path_factory.mktemp("large") / "nodes", users, proxied=True) as started:
        first = Reader(LargeMail.scattered(SIZE // 16, 0))
        with connect_lmtp(started.nodes[0].address("lmtp")) as lmtp:
            deliver_streamed(lmtp, "first", first.chunks_to_send())
        started.wait_until_equal()
        fetch(started.nodes[2], "first", first)
        yield started


class Reader:
    """The comparison of a mail that is read, piece by piece, with what was sent; `before`: the headers before it."""

    def __init__(self, mail: LargeMail) -> None:
        self.before = b""
        self._mail, self._has_begun = mail, False
        self._found, self._sent = hashlib.sha256(), hashlib.sha256()

    def chunks_to_send(self) -> Iterator[bytes]:
        for chunk in self._mail:
            self._sent.update(chunk)
            yield chunk

    def take(self, data: bytes) -> None:
        if not self._has_begun:
            self.before, head, data = (self.before + data).partition(self._mail.head)
            self._has_begun = bool(head)
            self._found.update(head)
        self._found.update(data)

    @property
    def is_unchanged(self) -> bool:
        return self._found.digest() == self._sent.digest()


@contextmanager
def limited_memory(cluster: Cluster) -> Iterator[None]:
    """Check that no node's memory grows by the size of a message."""
    peaks = watch(cluster.nodes)
    yield
    grown = {sid: peak.grown_bytes for sid, peak in peaks.items()}
    print({sid: f"{peaks[sid].before_bytes / MIB:.0f} MiB + {grown[sid] / MIB:.1f}" for sid in grown})  # noqa: T201 - shown if the test fails
    assert max(grown.values()) < GROWTH_MAX


def make_master(node: Node, user: str) -> None:
    """Make the node the master of the user's mailboxes."""
    with connect_lmtp(node.address("lmtp")) as lmtp:
        deliver_streamed(lmtp, user, [SMALL])
    expect_master(node, user, node.sid)


def fetch(node: Node, user: str, reader: Reader) -> None:
    with StreamingImap(node.address("imap"), user, PASSWORD) as imap:
        imap.command("SELECT INBOX")
        imap.literal("FETCH * BODY.PEEK[]", reader.take)
    assert reader.is_unchanged


@pytest.mark.long
@pytest.mark.parametrize(
    ("user", "mail"),
    [
        ("structured", LargeMail.attached(SIZE, 1)),
        ("plain", LargeMail.plain(SIZE, 2)),
        ("scattered", LargeMail.scattered(SIZE, 6)),
    ],
    ids=["structured", "plain", "scattered"],
)
def test_large_message_passes_through_the_master_to_a_third_node(cluster: Cluster, user: str, mail: LargeMail) -> None:
    dc1, dc2, dc3 = cluster.nodes
    make_master(dc2, user)
    cluster.wait_until_equal()
    reader = Reader(mail)
    with limited_memory(cluster):
        with connect_lmtp(dc1.address("lmtp")) as lmtp:
            deliver_streamed(lmtp, user, reader.chunks_to_send())
        cluster.wait_until_equal()
        fetch(dc3, user, reader)
        with StreamingImap(dc3.address("imap"), user, PASSWORD) as imap:
            imap.command("SELECT INBOX")
            assert imap.command("SEARCH SUBJECT Large SUBJECT number") == [b"* SEARCH 2"]
            [header] = [line for line in imap.command("FETCH 2 BODY.PEEK[HEADER.FIELDS (SUBJECT)]") if b":" in line]
    assert header == f"Subject: Large, number {mail.seed}".encode()
    assert OUR_HEADERS.fullmatch(reader.before)


@pytest.mark.long
def test_large_message_appended_at_its_master_is_read_in_parts_elsewhere(cluster: Cluster) -> None:
    dc1, dc2, _ = cluster.nodes
    mail = LargeMail.attached(SIZE, 3)
    make_master(dc2, "appended")
    cluster.wait_until_equal()
    reader, part = Reader(mail), bytearray()
    with limited_memory(cluster):
        with StreamingImap(dc2.address("imap"), "appended", PASSWORD) as imap:
            imap.append("INBOX", mail.size_bytes, reader.chunks_to_send())
        cluster.wait_until_equal()
        fetch(dc1, "appended", reader)
        with StreamingImap(dc1.address("imap"), "appended", PASSWORD) as imap:
            imap.command("SELECT INBOX")
            imap.literal(f"FETCH * BODY.PEEK[2]<{PART_START}.1000>", part.extend)
            [structure] = imap.command("FETCH * BODYSTRUCTURE")
    assert reader.before == b""
    assert bytes(part) == mail.body_slice(PART_START, 1000)
    assert structure == structure_of(mail)


def structure_of(mail: LargeMail) -> bytes:
    """Return the BODYSTRUCTURE (RFC 3501 section 7.4.2). A part ends before its last CRLF (RFC 2046 section 5.1.1)."""
    text = '("TEXT" "PLAIN" ("charset" "us-ascii") NIL NIL "7BIT" {} 1 NIL NIL NIL NIL)'
    file = f'("APPLICATION" "OCTET-STREAM" NIL NIL NIL "BASE64" {mail.body_bytes} NIL NIL NIL NIL)'
    letter, last = text.format(len(LETTER)), text.format(len(ENDS.split(b"\r\n\r\n")[1]) + 2)
    return f'* 2 FETCH (BODYSTRUCTURE ({letter}{file}{last} "MIXED" ("boundary" "=_parts") NIL NIL NIL))'.encode()


def attachments(node: Node) -> dict[Path, int]:
    """Return all files of the node's attachment store, and their sizes. Some may go while they are listed."""
    found: dict[Path, int] = {}
    for directory, _, names in os.walk(node.data / "attachments"):
        for path in (Path(directory, name) for name in names if Path(directory).name != "owners"):
            if path.exists():
                found[path] = path.stat().st_size
    return found


def wait_for_more(cluster: Cluster, node: Node, before: dict[Path, int]) -> None:
    """Wait until a part of a large message is in the attachment store."""
    wanted = sum(before.values()) + INTERRUPTED // 8
    cluster.wait_until(lambda _: sum(attachments(node).values()) > wanted, WITHIN_S)


def scrubbed(node: Node) -> dict[Path, int]:
    run_task(node, "scrub", {}, WITHIN_S)
    return attachments(node)


def contents(found: dict[Path, int]) -> dict[Path, int]:
    return {path: size for path, size in found.items() if path.name.startswith("content")}


@pytest.mark.long
def test_interrupted_delivery_leaves_no_attachment_behind(cluster: Cluster) -> None:
    dc1 = cluster.nodes[0]
    before = scrubbed(dc1)
    with connect_lmtp(dc1.address("lmtp")) as lmtp:
        lmtp.send(b"MAIL FROM:<bench@example.org>\r\nRCPT TO:<sent>\r\nDATA\r\n")
        lmtp.receive_lines(3)
        mail = LargeMail.attached(INTERRUPTED, 4)
        lmtp.send(mail.head)
        lmtp.send(mail.body_slice(0, INTERRUPTED // 2))
        wait_for_more(cluster, dc1, before)
        dc1.kill()
    assert attachments(dc1) != before
    dc1.start()
    cluster.wait_together()
    cluster.wait_until_equal()
    after = scrubbed(dc1)
    assert after.keys() <= before.keys()
    assert contents(after) == contents(before)  # holders of earlier messages may have gone


@pytest.mark.long
def test_node_killed_during_a_download_has_the_message_once_in_the_end(cluster: Cluster) -> None:
    dc1, _, dc3 = cluster.nodes
    before = scrubbed(dc3)
    reader = Reader(LargeMail.attached(INTERRUPTED, 5))
    for other in ("dc1", "dc2"):
        cluster.link(other, "dc3").throttle(SLOW_BYTES_PER_S)
    with connect_lmtp(dc1.address("lmtp")) as lmtp:
        deliver_streamed(lmtp, "shipped", reader.chunks_to_send())
    wait_for_more(cluster, dc3, before)
    dc3.kill()
    assert attachments(dc3) != before
    for other in ("dc1", "dc2"):
        cluster.link(other, "dc3").throttle(float("inf"))
    dc3.start()
    cluster.wait_together()
    cluster.wait_until_equal()
    fetch(dc3, "shipped", reader)
    new = {path.relative_to(dc3.data) for path in scrubbed(dc3).keys() - before.keys()}
    assert sorted(path.parent.name == "holders" for path in new) == [False, True]
