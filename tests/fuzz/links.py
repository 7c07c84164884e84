"""Real nodes on links that change what they carry, round after round: `python -m tests.fuzz.links --seconds N`.

In each round clients deliver, read and change mail at all nodes while links change fields or flip bits of commands.
Then the links are sound again. All nodes must become equal, without a restart, and have all that clients heard OK for.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
import traceback
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.clusters.cluster import Cluster
from tests.end_to_end.helpers.bad_links import BadLinks
from tests.end_to_end.helpers.load import Load
from tests.mutating import Flipper, Mutator

ROUNDS_MAX = 1000  # each has a user of its own
RATES = (0.02, 0.1, 0.3)  # shares of changed commands
BAD_S = (2.0, 6.0, 12.0)  # with the longest, links end and come back several times
CHANGES = 20  # of each client while links are bad
EQUAL_S = 180.0  # as in simulated clusters


def play(cluster: Cluster, links: BadLinks, user: str, dice: random.Random) -> None:
    """Play one round. Raises AssertionError, or MeasurementError if the nodes do not become equal."""
    cluster.wait_together()
    with Load(cluster, user) as load:
        load.do(2)
        for worker in load.workers_at(None):
            worker.is_patient = True  # a reply that was changed never comes
        for pair in combinations([node.sid for node in cluster.nodes], 2):
            links.spoil(*pair, dice.choice((Mutator, Flipper))(random.Random(dice.random()), dice.choice(RATES)))
        load.ask(CHANGES)
        threading.Event().wait(dice.choice(BAD_S))
        links.mend()
        load.wait(within_s=EQUAL_S)
        cluster.wait_until_equal(EQUAL_S)
        load.do(2)
        load.check()


def main(seconds: float, first: int, finds: Path) -> int:
    """Play rounds, at least one, until the time is over, and report. Returns the exit code: 1 if a round failed."""
    ends = time.monotonic() + seconds
    users = [f"user{number}" for number in range(ROUNDS_MAX)]
    seeds = range(first, first + ROUNDS_MAX)
    rounds, failed = 0, False
    with (
        TemporaryDirectory(prefix="fuzz-") as directory,
        Cluster(Path(directory, "nodes"), users, proxied=True) as cluster,
    ):
        links = BadLinks(cluster)
        for seed, user in zip(seeds, users, strict=True):
            try:
                play(cluster, links, user, random.Random(seed))
            except Exception:  # noqa: BLE001 - whatever it is, it is a find
                failed = True
                file = finds / f"seed-{seed}"
                finds.mkdir(parents=True, exist_ok=True)
                logs = "\n".join(f"{node.sid}:\n{node.log_tail()}" for node in cluster.nodes)
                file.write_text(f"{traceback.format_exc()}\n{logs}\n", "utf-8")
                print(f"offending seed: {seed}; its story: {file}\nto try it again: {command(seed)}")
            rounds += 1
            if failed or time.monotonic() > ends:
                break
        links.mend()
        print(f"{'links':8}{links.counts.total():12,} changes      {int(failed)} finds, {rounds} rounds", flush=True)
    return int(failed)


def command(seed: int) -> str:
    """Return the command that plays the round again. Processes have a timing of their own: it need not fail again."""
    return f"python -m tests.fuzz.links --seconds 1 --first-seed {seed}"


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(prog="python -m tests.fuzz.links", description=__doc__)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--first-seed", type=int, default=random.randrange(10**9), help="default: drawn")
    arguments.add_argument("--finds", type=Path, default=Path(".fuzz/links/finds"))
    given = arguments.parse_args()
    sys.exit(main(given.seconds, given.first_seed, given.finds))
