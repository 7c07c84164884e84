"""The cost of finding differences: bytes and time by the number of differences and by the mailbox's size.

dc2 stops, dc1 changes some messages of one mailbox, and its log is dropped; so when dc2 comes back it compares both
states (SYNC). Flags, expunges and new messages are a third of the differences each. The databases are prepared: both
nodes have the same mailboxes, and no log.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import click

from benchmarks.clients.load import Load
from benchmarks.clients.wire import MeasurementError
from benchmarks.clusters.apart import run_apart
from benchmarks.clusters.cluster import LOG_ENDS, OWN_OBJECTS, Cluster, Node, Site
from benchmarks.clusters.meeting import Meeting, Met
from benchmarks.clusters.prepared import Prepared, prepare
from benchmarks.clusters.proxy import BOTH
from benchmarks.clusters.states import are_equal, checkpoint, drop_log, run_task
from benchmarks.figures.scale import Scale
from benchmarks.report.figure import Figure

FEW = 10
AIMED_AT = 20
"""Differences among 100,000 messages that should be found with less than 64 KiB and in less than a second."""

USERS = 100
"""Number of users who share the many mailboxes."""

TEXTS, TEXT_BYTES = 1000, 700
UIDS_A_COMMAND = 400
CONNECTIONS = 4
LOAD_LIMIT_S, EQUAL_WITHIN_S = 200.0, 300.0


class Subject:
    """A mailbox whose messages are each changed at most once, in random order."""

    def __init__(self, messages: int) -> None:
        self.user = f"user{messages}"
        self.messages = messages
        self._untouched = list(range(1, messages + 1))
        random.Random(31).shuffle(self._untouched)

    def change(self, node: Node, count: int) -> None:
        """Make `count` differences."""
        saves = expunges = count // 3
        with node.imap(self.user) as imap:
            imap.command("SELECT INBOX")
            for uids in self._take(count - saves - expunges):
                imap.command(f"UID STORE {uids} +FLAGS.SILENT (\\Flagged)")
            for uids in self._take(expunges):
                imap.command(f"UID STORE {uids} +FLAGS.SILENT (\\Deleted)")
                imap.command(f"UID EXPUNGE {uids}")
        if saves:
            lmtp = node.address("lmtp")
            run_apart(Load((lmtp,), (self.user,), CONNECTIONS, saves, LOAD_LIMIT_S, TEXT_BYTES, seed=count), [node])

    def _take(self, count: int) -> list[str]:
        """Return UIDs as arguments for commands."""
        taken = [self._untouched.pop() for _ in range(count)]
        parts = [taken[first : first + UIDS_A_COMMAND] for first in range(0, count, UIDS_A_COMMAND)]
        return [",".join(map(str, part)) for part in parts]


def differences(directory: Path, scale: Scale) -> list[Figure]:
    return [*_of_messages(directory / "messages", scale), *_of_mailboxes(directory / "mailboxes", scale.mailboxes)]


def _of_messages(directory: Path, scale: Scale) -> list[Figure]:
    """Measure one pair of nodes with mailboxes of all sizes; mailboxes that are equal cost nothing."""
    subjects = {size: Subject(size) for size in (*scale.mailbox_sizes, scale.rows)}
    users = [subject.user for subject in subjects.values()]
    sites = {sid: Site(extra=OWN_OBJECTS.format(sid=sid)) for sid in ("dc1", "dc2")}
    cluster = Cluster(directory, users, size=2, proxied=True, copies=1, extra=LOG_ENDS, sites=sites)
    boxes = [(subject.user, "INBOX", size) for size, subject in subjects.items()]
    prepare(Prepared(str(directory), ("dc1", "dc2"), boxes, TEXTS, TEXT_BYTES))
    rows: list[Figure] = []
    with cluster:
        for node in cluster.nodes:
            drop_log(node)
        for count in scale.differences:
            rows += _found(cluster, subjects[scale.rows], count)
        for size in scale.mailbox_sizes:
            rows += _found(cluster, subjects[size], FEW)
    return rows


def _found(cluster: Cluster, subject: Subject, count: int) -> list[Figure]:
    met, detail = _returned(cluster, subject, count)
    aims = ("under 1 s", "under 64 KiB") if count == AIMED_AT else ("", "")
    what = f"{count:,} of {subject.messages:,} messages differ"
    click.echo(f"  {what}: {met.seconds:.2f} s, {met.size_bytes} bytes", err=True)
    return [
        Figure(f"from link up to equal, {what}", met.seconds, "s", aim=aims[0], detail=detail),
        Figure(f"bytes until then, {what}", met.size_bytes, "B", aim=aims[1]),
    ]


def _returned(cluster: Cluster, subject: Subject, count: int) -> tuple[Met, dict[str, object]]:
    near, far = cluster.nodes
    cluster.wait_until(are_equal, EQUAL_WITHIN_S)
    checkpoint(far, EQUAL_WITHIN_S)  # else it would write one during the comparison
    far.stop()
    subject.change(near, count)
    drop_log(near)
    meeting = Meeting(cluster)
    far.start()
    before = cluster.usage()
    meeting.meet()
    met = meeting.until_equal(EQUAL_WITHIN_S)
    after = cluster.usage()
    meeting.until(lambda status: status["texts_lacking"] == 0, EQUAL_WITHIN_S)  # else they count for the next one
    cpu = {sid: after[sid].cpu_s - before[sid].cpu_s for sid in before}
    return met, {"cpu_s": cpu, "rss_mib": {sid: after[sid].rss_bytes / 2**20 for sid in after}}


def _of_mailboxes(directory: Path, count: int) -> list[Figure]:
    """Measure an operator's `replicator resync --all --dry-run` where nothing differs."""
    users = [f"user{number:03d}" for number in range(USERS)]
    sites = {sid: Site(extra=OWN_OBJECTS.format(sid=sid)) for sid in ("dc1", "dc2")}
    cluster = Cluster(directory, users, size=2, proxied=True, copies=1, extra=LOG_ENDS, sites=sites)
    boxes = [(user, f"Folder{number:03d}", 1) for user in users for number in range(count // USERS)]
    prepare(Prepared(str(directory), ("dc1", "dc2"), boxes, TEXTS, TEXT_BYTES))
    with cluster:
        for node in cluster.nodes:
            drop_log(node)
        cluster.wait_until(are_equal, EQUAL_WITHIN_S)
        line = cluster.link("dc1", "dc2")
        before, began = [line.carried_bytes(direction) for direction in BOTH], time.perf_counter()
        status = run_task(cluster.nodes[0], "resync", {"dry_run": True}, EQUAL_WITHIN_S)
        seconds = time.perf_counter() - began
        size_bytes = sum(line.carried_bytes(direction) for direction in BOTH) - sum(before)
    if status["differed"] or status["unmended"]:
        raise MeasurementError(f"mailboxes that are equal are said to differ: {status}")
    what = f"two nodes compare {count:,} mailboxes that are equal"
    click.echo(f"  {what}: {seconds:.2f} s, {size_bytes} bytes", err=True)
    return [
        Figure(what, seconds, "s"),
        Figure("bytes of that, heartbeats included", size_bytes, "B", aim="under 10 KiB"),
    ]
