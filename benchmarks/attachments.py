"""The attachment store against plain files, that is, against writing a file, its fsync, and that of its directory.

And against files that are written aside and renamed when they are safe, which like the store has to wait for the
disk twice. All take turns in small rounds, so that a disk which is now fast, now slow, is so for all.
"""

from __future__ import annotations

import os
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click

from benchmarks.report import Figure
from benchmarks.scale import Scale
from replicator.store.attachments.construction import Holding
from replicator.store.attachments.disk import DiskFiles
from replicator.store.attachments.store import Attachments

SIZES = {"64 KiB": 64 << 10, "1 MiB": 1 << 20}
THREADS = (1, 8)
ROUND = 32
"""Attachments or files, of all threads together."""

CHUNK_BYTES = 64 << 10
LINKS_EACH = 8
NAMES = ("plain files", "files written aside and renamed")
AIMS = ("at most 1.5 x", "")

Job = Callable[[], object]


def attachments(directory: Path, scale: Scale) -> list[Figure]:
    directory.mkdir(parents=True)
    store = Attachments(DiskFiles(directory / "store"), "dc1", secrets.token_hex(16))
    plain = Plain(directory / "plain")
    rows: list[Figure] = []
    for label, size_bytes in SIZES.items():
        for threads in THREADS:
            makers = [
                partial(_jobs, act, size_bytes) for act in (partial(store_one, store), plain.write, plain.write_aside)
            ]
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
    """To one attachment. The floor is an empty file with its directory."""
    held = store_one(store, os.urandom(1000))
    times = ROUND * LINKS_EACH
    makers: list[Callable[[], list[Job]]] = [
        lambda: [partial(store.link, held.hash)] * times,
        lambda: [partial(plain.write, b"")] * times,
    ]
    return _figures(f"links to what is there, {threads} at a time", _in_turns(scale.attachment_rounds, threads, makers))


def _in_turns(rounds: int, threads: int, makers: Sequence[Callable[[], list[Job]]]) -> list[list[float]]:
    """Of each contender, in each round, how many a second. What is to be written is made before."""
    rates: list[list[float]] = [[] for _ in makers]
    with ThreadPoolExecutor(threads) as pool:
        for number in range(rounds + 1):
            for make, found in zip(makers, rates, strict=True):
                jobs = make()
                began = time.perf_counter()
                for running in [pool.submit(job) for job in jobs]:
                    running.result()
                if number:  # the first one warms up
                    found.append(len(jobs) / (time.perf_counter() - began))
    return rates


def _figures(what: str, rates: list[list[float]]) -> list[Figure]:
    mine, *others = rates
    rate, floor = statistics.median(mine), statistics.median(others[0])
    ratios = [statistics.median(theirs / ours for ours, theirs in zip(mine, other, strict=True)) for other in others]
    told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    click.echo(f"  {what}: {rate:.0f}/s; plain files {floor:.0f}/s; times as long as the others: {told}", err=True)
    rows = [Figure(what, rate, "1/s", floor=floor, floor_is=NAMES[0], detail={"rates": rates})]
    for name, ratio, aim in zip(NAMES, ratios, AIMS, strict=False):
        rows.append(Figure(f"{what}: times as long as {name}", ratio, "x", aim=aim))
    return rows
