"""Run any number of seeds on all cores: `python -m tests.simulation.soak [--seeds N] [--first N] [--jobs N]`.

For a seed that fails, a smaller plan that fails alike is searched for, and its story is printed with the command that
repeats it. `--seed N [--with OVERRIDES]` runs one seed and prints its story in any case. Seeds that failed are tried
first by the next run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import format_exception
from typing import NamedTuple

from tests.simulation.campaign.failing_seeds import FailingSeeds
from tests.simulation.campaign.overrides import overrides
from tests.simulation.campaign.shrinking import TRIES, kind_of, shrink
from tests.simulation.campaign.swarm import SeedFailedError, plan_of, run
from tests.simulation.plan import Deception, Plan

MEMORY = Path("/dev/shm")  # these clusters sync thousands of times, and disks are tested elsewhere
KEPT = Path(__file__).parents[2] / ".soak" / "failing-seeds"
PROGRESS_EVERY_S = 10.0
SHRINK_S = 60.0  # seconds of a core for the plans that are tried; one of them may take longer
SEEDS_OF_A_COMMIT = 1000
OPTIONS = {Deception.BAD_LINES: "--mutating", Deception.LIARS: "--lying"}


class Attempt(NamedTuple):
    """The result of a seed. `took_s`: seconds of a core, without the search for a smaller plan."""

    took_s: float
    story: str
    has_failed: bool


def attempt(seed: int, changes: str = "", tries: int = 0, deception: Deception | None = None) -> Attempt:
    """Run one seed. `changes`: overrides; `tries`: number of smaller plans, if it fails; `deception`: see `draw`."""
    began = time.process_time()
    plan = plan_of(seed, changes, deception)
    found = _failure(plan)
    took_s = time.process_time() - began
    if isinstance(found, str):
        return Attempt(took_s, found, has_failed=False)
    if not tries:
        return Attempt(took_s, _formatted(found), has_failed=True)
    smaller, failure = _smallest(plan, found, tries)
    what = overrides(plan_of(seed, deception=deception), smaller)
    options = f"{f' {OPTIONS[deception]}' if deception else ''}{f' --with {what}' if what else ''}"
    again = f"python -m tests.simulation.soak --seed {seed}{options}"
    return Attempt(took_s, f"{_formatted(failure)}\nseed {seed} failed; this story again: {again}", has_failed=True)


def _failure(plan: Plan) -> SeedFailedError | str:
    """Return the failure, or the story if no promise was broken."""
    with TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None, prefix="soak-") as directory:
        try:
            return run(plan, Path(directory))
        except SeedFailedError as error:
            return error


def _smallest(plan: Plan, failure: SeedFailedError, tries: int) -> tuple[Plan, SeedFailedError]:
    """Return the smallest plan found that fails alike, and its failure."""
    kind, began, failures = _kind(failure), time.process_time(), {repr(plan): failure}

    def fails(smaller: Plan) -> int | None:
        if time.process_time() - began > SHRINK_S:
            return None
        found = _failure(smaller)
        if isinstance(found, str) or _kind(found) != kind:
            return None
        failures["last"] = found
        return found.faults

    smallest = shrink(plan, failure.faults, fails, tries)
    return (smallest, failures["last"]) if "last" in failures else (plan, failure)


def _kind(failure: SeedFailedError) -> str:
    return kind_of(failure.__cause__ or failure)


def _formatted(failure: SeedFailedError) -> str:
    return "".join(format_exception(failure))


def soak(
    seeds: Sequence[int], jobs: int, stop_at: int, tries: int, kept: FailingSeeds, *, deception: Deception | None = None
) -> list[int]:
    """Run the kept seeds and these. Return those that failed."""
    ordered = list(dict.fromkeys((*kept.seeds, *seeds)))
    failed: list[int] = []
    began = said = time.monotonic()
    done, total_s = 0, 0.0
    if kept.seeds:
        _say(f"first the {len(kept.seeds)} seeds that failed before: {kept.seeds}")
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        running = {pool.submit(partial(attempt, tries=tries, deception=deception), seed): seed for seed in ordered}
        for done, future in enumerate(as_completed(running), 1):
            tried = future.result()
            total_s += tried.took_s
            kept.note(running[future], has_failed=tried.has_failed)
            if tried.has_failed:
                failed.append(running[future])
                _say(tried.story)
            if time.monotonic() - said > PROGRESS_EVERY_S:
                said = time.monotonic()
                _say(f"{done} of {len(ordered)} seeds, {len(failed)} failed")
            if len(failed) >= stop_at:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in active_children():
                    process.terminate()
                break
    took_s, each_s = time.monotonic() - began, total_s / max(done, 1)
    _say(f"{done} seeds in {took_s:.0f} s, {each_s:.2f} s of a core each; {len(failed)} failed: {sorted(failed)}")
    return failed


def _end_with_parent() -> None:
    """Have this worker end when the soak is killed, instead of running the seeds that are left."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def first_of_commit() -> int:
    """Return the first seed that CI tries of HEAD: the first 7 digits of its hash as a number, times 1000."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, cwd=KEPT.parents[1], capture_output=True, text=True)
    return int(head.stdout[:7], 16) * SEEDS_OF_A_COMMIT


def _say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return exit code 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and print its story")
    parser.add_argument("--with", dest="changes", default="", help="with --seed: clients=1,size=2,chaos_s=3,faults=0+4")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--of-commit", action="store_true", help="from the first seed of HEAD on, as CI does")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stop-at", type=int, default=10, help="failures")
    deceptions = parser.add_mutually_exclusive_group()
    for deception, option in OPTIONS.items():
        deceptions.add_argument(
            option, dest="deception", action="store_const", const=deception, help=f"{deception}, in all of the seeds"
        )
    parser.add_argument("--tries", type=int, default=TRIES, help="of plans that are smaller than one that fails")
    parser.add_argument("--kept", type=Path, default=KEPT, help="the file of the seeds that failed")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        try:
            tried = attempt(chosen.seed, chosen.changes, deception=chosen.deception)
        except ValueError as error:
            parser.error(f"--with: {error}")
        _say(tried.story)
        return int(tried.has_failed)
    first = first_of_commit() if chosen.of_commit else chosen.first
    if chosen.of_commit:
        _say(f"seeds from {first} on")
    seeds = range(first, first + chosen.seeds)
    kept = FailingSeeds(chosen.kept)
    failed = soak(seeds, chosen.jobs, chosen.stop_at, chosen.tries, kept, deception=chosen.deception)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
