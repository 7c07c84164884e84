"""The time until a new node serves: it takes over everything from a node without a log, with or without a shared store.

dc1's database is prepared, and dc1 writes checkpoints of everything on demand; then its log is dropped. dc2 begins with
nothing, and either compares with dc1 (SYNC) or begins with the checkpoints. It shows a mailbox as soon as it has the
rows; bodies come in the background, and at once when a client reads them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from benchmarks.clients.wire import ImapClient, MeasurementError
from benchmarks.clusters.cluster import LOG_ENDS, OWN_OBJECTS, Cluster, Node, Site
from benchmarks.clusters.meeting import Meeting
from benchmarks.clusters.prepared import Prepared, prepare
from benchmarks.clusters.states import are_equal, checkpoint, drop_log
from benchmarks.figures.scale import Scale
from benchmarks.report.figure import Figure
from replicator.replication import timing

SHARED = '[checkpoint]\nurl = "file:objects"\nshared = true\n'
OBJECTS = "objects"
MAIL_BYTES = 4096
USER = "large"
CHECKPOINT_AGE_S = timing.BOOTSTRAP_AGE_MIN_S + 5
"""Seconds. A new node does not use younger ones: clients may still wait for copies of what is in them."""

LOOK_EVERY_S = 0.05
SHOWN_WITHIN_S, TEXTS_WITHIN_S, ROUND_WITHIN_S = 300.0, 900.0, 300.0


def newcomers(directory: Path, scale: Scale) -> list[Figure]:
    return [*_one_mailbox(directory / "one", scale.rows), *_many_mailboxes(directory, scale)]


def _one_mailbox(directory: Path, rows: int) -> list[Figure]:
    """Measure one large mailbox, from the first byte on the line."""
    sites = {sid: Site(extra=OWN_OBJECTS.format(sid=sid)) for sid in ("dc1", "dc2")}
    cluster = Cluster(directory, [USER], size=2, proxied=True, copies=1, sites=sites, extra=LOG_ENDS, late=["dc2"])
    prepare(Prepared(str(directory), ["dc1"], [(USER, "INBOX", rows)], rows, MAIL_BYTES))
    with cluster:
        near, far = cluster.nodes
        drop_log(near)
        meeting = Meeting(cluster)
        far.start()
        before = cluster.usage()
        meeting.meet()
        shown = meeting.until_equal(SHOWN_WITHIN_S)
        after = cluster.usage()
        whole = meeting.until(lambda status: status["texts_lacking"] == 0, TEXTS_WITHIN_S)
        end = cluster.usage()
    detail = {
        "seconds": shown.seconds,
        "bytes_per_row": shown.size_bytes / rows,
        "cpu_s": {sid: after[sid].cpu_s - before[sid].cpu_s for sid in before},
        "rss_mib": {sid: [usage[sid].rss_bytes / 2**20 for usage in (before, after, end)] for sid in before},
    }
    what = f"one mailbox of {rows:,} messages, into an empty node"
    _tell(f"{what}: shown after {shown.seconds:.1f} s, all texts after {whole.seconds:.1f} s")
    return [
        Figure(f"SYNC of {what}, until shown", rows / shown.seconds, "rows/s", detail=detail),
        Figure(
            f"SYNC of {what}, until all texts of 4 KiB are here",
            rows / whole.seconds,
            "msgs/s",
            detail={"seconds": whole.seconds, "bytes_per_message": whole.size_bytes / rows},
        ),
    ]


def _many_mailboxes(directory: Path, scale: Scale) -> list[Figure]:
    """Measure the same donor twice: its directories move from one cluster to the next."""
    users = [f"user{number:03d}" for number in range(scale.joined_mailboxes)]
    at = directory / "alone"
    rows = _checkpoints(at, users, scale.rows)
    written = time.monotonic()
    for how, extra in (("SYNC", OWN_OBJECTS.format(sid="dc2")), ("checkpoints", SHARED)):
        sites = {"dc1": Site(extra=SHARED), "dc2": Site(extra=extra)}
        cluster = Cluster(directory / how, users, size=2, copies=1, extra=LOG_ENDS, sites=sites, late=["dc2"])
        for name in ("dc1", OBJECTS):
            (at / name).rename(cluster.directory / name)
        at = cluster.directory
        with cluster:
            drop_log(cluster.nodes[0])
            if extra == SHARED:
                time.sleep(max(0.0, written + CHECKPOINT_AGE_S - time.monotonic()))
            rows += _joined(cluster, users, scale.rows, f"by {how}", texts=extra == SHARED)
    return rows


def _checkpoints(directory: Path, users: Sequence[str], messages: int) -> list[Figure]:
    """Measure a round of a node that has written no checkpoints. No other node needs its log, which the round drops."""
    boxes = [(user, "INBOX", messages // len(users)) for user in users]
    prepare(Prepared(str(directory), ["dc1"], boxes, messages, MAIL_BYTES, keep_log=True))
    with Cluster(directory, users, size=1, copies=1, extra=SHARED) as cluster:
        began = time.perf_counter()
        status = checkpoint(cluster.nodes[0], ROUND_WITHIN_S)
        seconds = time.perf_counter() - began
        drop_log(cluster.nodes[0])
        gone = time.perf_counter() - began
    saved, size_bytes = int(str(status["saved"])), int(str(status["saved_bytes"]))
    what = f"checkpoints of {len(users):,} mailboxes and their trees, {messages:,} messages"
    detail = {"seconds": seconds, "saved": saved, "bytes": size_bytes, "until_the_log_is_gone_s": gone}
    _tell(f"{saved} {what}: {seconds:.1f} s")
    return [
        Figure(what, saved / seconds, "checkpoints/s", detail=detail),
        Figure("messages in them", messages / seconds, "msgs/s"),
        Figure("bytes of them", size_bytes / seconds / 2**10, "KiB/s"),
    ]


def _joined(cluster: Cluster, users: Sequence[str], messages: int, how: str, *, texts: bool = False) -> list[Figure]:
    """Measure from `ready` on, when a user opens his INBOX."""
    each = messages // len(users)
    node = cluster.node("dc2")
    node.start()
    began, before = time.perf_counter(), cluster.usage()
    with ThreadPoolExecutor(1) as user:
        opened = user.submit(_until_opened, node, users[len(users) // 2], each, began)
        cluster.wait_until(are_equal, SHOWN_WITHIN_S)
        shown_s, after = time.perf_counter() - began, cluster.usage()
        opened_s = opened.result()
    what = f"a new node, {how}, {messages:,} messages in {len(users):,} mailboxes"
    detail = {
        "seconds": shown_s,
        "cpu_s": {sid: after[sid].cpu_s - before[sid].cpu_s for sid in before},
        "rss_mib": {sid: usage.rss_bytes / 2**20 for sid, usage in after.items()},
    }
    _tell(f"{what}: an INBOX after {opened_s:.1f} s, all shown after {shown_s:.1f} s")
    rows = [
        Figure(f"{what}: first right SELECT", opened_s, "s", detail={"messages": each}),
        Figure(f"{what}: all shown", shown_s, "s", detail=detail),
        Figure(f"{what}: shown", messages / shown_s, "msgs/s"),
    ]
    if texts:
        cluster.wait_until(lambda statuses: not any(status["texts_lacking"] for status in statuses), TEXTS_WITHIN_S)
        texts_s = time.perf_counter() - began
        _tell(f"{what}: all texts after {texts_s:.1f} s")
        rows.append(Figure(f"{what}: all texts of 4 KiB are here", texts_s, "s"))
    return rows


def _until_opened(node: Node, user: str, messages: int, began: float) -> float:
    with node.imap(user) as imap:
        while _exists(imap) != messages:
            if time.perf_counter() - began > SHOWN_WITHIN_S:
                raise MeasurementError(f"{node.sid} does not show the INBOX of {user}:\n{node.log_tail()}")
            time.sleep(LOOK_EVERY_S)
    return time.perf_counter() - began


def _exists(imap: ImapClient) -> int | None:
    """Return the number of messages in the INBOX, or None if it cannot be opened now."""
    try:
        lines = imap.command("SELECT INBOX")
    except MeasurementError:
        return None
    return next((int(line.split()[1]) for line in lines if line.endswith(b" EXISTS")), None)


def _tell(text: str) -> None:
    click.echo(f"  {text}", err=True)
