"""`python -m benchmarks`: run the figures, print the table, write the JSON."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click

from benchmarks.clients.wire import MeasurementError
from benchmarks.clusters.cluster import Cluster
from benchmarks.figures.cost_of_a_mail import cost_of_a_mail
from benchmarks.figures.crowd import crowd
from benchmarks.figures.differences import differences
from benchmarks.figures.distance import distance
from benchmarks.figures.doors import doors
from benchmarks.figures.dovecot_syncs import dovecot_syncs
from benchmarks.figures.failover import failover
from benchmarks.figures.heal import heal
from benchmarks.figures.imap import imap
from benchmarks.figures.large_bodies.attachments import attachments
from benchmarks.figures.large_bodies.large import large
from benchmarks.figures.large_bodies.shared_attachments import shared_attachments
from benchmarks.figures.large_bodies.slow_line import slow_line
from benchmarks.figures.newcomers import newcomers
from benchmarks.figures.scale import FULL, QUICK, Scale
from benchmarks.figures.shared_cluster import FIGURES, USERS
from benchmarks.figures.traffic import traffic
from benchmarks.report.document import refresh
from benchmarks.report.figure import Figure, machine, show, write

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "figures.md"
NODE_PREFIX = "BENCH_NODE_PREFIX"
MILLION = 1_000_000
LIMIT_S = 3600
"""Seconds after which a run is taken for hung."""

SCENARIOS: Mapping[str, Callable[[Path, Scale], list[Figure]]] = {
    "failover": failover,
    "heal": heal,
    "traffic": traffic,
    "distance": distance,
    "differences": differences,
    "newcomers": newcomers,
    "large": large,
    "slow_line": slow_line,
    "shared_attachments": shared_attachments,
    "attachments": attachments,
    "imap": imap,
    "doors": doors,
    "dovecot": dovecot_syncs,
    "cost": cost_of_a_mail,
    "crowd": crowd,
}
"""Scenarios that need clusters of their own, in a directory of their own."""

ONLY_NAMED = {"cost", "crowd"}
"""Scenarios that are measured only if they are named: one needs what `make tools` installs, the other takes an hour."""

EVERYTHING = [name for name in (*FIGURES, *SCENARIOS) if name not in ONLY_NAMED]


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*FIGURES, *SCENARIOS]))
@click.option("--quick", is_flag=True, help="Small numbers, in a few minutes; else it takes half an hour.")
@click.option("--million", is_flag=True, help="Compare a mailbox of a million messages, too: some minutes more.")
@click.option(
    "--crowd",
    "template",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Copy the databases of the figure `crowd` from this file, which is made if it is missing.",
)
@click.option("--profile", "profiled", multiple=True, help="Run this node (dc1) of the first cluster under cProfile.")
@click.option("--docs", is_flag=True, help="Write the tables into docs/figures.md, too.")
@click.option("--keep", is_flag=True, help="Leave the nodes' directory, with their logs.")
def main(
    names: tuple[str, ...],
    profiled: tuple[str, ...],
    *,
    template: Path | None,
    quick: bool,
    million: bool,
    docs: bool,
    keep: bool,
) -> None:
    """Measure NAMES, or everything.

    The words in the environment variable BENCH_NODE_PREFIX are put before each node's command, with {sid} replaced:
    BENCH_NODE_PREFIX='perf record -g -o {sid}.perf --' for instance.
    """
    signal.signal(signal.SIGALRM, _hung)
    signal.signal(signal.SIGTERM, _ended)
    signal.alarm(LIMIT_S)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (ROOT / "var").mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=ROOT / "var"))
    described = machine(directory) | {"scale": "quick" if quick else "full"}
    profiles = {sid: RESULTS / f"{sid}.prof" for sid in profiled}
    scale = QUICK if quick else FULL
    if million:
        scale = replace(scale, mailbox_sizes=(*scale.mailbox_sizes, MILLION))
    if template is not None:
        scale = replace(scale, crowd_template=str(template))
    figures: dict[str, list[Figure]] = {}
    try:
        for name, rows in _measure(names or EVERYTHING, directory, profiles, scale):
            figures[name] = rows
            if docs:
                PAGE.write_text(refresh(PAGE.read_text(encoding="utf-8"), name, rows, described), encoding="utf-8")
    except (MeasurementError, OSError) as error:
        sys.exit(f"benchmarks: {error}")
    finally:
        if figures:
            show([figure for rows in figures.values() for figure in rows], described)
            click.echo(write(figures, described, RESULTS))
        if not keep:
            shutil.rmtree(directory)


def _measure(
    names: Sequence[str], directory: Path, profiles: Mapping[str, Path], scale: Scale
) -> Iterator[tuple[str, list[Figure]]]:
    """Yield the figures by name, those that share a cluster first."""
    shared = [name for name in names if name in FIGURES]
    if shared:
        with Cluster(directory / "nodes", USERS, os.environ.get(NODE_PREFIX, ""), profiles) as cluster:
            for name in shared:
                click.echo(f"{name} ...", err=True)
                yield name, FIGURES[name](cluster, scale)
    for name in names:
        if name in SCENARIOS:
            click.echo(f"{name} ...", err=True)
            yield name, SCENARIOS[name](directory / name, scale)


def _hung(_number: int, _frame: FrameType | None) -> None:
    raise MeasurementError(f"not done after {LIMIT_S} s")


def _ended(_number: int, _frame: FrameType | None) -> None:
    sys.exit("benchmarks: ended by SIGTERM")


if __name__ == "__main__":
    main()
