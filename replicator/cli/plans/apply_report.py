"""Report of `replicator apply`: the results of all batches, added up and printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import click
from rich.markup import escape

from replicator.cli.output import console, echo, table
from replicator.tasks import ApplyOutcome, TaskState, Undone

UNDONE_MAX = 10_000  # limit of the listed ones
TREE = "(folder tree)"
_MEANING: dict[ApplyOutcome, str] = {
    "repaired": "made equal",
    "equal": "were equal already",
    "moved": "have changed since they were compared",
    "unreachable": "a node of the plan cannot be reached",
    "damaged": "left alone: run `replicator check --repair`",
    "failed": "could not be made equal",
}


@dataclass(slots=True)
class Report:
    """Result of all batches. `total`: mailboxes and folder trees of the plan; `left_out`: number beyond `undone`."""

    dry_run: bool
    total: int
    state: TaskState = "running"
    error: str | None = None
    done: int = 0
    outcomes: dict[ApplyOutcome, int] = field(default_factory=dict)
    undone: list[Undone] = field(default_factory=list)
    left_out: int = 0
    texts_lacking: int | None = None

    def add(self, outcomes: dict[ApplyOutcome, int], undone: Sequence[Undone]) -> None:
        """Add the results of some mailboxes."""
        for outcome, count in outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
            self.done += count
        room = UNDONE_MAX - len(self.undone)
        self.undone += undone[:room]
        self.left_out += len(undone[room:])

    @property
    def is_equal(self) -> bool:
        """True if all mailboxes of the plan are equal in the end."""
        repaired = 0 if self.dry_run else self.outcomes.get("repaired", 0)
        return self.state == "done" and self.done == self.outcomes.get("equal", 0) + repaired


def print_report(report: Report) -> None:
    """Print the report for people."""
    if report.undone:
        made = table("Not equal", "outcome", "user", "folder…", "why…")
        for one in report.undone:
            made.add_row(*map(escape, (one.outcome, one.user or "", one.folder or TREE, one.why)))
        echo(console(), made)
    if report.left_out:
        click.echo(f"{report.left_out} more are not listed")
    if report.outcomes:
        made = table("Mailboxes and folder trees", ">count", "outcome", "…")
        for outcome, meaning in _MEANING.items():
            if count := report.outcomes.get(outcome):
                would = report.dry_run and outcome == "repaired"
                made.add_row(str(count), outcome, "would be made equal (dry run)" if would else meaning)
        echo(console(), made)
    if report.texts_lacking:
        click.echo(f"this node still lacks {report.texts_lacking} bodies; `replicator status` counts them")
    if report.state == "done":
        click.echo(f"{report.done} of {report.total} mailboxes and folder trees of the plan were processed")
    else:
        why = f": {report.error}" if report.error else ""
        click.echo(f"Error: apply {report.state} after {report.done} of {report.total}{why}", err=True)
