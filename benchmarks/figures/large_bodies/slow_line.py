"""A slow line between two nodes: latency of small mails beside a large one, and while a node catches up.

Both nodes must have a mail before its sender hears OK. Small mails are sent one after the other throughout.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.clients.large_mails import LargeMail
from benchmarks.clients.mails import MailTexts
from benchmarks.clients.streaming import deliver_streamed
from benchmarks.clients.wire import MeasurementError, connect_lmtp, deliver
from benchmarks.clusters.cluster import Cluster
from benchmarks.clusters.states import are_equal
from benchmarks.figures.scale import Scale
from benchmarks.report.figure import Figure, quantiles_ms

LINE_BYTES_S = 2e6
ONE_WAY_S = 0.01
MIB = 1 << 20
LARGE_BYTES, BACKLOG_BYTES = 20 * MIB, 40 * MIB
SMALL_BYTES, BACKLOG_MAIL_BYTES = 4096, 32_768
USER = "local"
ALONE_S = 3.0
SETTLED_WITHIN_S = 300.0


def slow_line(directory: Path, scale: Scale) -> list[Figure]:  # noqa: ARG001 - it takes as long as the line needs
    with Cluster(directory, [USER], size=2, proxied=True) as cluster:
        line = cluster.link("dc1", "dc2")
        _small_mails(cluster, lambda: False)  # anything that is made at first use exists now
        line.delay(ONE_WAY_S)
        line.throttle(LINE_BYTES_S)
        alone = _small_mails(cluster, _for(ALONE_S))
        beside, large_s = _beside_a_large_one(cluster)
        behind = _while_a_node_catches_up(cluster)
    floor = alone["median_ms"]
    what = "its median with nothing beside it"
    mib = f"{LARGE_BYTES // MIB} MiB"
    return [
        Figure("small mails on a slow line, median", floor, "ms", 2000 * ONE_WAY_S, "one round trip", "", alone),
        Figure(f"the same beside a mail of {mib}, median", beside["median_ms"], "ms", floor, what, "", beside),
        Figure(f"the same beside a mail of {mib}, longest", beside["max_ms"], "ms", floor, what),
        Figure(f"that mail of {mib}, until OK", large_s, "s", LARGE_BYTES * 57 / 78 / LINE_BYTES_S, "its file alone"),
        Figure("small mails while dc2 catches up, median", behind["median_ms"], "ms", floor, what, "", behind),
        Figure("small mails while dc2 catches up, longest", behind["max_ms"] / 1000, "s", None, "", "under 5 s"),
    ]


def _small_mails(cluster: Cluster, goes_on: Callable[[], bool]) -> dict[str, float]:
    """Return quantiles of the time that each mail waits for OK at dc1; at least one is sent."""
    texts, waited_s = MailTexts(SMALL_BYTES, seed=1), list[float]()
    with connect_lmtp(cluster.nodes[0].address("lmtp")) as lmtp:
        while not waited_s or goes_on():
            began = time.perf_counter()
            deliver(lmtp, [USER], next(texts))
            waited_s.append(time.perf_counter() - began)
    return quantiles_ms(waited_s)


def _for(seconds: float) -> Callable[[], bool]:
    until = time.perf_counter() + seconds
    return lambda: time.perf_counter() < until


def _beside_a_large_one(cluster: Cluster) -> tuple[dict[str, float], float]:
    mail = LargeMail.attached(LARGE_BYTES, 1)
    chunks = list(mail)

    def give() -> float:
        with connect_lmtp(cluster.nodes[0].address("lmtp")) as lmtp:
            began = time.perf_counter()
            deliver_streamed(lmtp, USER, chunks)
            return time.perf_counter() - began

    with ThreadPoolExecutor(1) as pool:
        giving = pool.submit(give)
        waited = _small_mails(cluster, lambda: not giving.done())
        return waited, giving.result()


def _while_a_node_catches_up(cluster: Cluster) -> dict[str, float]:
    one, two = cluster.nodes
    two.stop()
    with connect_lmtp(one.address("lmtp")) as lmtp:
        for number in range(BACKLOG_BYTES // BACKLOG_MAIL_BYTES):
            deliver(lmtp, [USER], b"".join(LargeMail.plain(BACKLOG_MAIL_BYTES, number)))
    two.start()
    waited = _small_mails(cluster, _for(BACKLOG_BYTES / LINE_BYTES_S / 2))
    if one.get("/api/v1/status")["copies_reachable"] != 1:
        raise MeasurementError("dc2 has caught up too soon")
    cluster.wait_until(are_equal, SETTLED_WITHIN_S)
    return waited
