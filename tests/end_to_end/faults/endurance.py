"""Nodes under load for hours, with faults, restarts and reloads: `make endure MINUTES=120`.

In each round, clients at all nodes change one user's mail while something happens to the cluster; then all is mended,
and what clients were told is compared with what all nodes show. dc1 is never restarted: after each round it is noted
what its processes take, which must not grow once its caches are warm.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.clusters.cluster import Cluster, Node
from benchmarks.clusters.prepared import DATABASE
from tests.end_to_end.helpers.idler import Idler
from tests.end_to_end.helpers.ledger import log_in
from tests.end_to_end.helpers.load import CHANGES, SHORT_TIMEOUTS, Load
from tests.end_to_end.helpers.stalls import stalls

MINUTES = float(os.environ.get("MINUTES", "120"))
FIRST = int(os.environ.get("FIRST_SEED", "0"))
ROUNDS_MAX = 5_000
ROUNDS_MIN = 3
RESTARTED = ("dc2", "dc3")
RATHER_MORE = 1.15
"""Memory of the last third of the rounds, as a multiple of that of the second: caches may still become fuller."""

SPARE_BYTES, SPARE_DESCRIPTORS, SPARE_THREADS = 16 << 20, 8, 4
WAL_BYTES_MAX = 64 << 20
HELD_MAX_S = 1.0  # of the processor's time
LEAST = '[log]\nmax_size = "8MiB"\n[limits]\nimap_header_cache_bytes = 8388608\n'
"""Configuration: the log is cut back often, and the largest cache is full long before the second third of two hours."""


class Taken(NamedTuple):
    """Resources of all processes of a node, and the length of its write-ahead log."""

    memory_bytes: int
    descriptors: int
    threads: int
    wal_bytes: int


def taken_by(node: Node) -> Taken:
    own = psutil.Process(node.pid)
    processes = [own, *own.children(recursive=True)]
    wal = node.data / f"{DATABASE}-wal"
    return Taken(
        sum(process.memory_full_info().uss for process in processes),
        sum(process.num_fds() for process in processes),
        sum(process.num_threads() for process in processes),
        wal.stat().st_size if wal.exists() else 0,
    )


class Happenings:
    """Faults, restarts and reloads of the cluster, drawn from a seed. Each returns its name, and mends it all."""

    def __init__(self, cluster: Cluster, load: Load, chosen: random.Random) -> None:
        self._cluster, self._load, self._chosen = cluster, load, chosen
        self._all: Sequence[Callable[[], str]] = (
            self._roll, self._roll, self._part, self._part, self._kill, self._slow, self._reload, self._save,
        )  # fmt: skip

    def one(self) -> str:
        return self._chosen.choice(self._all)()

    def _work(self, *sids: str) -> None:
        """Let half of what clients are asked for be done, at these nodes, or at all."""
        self._load.ask(CHANGES)
        self._load.wait(sids or None, left=CHANGES // 2)

    def _roll(self) -> str:
        """Restart one node after the other in order. An idle client hears one BYE, and nothing else."""
        for sid in RESTARTED:
            node = self._cluster.node(sid)
            idle = log_in(node, self._load.user)
            idle.select("INBOX", readonly=True)
            self._work()
            idle.noop()
            node.stop()
            said = [line for line in iter(idle.readline, b"") if not _tells_changes(line)]
            idle.shutdown()
            assert len(said) == 1, f"{sid} ended a session with {said}"
            assert said[0].startswith(b"* BYE"), f"{sid} ended a session with {said}"
            node.start()
        return "restarts in turn"

    def _part(self) -> str:
        alone = self._chosen.choice([node.sid for node in self._cluster.nodes])
        self._cluster.partition([alone], [node.sid for node in self._cluster.nodes if node.sid != alone])
        self._work()
        self._cluster.heal()
        return f"{alone} alone"

    def _kill(self) -> str:
        node = self._cluster.node(self._chosen.choice(RESTARTED))
        self._load.ask(CHANGES)
        node.kill()
        self._load.wait([one.sid for one in self._cluster.running], left=CHANGES // 2)
        node.start()
        return f"{node.sid} killed"

    def _slow(self) -> str:
        pair = self._chosen.sample([node.sid for node in self._cluster.nodes], 2)
        self._cluster.link(*pair).delay(0.1)
        self._cluster.link(*pair).throttle(200_000)
        self._work()
        self._cluster.link(*pair).delay(0)
        self._cluster.link(*pair).throttle(float("inf"))
        return f"a slow link between {' and '.join(pair)}"

    def _reload(self) -> str:
        for node in self._cluster.nodes:
            node.ask("POST", "/api/v1/reload")
        self._work()
        return "reloads"

    def _save(self) -> str:
        self._work()
        for node in self._cluster.nodes:
            node.ask("POST", "/api/v1/checkpoint")
        return "checkpoints"


def _tells_changes(line: bytes) -> bool:
    return line.split()[-1] in {b"EXISTS", b"RECENT", b"EXPUNGE"} or b" FETCH " in line or b"VANISHED" in line


def test_nothing_grows_and_nothing_is_lost_in_hours(tmp_path: Path) -> None:
    users = [f"user{number}" for number in range(ROUNDS_MAX)]
    until, samples = time.monotonic() + MINUTES * 60, list[Taken]()
    with Cluster(tmp_path / "nodes", users, size=3, proxied=True, extra=SHORT_TIMEOUTS + LEAST) as cluster:
        for number, user in enumerate(users):
            if time.monotonic() > until and number >= ROUNDS_MIN:
                break
            with Load(cluster, user) as load, Idler(cluster.nodes[0], user):
                for worker in load.workers_at(None):
                    worker.is_patient = True  # a node that restarts may use up all the time of a change
                load.do(2)
                what = Happenings(cluster, load, random.Random(FIRST + number)).one()
                load.wait()
                load.do(2)
                load.check()
            _empty(cluster.nodes[0], user)
            samples.append(taken_by(cluster.nodes[0]))
            _tell(number, what, samples[-1])
            assert samples[-1].wal_bytes < WAL_BYTES_MAX
            assert not stalls(cluster.nodes[0]).longer_than(HELD_MAX_S)
    _check_growth(samples)


def _empty(node: Node, user: str) -> None:
    """Expunge the user's mail, since a node remembers 100,000 messages of mailboxes that nobody uses any more."""
    with log_in(node, user) as client:
        client.select("INBOX")
        client.store("1:*", "+FLAGS.SILENT", r"(\Deleted)")
        client.expunge()


def _tell(number: int, what: str, taken: Taken) -> None:
    memory, wal = taken.memory_bytes / 2**20, taken.wal_bytes / 2**20
    print(  # noqa: T201 - hours are long
        f"{time.strftime('%H:%M:%S')} round {number}: {what}; dc1 has {memory:.1f} MiB,"
        f" {taken.descriptors} descriptors, {taken.threads} threads, a write-ahead log of {wal:.1f} MiB",
        flush=True,
    )


def _check_growth(samples: Sequence[Taken]) -> None:
    """Compare the last third of the rounds with the second one: in the first one, caches fill."""
    third = len(samples) // 3
    second, last = samples[third : 2 * third], samples[2 * third :]
    before = statistics.median(one.memory_bytes for one in second)
    after = statistics.median(one.memory_bytes for one in last)
    assert after <= before * RATHER_MORE + SPARE_BYTES, f"memory has grown from {before:.0f} to {after:.0f} bytes"
    most_open = max(one.descriptors for one in second)
    assert last[-1].descriptors <= most_open + SPARE_DESCRIPTORS, (
        f"{last[-1].descriptors} descriptors after {most_open}"
    )
    most_threads = max(one.threads for one in second)
    assert last[-1].threads <= most_threads + SPARE_THREADS, f"{last[-1].threads} threads after {most_threads}"
