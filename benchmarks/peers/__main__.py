"""`python -m benchmarks.peers`: give the same loads to each pair, round by round, and print the medians."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType

import click
import psutil

from benchmarks.clients.wire import MeasurementError
from benchmarks.peers.loads.catching_up import changes, lag, newcomer
from benchmarks.peers.loads.delivery import delivery
from benchmarks.peers.loads.reading import idle_sessions, reading
from benchmarks.peers.page import others, section
from benchmarks.peers.pairs.cyrus import CyrusPair
from benchmarks.peers.pairs.dovecot import DovecotPair
from benchmarks.peers.pairs.ours import Ours
from benchmarks.peers.pairs.pair import Pair
from benchmarks.peers.rows import Measured
from benchmarks.peers.sizes import FULL, QUICK, Sizes
from benchmarks.peers.table import show, write
from benchmarks.report.document import replace_section
from benchmarks.report.figure import machine

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "comparison.md"
USERS = tuple(f"user{number:02d}" for number in range(1, 21))
LIMIT_S = 3600
"""Seconds after which a run is taken for hung, and ended by SIGALRM."""

PAIRS: Mapping[str, type[Pair]] = {"ours": Ours, "dovecot": DovecotPair, "cyrus": CyrusPair}
MISSING = {
    "dovecot": "apt-get install dovecot-imapd dovecot-lmtpd",
    "cyrus": "docs/comparison.md says how to unpack it",
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(PAIRS)))
@click.option("--quick", is_flag=True, help="Small sizes and one round.")
@click.option("--rounds", type=click.IntRange(1, 20), help="Rounds, instead of three.")
@click.option("--docs", is_flag=True, help="Write the table into docs/comparison.md, too.")
@click.option("--keep", is_flag=True, help="Leave the servers' directories, with their logs.")
def main(names: tuple[str, ...], rounds: int | None, *, quick: bool, docs: bool, keep: bool) -> None:
    """Measure the pairs NAMES, or all that are installed."""
    for ending in (signal.SIGALRM, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _ended)
    signal.alarm(LIMIT_S)
    os.umask(0o022)  # other servers run under another account
    (ROOT / "var").mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="peers-", dir=ROOT / "var"))
    directory.chmod(0o755)
    described = machine(directory) | {"scale": "quick" if quick else "full"}
    sizes = QUICK if quick else FULL
    kinds = _installed(names or tuple(PAIRS))
    measured, versions = Measured([kind.name for kind in kinds]), {kind.name: str(kind.version()) for kind in kinds}
    try:
        for number in range(rounds or sizes.rounds):
            _round(number, kinds, directory, sizes, measured)
            if docs:
                text = section(measured, versions, described, number + 1)
                PAGE.write_text(replace_section(PAGE.read_text(encoding="utf-8"), "peers", text), encoding="utf-8")
    except (MeasurementError, OSError) as error:
        sys.exit(f"benchmarks: {error}")
    finally:
        if measured.others_cores:
            show(measured, versions, described)
            click.echo(others(measured))
            click.echo(write(measured, versions, described, RESULTS))
        if not keep:
            shutil.rmtree(directory)


def _round(number: int, kinds: Sequence[type[Pair]], directory: Path, sizes: Sizes, measured: Measured) -> None:
    """Measure each pair once, each round beginning with another one."""
    first = number % len(kinds)
    for kind in (*kinds[first:], *kinds[:first]):
        click.echo(f"round {number + 1}: {kind.name} ...", err=True)
        at, seeds = directory / f"{number}-{kind.name}", count(1)
        began, busy = time.monotonic(), _others_s()
        with _told(kind(at / "together", USERS)) as pair:
            measured.add(kind.name, delivery(pair, sizes, seeds) | lag(pair, sizes, seeds))
        with _told(kind(at / "late", USERS, late=True)) as pair:
            measured.add(kind.name, newcomer(pair, sizes, seeds) | changes(pair, sizes, seeds))
            measured.add(kind.name, idle_sessions(pair, sizes) | reading(pair, sizes))
        measured.add_others(kind.name, (_others_s() - busy) / (time.monotonic() - began))


@contextmanager
def _told(pair: Pair) -> Iterator[Pair]:
    """Start the pair, and end it. What goes wrong is told with the last lines of its logs."""
    with pair:
        try:
            yield pair
        except (MeasurementError, OSError) as error:
            raise MeasurementError(f"{pair.name}: {error}\n{pair.log_tail()}") from error


def _others_s() -> float:
    """Return the processor time that all processes have used but this one, and what it has started and ended."""
    everyone, mine = psutil.cpu_times(), os.times()
    return everyone.user + everyone.nice + everyone.system + everyone.irq + everyone.softirq - sum(mine[:4])


def _installed(names: Sequence[str]) -> list[type[Pair]]:
    """Return the pairs that can be measured here, and say which cannot."""
    kinds: list[type[Pair]] = []
    for name in names:
        if PAIRS[name].version() is None:
            click.echo(f"{PAIRS[name].name} is not installed, so it is left out: {MISSING[name]}", err=True)
        else:
            kinds.append(PAIRS[name])
    if not kinds:
        sys.exit("benchmarks: none of these is installed")
    return kinds


def _ended(number: int, _frame: FrameType | None) -> None:
    sys.exit(f"benchmarks: ended by {signal.Signals(number).name}")


if __name__ == "__main__":
    main()
