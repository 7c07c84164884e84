"""Messages of many megabytes: time until they are on two disks, speed of reading, and memory needed.

Mails are generated before the clock starts; the node that serves them is not one of the two that take them in first.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.clients.large_mails import LINE_BYTES, SOURCE_BYTES, LargeMail
from benchmarks.clients.streaming import StreamingImap, deliver_streamed
from benchmarks.clients.wire import MeasurementError, connect_lmtp
from benchmarks.clusters.cluster import PASSWORD, Cluster, Node
from benchmarks.clusters.process_memory import watch
from benchmarks.clusters.states import are_equal
from benchmarks.figures.scale import Scale
from benchmarks.floors import machine
from benchmarks.report.figure import Figure

MIB = 1 << 20
USER = "large"
TIMES = 3
PART_BYTES = 1000
SETTLED_WITHIN_S = 120.0


def large(directory: Path, scale: Scale) -> list[Figure]:
    with Cluster(directory, [USER]) as cluster:
        _deliver(cluster, LargeMail.attached(MIB, 0))  # anything that is made at first use exists now
        return [figure for size in scale.large_mib for figure in _of_size(cluster, size)]


def _of_size(cluster: Cluster, size_mib: int) -> list[Figure]:
    """Measure mails one after the other: the delivery of each, and reading once all nodes have it."""
    peaks = watch(cluster.nodes)
    mails = [LargeMail.attached(size_mib * MIB, 100 * size_mib + number) for number in range(TIMES)]
    delivered = [_deliver(cluster, mail) for mail in mails]
    read_s, part_s = _read(cluster.nodes[2], mails[-1])
    grown = {sid: peak.grown_bytes / MIB for sid, peak in peaks.items()}
    size, source = mails[-1].size_bytes, mails[-1].body_bytes * SOURCE_BYTES // LINE_BYTES
    durable = 2 * min(machine.fsync_s(cluster.directory, source, TIMES))
    ended = statistics.median(end_s for _, end_s in delivered)
    whole = statistics.median(all_s for all_s, _ in delivered)
    over_loopback = size / machine.transfer_s(size) / 1e6
    detail = {"from_mail_to_ok_s": [one for one, _ in delivered], "from_end_to_ok_s": [end for _, end in delivered]}
    what = f"a mail of {size_mib} MiB"
    return [
        Figure(
            f"{what}, LMTP end of mail to OK", ended, "s", durable, "its file written and synced, twice", "", detail
        ),
        Figure(f"{what}, all of LMTP until OK", size / whole / 1e6, "MB/s", over_loopback, "the same over loopback"),
        Figure(f"{what}, FETCH of all of it", size / read_s / 1e6, "MB/s", over_loopback, "the same over loopback"),
        Figure(f"{what}, FETCH of {PART_BYTES:,} octets in its middle", part_s * 1000, "ms"),
        Figure(f"{what}, memory that a node takes for all that", max(grown.values()), "MiB", detail=dict(grown)),
    ]


def _deliver(cluster: Cluster, mail: LargeMail) -> tuple[float, float]:
    """Return the seconds of the whole delivery, and those from the mail's end to OK, once all nodes have the mail."""
    chunks = list(mail)
    with connect_lmtp(cluster.nodes[0].address("lmtp")) as lmtp:
        began = time.perf_counter()
        ended_s = deliver_streamed(lmtp, USER, chunks)
        whole_s = time.perf_counter() - began
    cluster.wait_until(are_equal, SETTLED_WITHIN_S)
    return whole_s, ended_s


def _read(node: Node, mail: LargeMail) -> tuple[float, float]:
    """Return the seconds of FETCH of the last mail, and of some octets of its second part: the best of a few tries."""
    middle = mail.body_bytes // 2
    part = bytearray()
    with StreamingImap(node.address("imap"), USER, PASSWORD) as imap:
        imap.command("SELECT INBOX")
        whole_s = min(_timed(imap, "BODY.PEEK[]", []) for _ in range(TIMES))
        part_s = min(_timed(imap, f"BODY.PEEK[2]<{middle}.{PART_BYTES}>", part) for _ in range(TIMES))
    if bytes(part) != TIMES * mail.body_slice(middle, PART_BYTES):
        raise MeasurementError(f"{node.sid} gives other octets than were sent")
    return whole_s, part_s


def _timed(imap: StreamingImap, item: str, into: bytearray | Sequence[bytes]) -> float:
    began = time.perf_counter()
    imap.literal(f"FETCH * ({item})", into.extend if isinstance(into, bytearray) else len)
    return time.perf_counter() - began
