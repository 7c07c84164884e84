"""Doors in processes of their own: several clients that read, deliveries beside a heavy search, and memory.

The same node runs with each number of such processes in turn, again in each round, so that all share the machine's
moods. The clients share its processors, too.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import psutil

from benchmarks.clients.load import Load
from benchmarks.clients.wire import ImapClient
from benchmarks.clusters.apart import run_apart
from benchmarks.clusters.cluster import Cluster, Node
from benchmarks.clusters.prepared import Prepared, prepare
from benchmarks.figures.scale import Scale
from benchmarks.report.figure import Figure, quantiles_ms

PROCESSES = (0, 1, 2)
ROUNDS = 3
READERS = tuple(f"reader{number}" for number in range(8))
SEARCHER = "searcher"
RECEIVERS = tuple(f"user{number:02d}" for number in range(20))
MAIL_BYTES = 4096
CONNECTIONS = 4
MAILS_MAX = 1_000_000  # the time ends a load
HEAVY_KEYS = 8
SEARCH = 'SEARCH BODY "not there"'
DERIVED_WITHIN_S = 900.0


@dataclass
class Samples:
    """Samples of all rounds with one number of processes. Rates are messages a second; `memory_mib` is a process's."""

    fetched: list[float] = field(default_factory=list)
    searched: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)


def doors(directory: Path, scale: Scale) -> list[Figure]:
    boxes = [(user, "INBOX", scale.door_messages) for user in READERS]
    boxes.append((SEARCHER, "INBOX", scale.door_searched_messages))
    mails = sum(messages for _, _, messages in boxes)
    prepare(Prepared(str(directory), ["dc1"], boxes, texts=mails, size_bytes=MAIL_BYTES))
    samples = {processes: Samples() for processes in PROCESSES}
    for _ in range(ROUNDS):
        for processes, found in samples.items():
            extra = f"[workers]\ndoors = {processes}\n"
            with Cluster(directory, [*READERS, SEARCHER, *RECEIVERS], size=1, copies=1, extra=extra) as cluster:
                cluster.wait_until(_has_search_texts, DERIVED_WITHIN_S)
                _read(cluster.nodes[0], found, scale.door_messages)
                found.alone_s += _deliver(cluster.nodes[0], scale.door_delivery_s)
                with _searching(cluster.nodes[0]):
                    found.beside_s += _deliver(cluster.nodes[0], scale.door_delivery_s)
    return _figures(samples, scale)


def _has_search_texts(statuses: Sequence[Mapping[str, object]]) -> bool:
    """Return True once SEARCH reads no bodies."""
    texts = [cast("Mapping[str, int] | None", status["search_texts"]) for status in statuses]
    return all(found is not None and found["waiting"] == 0 for found in texts)


def _read(node: Node, samples: Samples, messages: int) -> None:
    """Have all readers at once fetch their mail, and search it."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(node.imap(user)) for user in READERS]
        for session in sessions:
            session.command("SELECT INBOX")
        _seconds_of_all(sessions, SEARCH)  # the second one is what a client that searches again and again meets
        all_messages = len(sessions) * messages
        samples.fetched.append(all_messages / _seconds_of_all(sessions, f"FETCH 1:{messages} (BODY.PEEK[])"))
        samples.searched.append(all_messages / _seconds_of_all(sessions, SEARCH))
        processes = psutil.Process(node.pid).children()
        samples.memory_mib += [process.memory_full_info().uss / 2**20 for process in processes]


def _seconds_of_all(sessions: Sequence[ImapClient], command: str) -> float:
    """Return the seconds until all sessions, which ask at the same time, have their answers."""
    with ThreadPoolExecutor(len(sessions)) as pool:
        began = time.perf_counter()
        for done in [pool.submit(session.drain, command) for session in sessions]:
            done.result()
        return time.perf_counter() - began


def _deliver(node: Node, seconds: float) -> Sequence[float]:
    """Return the seconds that each mail took."""
    load = Load((node.address("lmtp"),), RECEIVERS, CONNECTIONS, MAILS_MAX, seconds, MAIL_BYTES)
    return run_apart(load, [node]).latencies_s


@contextmanager
def _searching(node: Node) -> Iterator[None]:
    """Have a client search a large mailbox again and again, for words that no mail has, until the block ends."""
    keys = [f'TEXT "not there {number}"' for number in range(HEAVY_KEYS)]
    command = f"SEARCH {' '.join(f'OR {key}' for key in keys[1:])} {keys[0]}"
    ended = threading.Event()

    def search(session: ImapClient) -> None:
        while not ended.is_set():
            session.drain(command)

    with node.imap(SEARCHER) as session, ThreadPoolExecutor(1) as pool:
        session.command("SELECT INBOX")
        done = pool.submit(search, session)
        try:
            yield
        finally:
            ended.set()
        done.result()


def _figures(samples: Mapping[int, Samples], scale: Scale) -> list[Figure]:
    rows = [
        *_rates("FETCH BODY.PEEK[]", {processes: found.fetched for processes, found in samples.items()}, scale),
        *_rates("SEARCH BODY", {processes: found.searched for processes, found in samples.items()}, scale),
    ]
    for processes, found in samples.items():
        alone, beside = quantiles_ms(found.alone_s), quantiles_ms(found.beside_s)
        rows.append(
            Figure(
                f"LMTP, p95 beside SEARCH of {scale.door_searched_messages:,} mails, {_doors(processes)}",
                beside["p95_ms"],
                "ms",
                alone["p95_ms"],
                "without the SEARCH",
                "at most 20 % more than without the SEARCH",
                {"alone": alone, "beside": beside, "ratio": beside["p95_ms"] / alone["p95_ms"]},
            )
        )
    for processes, found in samples.items():
        if found.memory_mib:
            name = f"own memory of a process after these FETCHes, {_doors(processes)}"
            detail = {"samples": found.memory_mib}
            rows.append(Figure(name, max(found.memory_mib), "MiB", aim="under 60 MiB", detail=detail))
    return rows


def _rates(name: str, samples: Mapping[int, Sequence[float]], scale: Scale) -> Iterator[Figure]:
    """Yield the rates with each number of processes."""
    clients = f"{len(READERS)} clients, {scale.door_messages:,} mails of 4 KiB each"
    without = statistics.median(samples[0])
    for processes, rates in samples.items():
        rate = statistics.median(rates)
        detail = {"samples": rates, "ratio": rate / without}
        name_of = f"{name}, {clients}, {_doors(processes)}"
        yield Figure(name_of, rate, "msgs/s", without, "without such processes", detail=detail)


def _doors(processes: int) -> str:
    return f"doors = {processes}"
