"""The cost of distance: 80 ms one way between any two nodes, against no delay in the same run.

A client hears OK when `durability.copies` nodes have its change on disk. With one copy that depends on the local disk
only; with two it takes a round trip, and with n requests in flight at most n of them can complete per round trip,
whatever the nodes can do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, cycle, islice
from pathlib import Path

from benchmarks.clients.load import Load, LoadResult
from benchmarks.clients.mails import MailTexts
from benchmarks.clients.wire import ImapClient, MeasurementError
from benchmarks.clusters.apart import run_apart
from benchmarks.clusters.cluster import Cluster, Node
from benchmarks.clusters.states import are_equal, expect_master, mailbox, make_master
from benchmarks.figures.scale import Scale
from benchmarks.report.figure import Figure, quantiles_ms

ONE_WAY_S = 0.08
ROUND_TRIP_MS = 2 * ONE_WAY_S * 1000
FAR = "80 ms apart"
USER = "local"
USERS = tuple(f"user{number:02d}" for number in range(1, 21))
MAIL_BYTES = 4096
IN_FLIGHT = 50
MANY_IN_FLIGHT = 200
"""Requests in flight: enough for 1,250 mails a second at 80 ms."""

ROUNDS = 3

SETTLED_WITHIN_S, FOLLOWS_WITHIN_S, LOAD_MAILS = 60.0, 30.0, 100_000


def distance(directory: Path, scale: Scale) -> list[Figure]:
    return [*_one_copy(directory / "one", scale), *_two_copies(directory / "two", scale)]


def _one_copy(directory: Path, scale: Scale) -> list[Figure]:
    with Cluster(directory, [USER, *USERS], proxied=True, copies=1) as cluster:
        dc1 = cluster.nodes[0]
        rows = _throughput(cluster, scale, IN_FLIGHT, "copies = 1", None)
        rows.append(_appends(dc1, scale, f"APPEND at the master, {FAR}, copies = 1, median", None, "under 10 ms"))
    return rows


def _two_copies(directory: Path, scale: Scale) -> list[Figure]:
    with Cluster(directory, [USER, *USERS], proxied=True, copies=2) as cluster:
        dc1, dc2, dc3 = cluster.nodes
        rows = _throughput(cluster, scale, IN_FLIGHT, "copies = 2", IN_FLIGHT / (2 * ONE_WAY_S))
        rows += _throughput(cluster, scale, MANY_IN_FLIGHT, "copies = 2", MANY_IN_FLIGHT / (2 * ONE_WAY_S))
        rows.append(
            _appends(dc1, scale, f"APPEND at the master, {FAR}, copies = 2, median", ROUND_TRIP_MS, "one round trip")
        )
        rows += _following(dc1, dc2)
        rows.append(_moves([dc2, dc3], scale))
    return rows


def _following(master: Node, other: Node) -> list[Figure]:
    """Measure APPEND at another node than the master; each one is forwarded until mastership follows the client."""
    expect_master(master, USER, master.sid)
    texts = MailTexts(MAIL_BYTES, seed=8)
    forwarded_ms: list[float] = []
    with other.imap(USER) as imap:
        _append(imap, next(texts))  # also finds the master
        began = time.perf_counter()
        while mailbox(other, USER)["master"] != other.sid:
            forwarded_ms.append(_timed(lambda: _append(imap, next(texts))) * 1000)
            if time.perf_counter() - began > FOLLOWS_WITHIN_S:
                raise MeasurementError(f"mastership does not follow a client of {other.sid}")
        followed_s = time.perf_counter() - began
    name = f"APPEND at another node, {FAR}, copies = 2, median"
    return [
        Figure(name, statistics.median(forwarded_ms), "ms", ROUND_TRIP_MS, "a round trip"),
        Figure(f"until mastership has followed that client, {FAR}", followed_s, "s"),
    ]


def _moves(nodes: Sequence[Node], scale: Scale) -> Figure:
    """Measure moves of mastership: each node in turn asks for the mailbox, as an operator would make it do."""
    make_master(nodes[-1], USER)
    taken = [_timed(partial(make_master, node, USER)) for node in islice(cycle(nodes), scale.far_samples)]
    spent = quantiles_ms(taken)
    name = f"mastership moved, {FAR}, median"
    return Figure(name, spent["median_ms"], "ms", ROUND_TRIP_MS, "a round trip", "one round trip", spent)


def _throughput(cluster: Cluster, scale: Scale, in_flight: int, copies: str, bound: float | None) -> list[Figure]:
    """Measure deliveries at dc1, the master of the mailboxes: with and without delay in turns, for a fair ratio."""
    dc1 = cluster.nodes[0].address("lmtp")
    load = Load((dc1,), USERS, in_flight, LOAD_MAILS, scale.far_load_s / ROUNDS, MAIL_BYTES)
    results: dict[float, list[LoadResult]] = {0.0: [], ONE_WAY_S: []}
    for _ in range(ROUNDS):
        for delay_s, done in results.items():
            _delay(cluster, delay_s)
            done.append(run_apart(load, cluster.nodes))
            cluster.wait_until(are_equal, SETTLED_WITHIN_S)
    here, far = (sum(one.mails for one in done) / sum(one.seconds for one in done) for done in results.values())
    latencies = {
        f"{delay_s * 1000:.0f} ms": quantiles_ms([spent for one in done for spent in one.latencies_s])
        for delay_s, done in results.items()
    }
    limit = here if bound is None else min(bound, here)
    is_what = "the same without delay" if limit == here else "so many a round trip"
    detail = {"without_delay": here, "of_the_rate_without_delay": far / here, "latencies": latencies}
    name = f"mails delivered, {in_flight} in flight, {copies}, {FAR}"
    return [Figure(name, far, "mails/s", limit, is_what, "as without delay", detail)]


def _appends(node: Node, scale: Scale, name: str, floor_ms: float | None, aim: str) -> Figure:
    """Measure APPEND by IMAP, one at a time; the first one, which finds the mailbox's master, is not counted."""
    texts = MailTexts(MAIL_BYTES, seed=7)
    with node.imap(USER) as imap:
        _append(imap, next(texts))
        taken = [_timed(lambda: _append(imap, next(texts))) for _ in range(scale.far_samples)]
    spent = quantiles_ms(taken)
    return Figure(name, spent["median_ms"], "ms", floor_ms, "a round trip" if floor_ms else "", aim, spent)


def _append(imap: ImapClient, text: bytes) -> None:
    imap.command(f"APPEND INBOX {{{len(text)}+}}\r\n{text.decode()}")


def _delay(cluster: Cluster, delay_s: float) -> None:
    for near, far in combinations(cluster.nodes, 2):
        cluster.link(near.sid, far.sid).delay(delay_s)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
