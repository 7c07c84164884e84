"""Measure whether the simulator notices mistakes: `python -m tests.simulation.breakages [--jobs N] [NAME ...]`

Each breakage is made in a copy of the program, and seeds run on it until one fails. Prints the table of
docs/testing.md: the number of seeds needed, and the message of the first failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "master_election", "resync", "replicator", "tests")
SCENARIOS = ("tests/simulation/test_scenarios.py", "tests/simulation/test_liars.py")
MAX_SEEDS = 1000  # without a failure: the simulator has missed the breakage
FAILURE = re.compile(r"(?:Error|Exception): (?!.*sub-exception)(?!seed)(.+)")


class Breakage(NamedTuple):
    """A mistake: in `path`, `right` becomes `wrong`. `scenario`: the test that should fail, instead of a seed."""

    name: str
    what: str
    path: str
    right: str
    wrong: str
    scenario: str = ""


BREAKAGES = (
    Breakage(
        "predecessor", "an entry applies on whatever head the node has", "replicator/store/log/apply.py",
        "follows = entry.stands_on(chain.head, chain.history)", "follows = True",
    ),
    Breakage(
        "histories", "a merge names the histories of its heads the wrong way round",
        "replicator/store/log/forks/merging.py",
        "(plan.ours, plan.theirs), (chain.history, plan.history)",
        "(plan.ours, plan.theirs), (plan.history, chain.history)",
    ),
    Breakage(
        "same-head", "no node compares another history of its head", "replicator/replication/writes/head_exchange.py",
        "return NOT_LOGGED in reply.fields or reply.head == mine.head", "return NOT_LOGGED in reply.fields",
    ),
    Breakage(
        "catch-up", "a root answers before all have dropped what they mastered", "master_election/election.py",
        "return len(self._dropped) == len(self._links.component)", "return self.sid in self._dropped",
    ),
    Breakage(
        "annotations", "a merge keeps the older value of an annotation", "resync/folder_tree.py",
        "max(moved, found.get((home, one.name), moved), key=_last)",
        "min(moved, found.get((home, one.name), moved), key=_last)",
    ),
    Breakage(
        "sync", "OK comes before the disk has it", "replicator/store/db/schema.py",
        "PRAGMA synchronous = FULL", "PRAGMA synchronous = OFF",
    ),
    Breakage(
        "copies", "OK comes with one copy too few", "replicator/replication/writes/durability.py",
        "needed = self.config.copies - 1", "needed = max(0, self.config.copies - 2)",
    ),
    Breakage(
        "unchanged-since", "UNCHANGEDSINCE is not looked at", "replicator/store/log/sequencing/sequencer.py",
        "if unchanged_since is not None and row.modseq > unchanged_since:", "if False:",
    ),
    Breakage(
        "by-uid", "a merge takes two messages with one UID for one", "resync/merge.py",
        "right = {row.guid: row for row in theirs.rows.values()}",
        "right = {ours.rows.get(row.uid, row).guid: row for row in theirs.rows.values()}",
    ),
    Breakage(
        "uid-rule", "a UID stays although a side has promised it to new mail", "resync/merge.py",
        "return row.uid < side.uidnext", "return row.uid in side.rows",
    ),
    Breakage(
        "uid-gains", "a UID stays although a placement joins it that one side has not shown", "resync/merge.py",
        "return not set(row.placements()) <= set(shown.placements())", "return False",
    ),
    Breakage(
        "stamps", "flags go by the side and not by the stamp", "resync/merge.py",
        "return {flag: max(state for state in (one.get(flag), other.get(flag)) if state) for flag in {**one, **other}}",
        "return {**one, **other}",
    ),
    Breakage(
        "branches", "branches in the log are never joined", "replicator/replication/convergence/fork_merge.py",
        "if not self.is_hopeless(head):", "if False:",
    ),
    Breakage(
        "strays", "a mail that is to move to the folder of the same name is removed",
        "replicator/store/log/forks/stray_mail.py", "lacking.append(row)", "done.append(row)",
    ),
    Breakage(
        "shipping", "a link starts with what is new, whatever the peer lacks", "replicator/replication/log/sender.py",
        "position = await self._store.read(partial(queries.log_start, context=self._not_owed()))",
        "position = self._store.tail.end",
    ),
    Breakage(
        "origin", "a node that starts again goes on under its old origin", "replicator/runtime/environment.py",
        'return f"{sid}.{self.clock_ms():x}{self.random.randrange(1 << 16):04x}"', 'return f"{sid}.1"',
    ),
    Breakage(
        "copy", "a COPY believes the UID and not the GUID", "replicator/store/log/sequencing/sequencer.py",
        "if row is None or row.guid != want.guid:", "if row is None:",
        "test_copy_takes_the_mail_its_client_sees_not_the_one_at_the_master",
    ),
    Breakage(
        "transfer", "a node whose log ends before its peers' begin takes nothing over",
        "replicator/replication/convergence/state_transfer.py",
        "remaining = await self._compare(sid, remaining, left)", "remaining = []",
    ),
    Breakage(
        "in-force", "entries leave a log before other nodes have settled them",
        "replicator/replication/checkpoints/log_truncation.py",
        "self._lacking = tuple(self._known.lacking(pending.covered))", "self._lacking = ()",
    ),
    Breakage(
        "adopted", "what an adoption takes in goes on waiting", "replicator/store/log/apply.py",
        "if entry.is_merge:\n        _absorb(tx, chain", "if entry.is_merge and in_log:\n        _absorb(tx, chain",
    ),
    Breakage(
        "let-go", "attachments are let go although a body has them",
        "replicator/replication/bodies/from_peers/download.py",
        "return await self._store.read(partial(unrecorded, holdings=held))", "return list(held)",
    ),
    Breakage(
        "parts", "a message is written without attachments that are here only damaged",
        "replicator/replication/bodies/from_peers/download.py",
        "except ContentUnavailableError:\n            return None", "except ContentUnavailableError:\n            pass",
        "test_damaged_attachment_is_healed_before_mail_that_needs_it_is_acknowledged",
    ),
    Breakage(
        "ack", "a node acknowledges a message before it has its attachments", "replicator/replication/log/receiver.py",
        "await self._complete_and_write([", "await self._write([",
    ),
    Breakage(
        "forget", "with expunged mail a body is removed that another mailbox shows",
        "replicator/store/gc/body_references.py",
        "= (by_messages, by_expunged, by_waiting)", "= (by_expunged, by_waiting)",
    ),
    Breakage(
        "twice", "undelete gives a message back twice", "replicator/replication/tasks/undelete.py",
        "SaveRequest(key, kept.guid,", "SaveRequest(key, self._environment.new_guid(),",
    ),
    Breakage(
        "new-node", "a node that has lost its disk serves before it has met the others",
        "replicator/replication/startup/node_admission.py", "        if not is_new:\n", "        if True:\n",
        "test_node_with_a_lost_disk_refuses_clients_until_it_has_links",
    ),
    Breakage(
        "coming-back", "a node that has just started shows what it has so far",
        "replicator/replication/startup/mailbox_readiness.py",
        "if self._all.is_set() or key.mailbox_id in self._ready:",
        "if self._all.is_set() or key.mailbox_id in self._ready or key.uidvalidity:",
        "test_node_with_a_lost_disk_shows_mailboxes_only_whole",
    ),
    Breakage(
        "older-copy", "a node on an older copy of its disk shows what that holds",
        "replicator/replication/startup/mailbox_readiness.py",
        "if self._all.is_set() or key.mailbox_id in self._ready:",
        "if self._all.is_set() or key.mailbox_id in self._ready or key.uidvalidity:",
        "test_node_with_an_older_disk_copy_shows_mailboxes_only_as_last_seen",
    ),
    Breakage(
        "second-run", "a peer lets a second run of a node in, although the first one answers",
        "replicator/replication/links/rival_runs.py",
        "if state.link is not None and await _answers(state.link):\n                    raise",
        "if state.link:\n                    return",
        "test_copied_node_ends_beside_the_original_and_may_replace_it_later",
    ),
    Breakage(
        "outlived", "a run goes on although an older one is known in another part",
        "replicator/replication/mastership/rivals.py",
        "self._outlived(origin)", "return",
        "test_copied_node_accepted_in_one_partition_ends_when_partitions_meet",
    ),
    Breakage(
        "far-term", "a term far ahead is adopted as soon as one node tells of it", "master_election/election.py",
        "return self._doubted.setdefault(sid, self._beats) < self._beats", "return True",
        "test_far_term_that_is_told_once_is_not_adopted",
    ),
    Breakage(
        "log-end", "a log begins after entries that the peer says it once had",
        "replicator/replication/convergence/state_transfer.py",
        "if not covers(self._claimed(sid), collected):", "if False:",
    ),
)  # fmt: skip


def measure(breakage: Breakage, jobs: int) -> tuple[str, str]:
    """Return the number of seeds that it took to notice the breakage, and the failure's message."""
    with TemporaryDirectory(prefix="breakage-") as directory:
        copy = Path(directory)
        for package in PACKAGES:
            shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        file = copy / breakage.path
        file.write_text(file.read_text().replace(breakage.right, breakage.wrong))
        scenario = ["pytest", "-q", *SCENARIOS, "-k", breakage.scenario]
        seeds = ["tests.simulation.soak", "--seeds", str(MAX_SEEDS), "--stop-at", "1", "--tries", "0"]
        said = subprocess.run(
            [sys.executable, "-m", *(scenario if breakage.scenario else [*seeds, "--jobs", str(jobs)])],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": directory},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    reasons = FAILURE.findall(said)
    if not reasons:
        return "missed", f"nothing in {MAX_SEEDS} seeds"
    tried = re.search(r"^(\d+) seeds in ", said, re.MULTILINE)
    return (tried[1] if tried else "its scenario"), reasons[0].strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the breakages. Return exit code 1 if one was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.breakages", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("names", nargs="*", choices=[[], *(breakage.name for breakage in BREAKAGES)])
    chosen = parser.parse_args(arguments)
    missed = 0
    sys.stdout.write("| breakage | where | seeds | what the first failure says |\n|---|---|---|---|\n")
    for breakage in BREAKAGES:
        if not chosen.names or breakage.name in chosen.names:
            seeds, reason = measure(breakage, chosen.jobs)
            missed += seeds == "missed"
            sys.stdout.write(f"| {breakage.what} | `{breakage.path}` | {seeds} | {reason} |\n")
            sys.stdout.flush()
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
