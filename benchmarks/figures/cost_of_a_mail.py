"""The processor's time that a mail takes, by what it is used for, at the node that takes it and at the other one.

py-spy looks at the stacks of both nodes' threads many times a second while mails are delivered. The share of the looks
that an area has, times the processor's time of the node, is the area's time. A stack belongs to the area of its
innermost module that `AREAS` knows: what C does, such as SQLite or a hash, counts for its caller.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.clients.load import Load
from benchmarks.clients.wire import MeasurementError
from benchmarks.clusters.apart import run_apart
from benchmarks.clusters.cluster import Cluster, Node
from benchmarks.figures.scale import Scale
from benchmarks.report.figure import Figure

PROGRAM = "py-spy"
LOOKS_A_SECOND = 250
CONNECTIONS = (1, 16)
USERS = tuple(f"user{number:02d}" for number in range(1, 21))
MAIL_BYTES = 4096
WARM_S = 3.0
MAILS_MAX = 1_000_000  # the time ends a load

AREAS: dict[str, tuple[str, ...]] = {
    "the event loop, threads and sockets (trio)": ("trio/", "outcome/", "replicator/runtime/", "replicator/network/"),
    "LMTP": ("replicator/lmtp/", "replicator/mail_doors"),
    "what nodes say: reading and writing it (Lark)": ("lark/", "protocol/", "replicator/replication/links/"),
    "numbering, shipping and waiting for copies": ("replicator/replication/", "replicator/mail/", "master_election/"),
    "the database: rows, log, commits (SQLite)": ("replicator/store/", "resync/"),
    "hashing and compressing bodies": ("replicator/store/bodies/body_rows",),
    "outlines and texts for SEARCH": ("replicator/imap/", "replicator/mime/"),
}
"""Area -> beginnings of paths of its modules. The longest beginning counts."""

OTHER = "everything else"
WAITING = ("WorkerThread._work ", "EpollIOManager.get_events ")
"""Functions in which a thread waits, which py-spy cannot always tell."""


def cost_of_a_mail(directory: Path, scale: Scale) -> list[Figure]:
    program = shutil.which(PROGRAM) or shutil.which(PROGRAM, path=str(Path(sys.executable).parent))
    if program is None:
        raise MeasurementError(f"{PROGRAM} is missing; `make tools` installs it")
    with Cluster(directory, USERS, size=2, copies=2) as cluster:
        return [
            row for connections in CONNECTIONS for row in _measured(cluster, directory, program, connections, scale)
        ]


def _measured(cluster: Cluster, directory: Path, program: str, connections: int, scale: Scale) -> list[Figure]:
    near, far = cluster.nodes
    load = Load((near.address("lmtp"),), USERS, connections, MAILS_MAX, WARM_S, MAIL_BYTES, seed=connections)
    run_apart(load, cluster.nodes)
    before = cluster.usage()
    stacks = [directory / f"{node.sid}-{connections}.stacks" for node in cluster.nodes]
    watching = [_watch(program, node, to, scale.delivery_s) for node, to in zip(cluster.nodes, stacks, strict=True)]
    try:
        mails = run_apart(_longer(load, scale.delivery_s), cluster.nodes).mails
    finally:
        said = [process.communicate()[1] for process in watching]
    if any(process.returncode for process in watching):
        raise MeasurementError(f"{PROGRAM} failed, which needs the right to trace processes: {said[0].decode()[-300:]}")
    after = cluster.usage()
    shares = [_shares(path.read_text(encoding="utf-8")) for path in stacks]
    spent_us = [(after[node.sid].cpu_s - before[node.sid].cpu_s) / mails * 1e6 for node in (near, far)]
    what = f"{connections} connection{'s' if connections > 1 else ''}"
    rows = [(f"{what}: all of a mail", 1.0, 1.0)]
    rows += [(f"{what}: {area}", shares[0][area], shares[1][area]) for area in (*AREAS, OTHER)]
    return [
        Figure(name, near_share * spent_us[0], "µs", far_share * spent_us[1], "at the other node")
        for name, near_share, far_share in rows
    ]


def _longer(load: Load, seconds: float) -> Load:
    return Load(load.addresses, load.users, load.connections, load.mails, seconds, load.size_bytes, seed=load.seed + 1)


def _watch(program: str, node: Node, to: Path, seconds: float) -> subprocess.Popen[bytes]:
    options = f"record --pid {node.pid} --duration {max(1, round(seconds))} --rate {LOOKS_A_SECOND} --full-filenames"
    command = [program, *shlex.split(options), "--nonblocking", "--format", "raw", "--output", str(to)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _shares(stacks: str) -> Counter[str]:
    """Return the share of each area. A line has the frames of a stack, outermost first, and how often it was seen."""
    seen = Counter[str]()
    for line in stacks.splitlines():
        frames, _, times = line.rpartition(" ")
        stack = frames.split(";")
        if not stack[-1].startswith(WAITING):
            seen[_area(stack)] += int(times)
    total = seen.total()
    if not total:
        raise MeasurementError(f"{PROGRAM} has seen nothing")
    return Counter({area: times / total for area, times in seen.items()})


def _area(stack: Sequence[str]) -> str:
    for frame in reversed(stack):
        found = [
            (len(beginning), area)
            for area, beginnings in AREAS.items()
            for beginning in beginnings
            if f"/{beginning}" in frame or f"({beginning}" in frame
        ]
        if found:
            return max(found)[1]
    return OTHER
