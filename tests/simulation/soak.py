"""Any number of seeds on all cores: `python -m tests.simulation.soak [--seeds N] [--first N] [--jobs N]`.

Prints the story of a seed that fails, and goes on. `--seed N` runs one seed and prints its story in any case.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import format_exception
from typing import NamedTuple

from tests.simulation.swarm import SeedFailedError, run_seed

MEMORY = Path("/dev/shm")  # these clusters sync thousands of times, and disks are tested elsewhere
PROGRESS_EVERY_S = 10.0


class Attempt(NamedTuple):
    """What became of a seed. `took_s`: of a core."""

    took_s: float
    story: str
    has_failed: bool


def attempt(seed: int, *, mutates: bool = False) -> Attempt:
    """Run one seed."""
    began = time.process_time()
    has_failed = False
    with TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None, prefix="soak-") as directory:
        try:
            story = run_seed(seed, Path(directory), mutates=mutates)
        except SeedFailedError as error:
            story, has_failed = "".join(format_exception(error)), True
    return Attempt(time.process_time() - began, story, has_failed)


def soak(seeds: Sequence[int], jobs: int, stop_at: int, *, mutates: bool = False) -> list[int]:
    """Run the seeds; those that failed."""
    failed: list[int] = []
    began = said = time.monotonic()
    done, total_s = 0, 0.0
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(partial(attempt, mutates=mutates), seed): seed for seed in seeds}
        for done, future in enumerate(as_completed(running), 1):
            tried = future.result()
            total_s += tried.took_s
            if tried.has_failed:
                failed.append(running[future])
                _say(f"{tried.story}\nseed {running[future]} failed")
            if time.monotonic() - said > PROGRESS_EVERY_S:
                said = time.monotonic()
                _say(f"{done} of {len(seeds)} seeds, {len(failed)} failed")
            if len(failed) >= stop_at:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in active_children():
                    process.terminate()
                break
    took_s = time.monotonic() - began
    _say(
        f"{done} seeds in {took_s:.0f} s, {total_s / done:.2f} s of a core each; {len(failed)} failed: {sorted(failed)}"
    )
    return failed


def _say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and print its story")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stop-at", type=int, default=10, help="failures")
    parser.add_argument("--mutating", action="store_true", help="links change what they carry, in all of the seeds")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        tried = attempt(chosen.seed, mutates=chosen.mutating)
        _say(tried.story)
        return int(tried.has_failed)
    return (
        1
        if soak(range(chosen.first, chosen.first + chosen.seeds), chosen.jobs, chosen.stop_at, mutates=chosen.mutating)
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
