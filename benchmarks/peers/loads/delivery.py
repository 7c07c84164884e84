"""Mails that come to the near server: how fast it takes them, and what they cost both."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.peers.loads.filling import SHOWN_WITHIN_S, begin, deliver
from benchmarks.peers.loads.mailboxes import Watch, wait_until
from benchmarks.peers.pairs.pair import Pair
from benchmarks.peers.pairs.processes import cpu_s, memory_bytes
from benchmarks.peers.rows import Row
from benchmarks.peers.sizes import Sizes
from benchmarks.report.figure import quantiles_ms

CONNECTIONS = (1, 4, 16)
MAILS_MAX = 1_000_000


def delivery(pair: Pair, sizes: Sizes, seeds: Iterator[int]) -> dict[Row, float]:
    """Measure mails that are acknowledged, over some numbers of connections in turn."""
    values: dict[Row, float] = {}
    expected = begin(pair, seeds)
    with Watch(pair.far, pair.users) as watch:
        watch.wait_for(expected, SHOWN_WITHIN_S)
        wait_until(pair.is_settled, SHOWN_WITHIN_S, "the first sync of all users")
        for connections in CONNECTIONS:
            busy = _cpu_s(pair)
            result = deliver(pair, pair.users, connections, mails=MAILS_MAX, seconds=sizes.delivery_s, seed=next(seeds))
            expected += result.mails
            behind = watch.wait_for(expected, SHOWN_WITHIN_S)
            busy = _cpu_s(pair) - busy
            taken = quantiles_ms(result.latencies_s)
            by = f"{connections} connection{'s' * (connections > 1)}"
            values |= {
                Row(f"deliveries, {by}", "mails/s", more_is_better=True): result.mails / result.seconds,
                Row(f"end of mail to OK, {by}, p50", "ms"): taken["median_ms"],
                Row(f"end of mail to OK, {by}, p95", "ms"): taken["p95_ms"],
                Row(f"processor time a mail, {by}", "ms"): 1000 * busy / result.mails,
                Row(f"last OK to all shown at the far server, {by}", "s"): behind,
            }
    values[Row("memory after deliveries, near server", "MiB")] = memory_bytes(pair.near_processes()) / 2**20
    values[Row("memory after deliveries, far server", "MiB")] = memory_bytes(pair.far_processes()) / 2**20
    return values


def _cpu_s(pair: Pair) -> float:
    return cpu_s([*pair.near_processes(), *pair.far_processes()])
