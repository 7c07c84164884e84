"""Users who change mail in the midst of syncs of a Dovecot and a node: `python -m tests.fuzz.syncs --seconds N`.

In each round a user does something at either side between calls that a sync makes of the node's mail store; calls fail,
connections end, and Dovecot forgets what was expunged. Then calm syncs must make both sides equal, and all mail must be
there that users heard OK for and have not expunged.
"""

from __future__ import annotations

import argparse
import random
import sys
from itertools import count, islice
from pathlib import Path

import trio

from tests.fuzz.syncs.campaign import played, servers
from tests.fuzz.syncs.round import Round


async def main(given: argparse.Namespace) -> int:
    """Play rounds, at least one, until the time is over or a round fails. Returns the exit code: 1 if one failed."""
    ends = trio.current_time() + given.seconds
    rounds = disturbed = failed = 0
    with servers() as running:
        for seed in islice(count(given.first_seed), given.rounds):
            one = Round(seed, running, given.kind, given.begun_by)
            problem = await played(one)
            rounds, disturbed = rounds + 1, disturbed + one.disturbed
            if problem is not None:
                failed += 1
                file = given.finds / f"seed-{seed}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(problem, "utf-8")
                print(f"offending seed: {seed}; its story: {file}\nto try it again: {command(given, seed)}", flush=True)
            if (failed and not given.go_on) or trio.current_time() > ends:
                break
    print(f"{'syncs':8}{disturbed:12,} changes      {failed} finds, {rounds} rounds", flush=True)
    return int(failed > 0)


def command(given: argparse.Namespace, seed: int) -> str:
    """Return the command that plays the round again. Dovecot has times and draws of its own: it need not fail again."""
    same = [f"--{name} {value}" for name, value in (("kind", given.kind), ("begun-by", given.begun_by)) if value]
    return " ".join(["python -m tests.fuzz.syncs --rounds 1 --first-seed", str(seed), *same])


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(prog="python -m tests.fuzz.syncs", description=__doc__)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--rounds", type=int, help="at most; default: as many as there is time for")
    arguments.add_argument("--first-seed", type=int, default=random.randrange(10**9), help="default: drawn")
    arguments.add_argument("--kind", choices=("s", "c", "f"), help="of all syncs: by a state, by changes, full")
    arguments.add_argument("--begun-by", choices=("dovecot", "node"), help="of all syncs; default: drawn")
    arguments.add_argument("--go-on", action="store_true", help="after a round that failed")
    arguments.add_argument("--finds", type=Path, default=Path(".fuzz/syncs/finds"))
    sys.exit(trio.run(main, arguments.parse_args()))
