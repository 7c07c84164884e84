"""One logo in a thousand mails: bytes on the nodes' disks, and between the nodes.

The mails come in at all nodes in turn, and each user gets some from each. The delivered volume is the sum of the mails'
octets. Without any sharing each node would have all of it on its disk, and it would travel twice: to the two nodes at
which it did not come in. The disk figure is the space that files and directories occupy after the nodes have ended; the
line figure includes everything carried, with heartbeats, without compression.

For comparison the same mails are delivered with a file of its own in each: in the attachment store, and in the
database.
"""

from __future__ import annotations

import base64
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from benchmarks.clients.wire import connect_lmtp, deliver
from benchmarks.clusters.cluster import Cluster, Node
from benchmarks.clusters.proxy import BOTH
from benchmarks.clusters.states import are_equal
from benchmarks.figures.scale import Scale
from benchmarks.report.figure import Figure

NODES = 3
USERS = tuple(f"user{number:02d}" for number in range(1, 21))
FILE_BYTES = 200 * 1024
LETTER_WORDS = 150
IN_DATABASE = '[content]\ninline_max = "1MiB"\n'
BLOCK_BYTES = 512  # stat(2), st_blocks
SETTLED_WITHIN_S = 120.0


@dataclass(frozen=True)
class Cost:
    """Cost of a volume of mail, delivered once."""

    delivered_bytes: int
    disk_bytes: int
    travelled_bytes: int
    mails_per_s: float
    detail: dict[str, object]

    @property
    def disk(self) -> float:
        """Percent of the volume of all mails at all nodes."""
        return 100 * self.disk_bytes / (NODES * self.delivered_bytes)

    @property
    def travelled(self) -> float:
        """Percent of the volume of all mails to each node but one."""
        return 100 * self.travelled_bytes / ((NODES - 1) * self.delivered_bytes)


def shared_attachments(directory: Path, scale: Scale) -> list[Figure]:
    count = scale.shared_mails
    shared = _cost(directory / "shared", _mails(count, is_shared=True))
    own = _cost(directory / "own", _mails(count, is_shared=False))
    inline = _cost(directory / "inline", _mails(count, is_shared=False), IN_DATABASE)
    logo = f"{count:,} mails with one logo"
    each = f"{count:,} mails with a file each"
    disk_is, line_is = "in the database", "in the database"
    return [
        Figure(f"{logo}, on disk, of what all nodes got", shared.disk, "%", aim="under 3 %", detail=shared.detail),
        Figure(f"{logo}, between nodes, of what must reach two", shared.travelled, "%", aim="under 3 %"),
        Figure(f"{logo}, delivered one at a time", shared.mails_per_s, "mails/s"),
        Figure(f"{each}, on disk", own.disk, "%", inline.disk, disk_is, detail=own.detail),
        Figure(f"{each}, between nodes", own.travelled, "%", inline.travelled, line_is, detail=inline.detail),
        Figure(f"{each}, delivered one at a time", own.mails_per_s, "mails/s", inline.mails_per_s, "in the database"),
    ]


def _cost(directory: Path, mails: Iterator[bytes], extra: str = "") -> Cost:
    delivered_bytes = count = 0
    with Cluster(directory, USERS, size=NODES, proxied=True, extra=extra) as cluster:
        before = _carried(cluster)
        lines = [connect_lmtp(node.address("lmtp")) for node in cluster.nodes]
        began = time.perf_counter()
        for mail in mails:
            deliver(lines[count % NODES], [USERS[count % len(USERS)]], mail)
            delivered_bytes += len(mail)
            count += 1
        took_s = time.perf_counter() - began
        cluster.wait_until(are_equal, SETTLED_WITHIN_S)
        for line in lines:
            line.socket.close()
        travelled_bytes = _carried(cluster) - before
        for node in cluster.nodes:
            node.stop()  # which writes the write-ahead log into the database
        by_kind = {node.sid: _disk(node) for node in cluster.nodes}
    disk_bytes = sum(sum(kinds.values()) for kinds in by_kind.values())
    detail: dict[str, object] = {
        "delivered_bytes": delivered_bytes, "travelled_bytes": travelled_bytes, "disk_bytes": by_kind
    }  # fmt: skip
    return Cost(delivered_bytes, disk_bytes, travelled_bytes, count / took_s, detail)


def _carried(cluster: Cluster) -> int:
    links = [cluster.link(near.sid, far.sid) for near, far in combinations(cluster.nodes, 2)]
    return sum(link.carried_bytes(direction) for link in links for direction in BOTH)


def _disk(node: Node) -> dict[str, int]:
    """Return the bytes that a node occupies on disk, by the names in its data directory."""
    found: dict[str, int] = {}
    for directory, _, names in os.walk(node.data):
        where = Path(directory).relative_to(node.data).parts
        for path in (Path(directory), *(Path(directory, name) for name in names)):
            kind = where[0] if where else path.name
            found[kind] = found.get(kind, 0) + path.stat().st_blocks * BLOCK_BYTES
    return found


def _mails(count: int, *, is_shared: bool) -> Iterator[bytes]:
    """Yield mails that all differ, except for the attached file."""
    source = random.Random(8)
    words = ["".join(source.choices("etaoinshrdlu", k=source.randint(2, 9))) for _ in range(2000)]
    logo = source.randbytes(FILE_BYTES)
    for number in range(count):
        letter = " ".join(source.choices(words, k=LETTER_WORDS))
        lines = "\r\n".join(letter[at : at + 72] for at in range(0, len(letter), 72))
        file = base64.encodebytes(logo if is_shared else source.randbytes(FILE_BYTES)).replace(b"\n", b"\r\n")
        head = (
            f"Message-ID: <{number}.shared@bench.example.org>\r\nDate: Mon, 6 Jan 2025 08:00:00 +0000\r\n"
            f"From: Bench <bench@example.org>\r\nTo: <{USERS[number % len(USERS)]}@example.org>\r\n"
            f"Subject: Letter number {number}\r\nMIME-Version: 1.0\r\n"
            f'Content-Type: multipart/related; boundary="=_{number:08d}"\r\n\r\n'
            f"--=_{number:08d}\r\nContent-Type: text/plain; charset=us-ascii\r\n\r\n{lines}\r\n"
            f"--=_{number:08d}\r\nContent-Type: image/png\r\nContent-Transfer-Encoding: base64\r\n\r\n"
        )
        yield head.encode() + file + f"\r\n--=_{number:08d}--\r\n".encode()
