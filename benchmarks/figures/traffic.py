"""Traffic between nodes for one change: log entries, bytes, and messages of all kinds.

The lines between the nodes are recorded and decoded, which is possible because nodes on loopback do not compress. Each
other node needs every entry once, so n - 1 transmissions are the minimum, whatever the shape of the links: all nodes
linked with each other, or in a line, where messages to the far end pass through all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import cast

import msgpack

from benchmarks.clients.mails import MailTexts
from benchmarks.clients.wire import connect_lmtp, deliver
from benchmarks.clusters.cluster import Cluster, Node
from benchmarks.clusters.proxy import BOTH
from benchmarks.clusters.states import are_equal, expect_master
from benchmarks.figures.scale import Scale
from benchmarks.report.figure import Figure
from protocol import blocks
from protocol.commands import Entries, Save
from protocol.stream_codec import Decoder, Request, Response

USER = "counted"
MAIL_BYTES = 1024
FORWARDED = 20
"""Mails. They are few because a node that goes on writing to a mailbox becomes its master."""

HEARTBEATS = frozenset({"PING", "OK DONE", "LINKS", "ROOT", "DROPPED"})
"""Messages that nodes send whether or not anything changes, and the replies to them."""

SETTLED_WITHIN_S = 60.0


def traffic(directory: Path, scale: Scale) -> list[Figure]:
    rows: list[Figure] = []
    for size in scale.sizes:
        with Cluster(directory / str(size), [USER], size=size, proxied=True) as cluster:
            _deliver(cluster.nodes[0], 1)
            rows += _counted(cluster, scale.counted_changes, f"{size} nodes, all linked")
            _into_a_line(cluster)
            rows += _counted(cluster, scale.counted_changes, f"{size} nodes in a line")
    return rows


def _counted(cluster: Cluster, changes: int, shape: str) -> list[Figure]:
    """Count mails delivered one after the other at their mailbox's master, and for comparison at the last node."""
    master, others = cluster.nodes[0], len(cluster.nodes) - 1
    expect_master(master, USER, master.sid)
    messages, size_bytes = _travelled(cluster, master, changes)
    forwarded, forwarded_bytes = _travelled(cluster, cluster.nodes[-1], FORWARDED)
    detail = {
        "changes": changes,
        "messages_per_change": {kind: count / changes for kind, count in messages.most_common()},
        "messages_per_forwarded_change": {kind: count / FORWARDED for kind, count in forwarded.most_common()},
        "bytes_per_forwarded_change": forwarded_bytes / FORWARDED,
    }
    entries = messages["entry"] / changes
    told = sum(count for kind, count in messages.items() if kind not in HEARTBEATS) / changes
    return [
        Figure(f"entries sent for a change, {shape}", entries, "", others, "the least", f"{others}", detail),
        Figure(f"messages sent for a change, {shape}", told, "", 2 * others, "entries, and their ACKs"),
        Figure(
            f"bytes sent for a mail of 1 KiB, {shape}",
            size_bytes / changes,
            "B",
            others * MAIL_BYTES,
            "the mail, once to each",
        ),
    ]


def _travelled(cluster: Cluster, at: Node, mails: int) -> tuple[Counter[str], int]:
    """Count messages between nodes by kind, and bytes, until all nodes have the mails."""
    pairs = [cluster.link(near.sid, far.sid) for near, far in combinations(cluster.nodes, 2)]
    cluster.wait_until(are_equal, SETTLED_WITHIN_S)
    for link in pairs:
        link.record()
    _deliver(at, mails)
    cluster.wait_until(are_equal, SETTLED_WITHIN_S)
    recorded = [link.recorded(direction) for link in pairs for direction in BOTH]
    return Counter(kind for data in recorded for kind in _kinds(data)), sum(map(len, recorded))


def _kinds(data: bytes) -> Iterator[str]:
    """Yield the kind of each frame in the record.

    A record starts while nothing is under way, so it starts with a block and a frame.
    """
    for item in Decoder().feed(b"".join(blocks.contents(data))):
        match item:
            case Request(_, Save(entry=header)):
                yield "entry" if header else "forwarded SAVE"
            case Request(_, Entries(packed=packed)):
                yield from ("entry" for _ in msgpack.unpackb(packed))
            case Request(_, command):
                yield type(command).__name__.upper()
            case Response(_, reply):
                yield f"OK {type(reply).__name__.upper()}"


def _into_a_line(cluster: Cluster) -> None:
    """Cut all links except those between neighbours in the order of the nodes."""
    nodes = cluster.nodes
    for (at, near), (to, far) in combinations(enumerate(nodes), 2):
        if to - at > 1:
            cluster.link(near.sid, far.sid).cut()
    wanted = [(at > 0) + (at < len(nodes) - 1) for at in range(len(nodes))]

    def is_line(statuses: Sequence[Mapping[str, object]]) -> bool:
        links = [cast("Sequence[Mapping[str, object]]", status["links"]) for status in statuses]
        return [sum(bool(link["up"]) for link in one) for one in links] == wanted

    cluster.wait_until(is_line, SETTLED_WITHIN_S)


def _deliver(node: Node, mails: int) -> None:
    texts = MailTexts(MAIL_BYTES, seed=6)
    with connect_lmtp(node.address("lmtp")) as lmtp:
        for _ in range(mails):
            deliver(lmtp, [USER], next(texts))
