"""The attachment store against plain files: write a file, fsync it, and fsync its directory.

It is also compared with files that are written aside and renamed once they are safe, which like the store have to wait
for the disk twice; and with the store's bare system calls, its floor. All contenders take turns in small rounds, so
that a disk whose speed varies affects all of them alike.
"""

from __future__ import annotations

import os
import random
import secrets
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click

from benchmarks.figures.scale import Scale
from benchmarks.floors.bare_attachments import Bare
from benchmarks.report.figure import Figure, with_unit
from replicator.store.attachments.construction import Holding
from replicator.store.attachments.disk import DiskFiles
from replicator.store.attachments.store import Attachments

SIZES = {"64 KiB": 64 << 10, "1 MiB": 1 << 20}
THREADS = (1, 8)
ROUND = 32
"""Attachments or files per round, of all threads together."""

CHUNK_BYTES = 64 << 10
LINKS_EACH = 8
STORE = "the store"
PLAIN = "plain files"
ASIDE = "files written aside and renamed"
BARE = "its system calls alone"
AIM = "at most 1.5 x"

Job = Callable[[], object]
Rates = Mapping[str, list[float]]


def attachments(directory: Path, scale: Scale) -> list[Figure]:
    directory.mkdir(parents=True)
    store = Attachments(DiskFiles(directory / "store"), "dc1", secrets.token_hex(16))
    plain = Plain(directory / "plain")
    acts: Mapping[str, Callable[[bytes], object]] = {
        STORE: partial(store_one, store),
        PLAIN: plain.write,
        ASIDE: plain.write_aside,
        BARE: Bare(directory / "bare").store,
    }
    rows: list[Figure] = []
    for label, size_bytes in SIZES.items():
        makers = {name: partial(_jobs, act, size_bytes) for name, act in acts.items()}
        for threads in THREADS:
            what = f"first stores of {label}, {threads} at a time"
            rows += _figures(what, _in_turns(scale.attachment_rounds, threads, makers))
    for threads in THREADS:
        rows += _links(store, plain, threads, scale)
    return rows


class Plain:
    """Files of one directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory

    def write(self, data: bytes) -> None:
        self._write(self._directory / secrets.token_hex(16), data)
        self._sync()

    def write_aside(self, data: bytes) -> None:
        aside = self._directory / f"{secrets.token_hex(16)}.new"
        self._write(aside, data)
        aside.rename(aside.with_suffix(""))
        self._sync()

    def _write(self, path: Path, data: bytes) -> None:
        with path.open("xb", buffering=0) as file:
            for start in range(0, len(data), CHUNK_BYTES):
                file.write(data[start : start + CHUNK_BYTES])
            os.fsync(file.fileno())

    def _sync(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def store_one(store: Attachments, data: bytes) -> Holding:
    with store.build() as construction:
        for start in range(0, len(data), CHUNK_BYTES):
            construction.write(data[start : start + CHUNK_BYTES])
        return construction.finish()


def _jobs(act: Callable[[bytes], object], size_bytes: int) -> list[Job]:
    return [partial(act, os.urandom(size_bytes)) for _ in range(ROUND)]


def _links(store: Attachments, plain: Plain, threads: int, scale: Scale) -> list[Figure]:
    """Measure links to one attachment. The floor is an empty file with its directory."""
    held = store_one(store, os.urandom(1000))
    times = ROUND * LINKS_EACH
    makers: Mapping[str, Callable[[], list[Job]]] = {
        STORE: lambda: [partial(store.link, held.hash)] * times,
        PLAIN: lambda: [partial(plain.write, b"")] * times,
    }
    return _figures(f"links to what is there, {threads} at a time", _in_turns(scale.attachment_rounds, threads, makers))


def _in_turns(rounds: int, threads: int, makers: Mapping[str, Callable[[], list[Job]]]) -> Rates:
    """Return each contender's rate per second in each round. The data to write is generated beforehand."""
    rates: dict[str, list[float]] = {name: [] for name in makers}
    dice = random.Random(threads)
    with ThreadPoolExecutor(threads) as pool:
        for number in range(rounds + 1):
            for name in dice.sample(sorted(makers), len(makers)):  # the disk is still busy with the previous contender
                jobs = makers[name]()
                began = time.perf_counter()
                for running in [pool.submit(job) for job in jobs]:
                    running.result()
                if number:  # the first round warms up
                    rates[name].append(len(jobs) / (time.perf_counter() - began))
    return rates


def _figures(what: str, rates: Rates) -> list[Figure]:
    rate, floor = statistics.median(rates[STORE]), statistics.median(rates[PLAIN])
    rows = [Figure(what, rate, "1/s", floor=floor, floor_is=PLAIN, detail={"rates": rates})]
    least = _times_as_long(rates, BARE, PLAIN) if BARE in rates else None
    named = f"{what}: times as long as {PLAIN}"
    rows.append(Figure(named, _times_as_long(rates, STORE, PLAIN), "x", least, BARE if least else "", AIM))
    if ASIDE in rates:
        rows.append(Figure(f"{what}: times as long as {ASIDE}", _times_as_long(rates, STORE, ASIDE), "x"))
    for row in rows:
        beside = "" if row.floor is None else f"; {row.floor_is}: {with_unit(row.floor, row.unit)}"
        click.echo(f"  {row.name}: {with_unit(row.value, row.unit)}{beside}", err=True)
    return rows


def _times_as_long(rates: Rates, one: str, other: str) -> float:
    """Return the median ratio of the rounds: within a round both had the same disk."""
    return statistics.median(theirs / ours for ours, theirs in zip(rates[one], rates[other], strict=True))
