"""Measurements on a running cluster. Each function takes the cluster and returns rows of the report."""

from __future__ import annotations

import selectors
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from benchmarks.clients.load import Load, LoadResult
from benchmarks.clients.mails import MailTexts
from benchmarks.clients.wire import Address, ImapClient, check_replies, connect_lmtp, deliver, envelope
from benchmarks.clusters.apart import run_apart
from benchmarks.clusters.cluster import Cluster, NodeUsage
from benchmarks.figures.scale import Scale
from benchmarks.floors import machine
from benchmarks.report.figure import Figure, quantiles_ms

MAIL_BYTES = 4096
CONNECTIONS = 8
DELIVERY_USERS = tuple(f"user{number:02d}" for number in range(1, 21))
LATENCY_USER = "latency"
STORE_USER = "store"
FETCH_USER = "fetch"
USERS = (*DELIVERY_USERS, LATENCY_USER, STORE_USER, FETCH_USER)
SMALL_BYTES = 700
"""Bytes of a mail that is merely counted: hardly more than its header."""

LOAD_LIMIT_S = 400.0
FLOOR_TIMES = 200


def latency(cluster: Cluster, scale: Scale) -> list[Figure]:
    """Measure from LMTP's OK at dc1 to EXISTS in an IDLE at dc2, one mail at a time: one process, one clock."""
    texts = MailTexts(MAIL_BYTES, seed=2)
    dc1, dc2 = cluster.nodes[:2]
    visible: list[float] = []
    accepted: list[float] = []
    with connect_lmtp(dc1.address("lmtp")) as lmtp, dc2.imap(LATENCY_USER) as imap:
        deliver(lmtp, [LATENCY_USER], next(texts))
        imap.wait_for("INBOX", 1, within_s=30)
        imap.command("SELECT INBOX")
        imap.idle()
        with selectors.DefaultSelector() as selector:
            selector.register(lmtp, selectors.EVENT_READ, "ok")
            selector.register(imap.connection, selectors.EVENT_READ, "visible")
            for _ in range(scale.samples):
                lmtp.send(envelope([LATENCY_USER]))
                check_replies(lmtp.receive_lines(3))
                began = time.perf_counter()
                lmtp.send(next(texts) + b".\r\n")
                seen: dict[str, float] = {}
                while len(seen) < 2:
                    for key, _ in selector.select():
                        lines = key.fileobj.receive()  # type: ignore[union-attr]  # both are Connections
                        now = time.perf_counter()
                        if key.data == "ok":
                            check_replies(lines)
                        if key.data == "ok" or any(line.endswith(b" EXISTS") for line in lines):
                            seen.setdefault(key.data, now)
                visible.append(seen["visible"] - seen["ok"])
                accepted.append(seen["ok"] - began)
    round_trip = quantiles_ms(machine.loopback_s(FLOOR_TIMES))
    durable = quantiles_ms(machine.fsync_s(cluster.directory, MAIL_BYTES, FLOOR_TIMES))
    ok, shown = quantiles_ms(accepted), quantiles_ms(visible)
    fsync = "two fsyncs of 4 KiB"
    return [
        Figure("LMTP end of mail to OK, median", ok["median_ms"], "ms", 2 * durable["median_ms"], fsync, detail=ok),
        Figure("LMTP end of mail to OK, p95", ok["p95_ms"], "ms", 2 * durable["p95_ms"], fsync),
        Figure(
            "OK at dc1 to EXISTS in IDLE at dc2, median",
            shown["median_ms"],
            "ms",
            round_trip["median_ms"],
            "a loopback round trip",
            "under 10 ms",
            shown | {"samples_ms": [sample * 1000 for sample in visible]},
        ),
        Figure("OK at dc1 to EXISTS in IDLE at dc2, p95", shown["p95_ms"], "ms", round_trip["p95_ms"]),
    ]


def delivery(cluster: Cluster, scale: Scale) -> list[Figure]:
    """Measure mails per second that are accepted, and so durable on two nodes."""
    dc1 = cluster.nodes[0].address("lmtp")
    everywhere = [node.address("lmtp") for node in cluster.nodes]
    _load(cluster, [dc1], scale, seconds=1)  # every mailbox exists and has a master
    durable = statistics.median(machine.fsync_s(cluster.directory, CONNECTIONS * MAIL_BYTES, FLOOR_TIMES))
    floor_rate = CONNECTIONS / (2 * durable)
    rows: list[Figure] = []
    for name, addresses in (("at dc1", [dc1]), ("over all nodes", everywhere)):
        before = cluster.usage()
        result = _load(cluster, addresses, scale, seconds=scale.delivery_s)
        busy = _cpu(before, cluster.usage(), result)
        rows.append(
            Figure(
                f"mails delivered {name}, durable on 2 of 3",
                result.mails / result.seconds,
                "mails/s",
                floor_rate,
                "8 mails an fsync, two in a row",
                "over 500",
                quantiles_ms(result.latencies_s)
                | {"mails": result.mails, "all_nodes_equal_after_s": cluster.wait_until_equal(), **busy},
            )
        )
    return rows


def store(cluster: Cluster, scale: Scale) -> list[Figure]:
    """Measure STORE at dc2 of mails that dc1 numbers."""
    dc1, dc2 = cluster.nodes[:2]
    _fill(cluster, [STORE_USER], scale.samples, 1)
    with dc2.imap(STORE_USER) as imap:
        imap.wait_for("INBOX", scale.samples, within_s=60)
        imap.command("SELECT INBOX")
        commands = [f"STORE {number} +FLAGS (\\Flagged)" for number in range(1, scale.samples + 1)]
        taken = [_timed(partial(imap.command, command)) for command in commands]
    mailboxes = dc1.get(f"/api/v1/mailboxes?user={STORE_USER}")
    round_trip = quantiles_ms(machine.loopback_s(FLOOR_TIMES))
    durable = quantiles_ms(machine.fsync_s(cluster.directory, 512, FLOOR_TIMES))
    spent, is_what = quantiles_ms(taken), "two loopback round trips and two fsyncs"
    return [
        Figure(
            f"STORE round trip at a non-master, {name}",
            spent[key],
            "ms",
            2 * (round_trip[key] + durable[key]),
            is_what,
            detail=spent | {"mailboxes": mailboxes},
        )
        for name, key in (("median", "median_ms"), ("p95", "p95_ms"))
    ]


def fetch(cluster: Cluster, scale: Scale) -> list[Figure]:
    """Measure the FETCH of a whole mailbox, at a node that did not accept the mail."""
    count = scale.fetch_messages
    _fill(cluster, [FETCH_USER], count, 1, MAIL_BYTES)
    with cluster.nodes[1].imap(FETCH_USER) as imap:
        imap.wait_for("INBOX", count, within_s=120)
        select_s = _timed(lambda: imap.command("SELECT INBOX"))
        rows = [Figure(f"SELECT of {count:,} messages, first time", select_s * 1000, "ms")]
        for name, command in (("(FLAGS)", "FETCH 1:* (FLAGS)"), ("full bodies", "FETCH 1:* (BODY.PEEK[])")):
            first_s, size, again_s = _fetch_twice(imap, command)
            best_s = min(first_s, again_s)
            rows.append(
                Figure(
                    f"FETCH 1:* {name} over {count:,} messages",
                    count / best_s,
                    "msgs/s",
                    count / machine.transfer_s(size),
                    "the same bytes over loopback",
                    detail={"first_s": first_s, "again_s": again_s, "bytes": size, "mib_per_s": size / best_s / 2**20},
                )
            )
    return rows


def memory(cluster: Cluster, scale: Scale) -> list[Figure]:
    """Measure resident memory of the nodes with a number of stored messages, after running and after a restart."""
    stored = 0
    with cluster.nodes[0].imap(DELIVERY_USERS[0]) as imap:
        stored = _messages(imap) * len(DELIVERY_USERS)
    missing = max(scale.stored_messages - stored, 0) // len(DELIVERY_USERS)
    began = time.perf_counter()
    if missing:
        _fill(cluster, DELIVERY_USERS, missing, len(DELIVERY_USERS))
    filled_s = time.perf_counter() - began
    cluster.wait_until_equal()
    loaded = {sid: usage.rss_bytes / 2**20 for sid, usage in cluster.usage().items()}
    node = cluster.nodes[2]
    node.stop()
    began = time.perf_counter()
    node.start()
    ready_s = time.perf_counter() - began
    fresh = node.usage().rss_bytes / 2**20
    for user in DELIVERY_USERS:
        with node.imap(user) as imap:
            imap.command("SELECT INBOX")
    opened = node.usage().rss_bytes / 2**20
    total = max(scale.stored_messages, stored)
    detail = {"loaded_mib": loaded, "fill_s": filled_s, "restart_s": ready_s}
    return [
        Figure(
            f"memory of a node after {total:,} messages",
            max(loaded.values()),
            "MiB",
            fresh,
            "just restarted",
            "under 150 MiB",
            detail,
        ),
        Figure(f"memory with all {len(DELIVERY_USERS)} mailboxes opened after restart", opened, "MiB", fresh),
        Figure(f"start to ready with {total:,} messages", ready_s * 1000, "ms"),
    ]


FIGURES: Mapping[str, Callable[[Cluster, Scale], list[Figure]]] = {
    "latency": latency,
    "store": store,
    "delivery": delivery,
    "fetch": fetch,
    "memory": memory,
}


def _load(cluster: Cluster, addresses: list[Address], scale: Scale, seconds: float) -> LoadResult:
    mails = max(scale.stored_messages, 1_000)
    return run_apart(Load(tuple(addresses), DELIVERY_USERS, CONNECTIONS, mails, seconds, MAIL_BYTES), cluster.nodes)


def _fill(cluster: Cluster, users: Collection[str], mails: int, recipients: int, size_bytes: int = SMALL_BYTES) -> None:
    """Deliver `mails` mails at dc1, each to `recipients` of the users."""
    dc1 = cluster.nodes[0].address("lmtp")
    load = Load((dc1,), tuple(users), CONNECTIONS, mails, LOAD_LIMIT_S, size_bytes, recipients, seed=3)
    run_apart(load, cluster.nodes)


def _cpu(before: Mapping[str, NodeUsage], after: Mapping[str, NodeUsage], result: LoadResult) -> dict[str, object]:
    """Return the processor time and written bytes per mail."""
    nodes = {sid: 1000 * (after[sid].cpu_s - before[sid].cpu_s) / result.mails for sid in before}
    written = {sid: (after[sid].written_bytes - before[sid].written_bytes) / result.mails for sid in before}
    return {
        "cpu_ms_per_mail": nodes,
        "load_cpu_ms_per_mail": 1000 * result.cpu_s / result.mails,
        "written_bytes_per_mail": written,
    }


def _fetch_twice(imap: ImapClient, command: str) -> tuple[float, int, float]:
    began = time.perf_counter()
    size = imap.drain(command)
    middle = time.perf_counter()
    imap.drain(command)
    return middle - began, size, time.perf_counter() - middle


def _messages(imap: ImapClient) -> int:
    line = imap.command("STATUS INBOX (MESSAGES)")[0]
    return int(line.rpartition(b"MESSAGES ")[2].rstrip(b")"))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
