"""`replicator apply`: sends a repair plan to a node, which makes the plan's mailboxes equal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from replicator.cli.api.client import APPLY, NodeClient
from replicator.cli.output import echo_json
from replicator.cli.plans.apply_report import Report, print_report
from replicator.cli.plans.plan_files import S3, Plan
from replicator.cli.target import CommandError, NodeUrl, config_argument, node_options, one_node
from replicator.cli.task_progress import Show, bar, carried_out
from replicator.config.values import duration, endpoint
from replicator.status import NodeStatus
from replicator.tasks import (
    HEADS_MAX,
    PLANNED_MAX,
    RATE_MAX,
    ApplyOptions,
    ApplyStatus,
    PlannedMailbox,
    Undone,
)
from resync.plan import PlanManifest


@click.command()
@click.argument("plan", metavar="DIR|s3://BUCKET/PREFIX")
@click.option("--only-master", metavar="NODE", help="Only mailboxes whose master is this node, according to the plan.")
@click.option("--dry-run", is_flag=True, help="Report what would be done, and change nothing.")
@click.option(
    "--rate", type=click.IntRange(1, RATE_MAX), help="Maximum number of mailboxes per second; default: no limit."
)
@click.option(
    "--settle", default="10s", show_default=True, help="Minimum time between the last inventory and the repair."
)
@click.option("--endpoint", "server", help="URL of an S3-compatible server; default: `checkpoint.endpoint`, or Amazon.")
@node_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def apply(
    plan: str,
    *,
    only_master: str | None,
    rate: int | None,
    settle: str,
    server: str | None,
    config_file: Path | None,
    url: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make the mailboxes of a repair plan equal, through one of the plan's nodes.

    A mailbox is changed only if all nodes of the plan still show the state that was compared; its master then merges
    the branches of a fork. Mailboxes that the plan marks as damaged are left alone. The command may be interrupted and
    run again: mailboxes that are equal by then are skipped. The plan is read on this machine, not by the node. Exit
    code 0 if all mailboxes of the plan are equal in the end, 1 otherwise, in a dry run too.
    """
    node, settle_s = one_node(config_file, url), _settle_s(settle)
    found = Plan(plan, _endpoint(plan, server, config_file))
    masters = _masters(found.manifest, only_master)
    with NodeClient(node) as client:
        status = client.status()
    _check_node(node, status, found.manifest)
    report = Report(dry_run, sum(found.manifest.mailboxes[master] for master in masters))
    with bar("Repairing" if not dry_run else "Comparing") as show:
        try:
            found.check_whole(masters)
            _settle(found.manifest, status, settle_s)
            _apply(_Sender(node, report, rate, show), _planned(found, masters), len(found.manifest.nodes))
        except KeyboardInterrupt:
            report.state = "cancelled"
        except (CommandError, click.UsageError) as error:  # the latter: options that the node refuses
            report.state, report.error = "failed", error.message
    echo_json(asdict(report)) if as_json else print_report(report)
    if not report.is_equal:
        raise click.exceptions.Exit(1)


# ---- arguments


def _settle_s(settle: str) -> float:
    try:
        return duration(0.0)(settle)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--settle") from error


def _endpoint(plan: str, server: str | None, config_file: Path | None) -> str | None:
    if not plan.startswith(S3):
        if server is not None:
            raise click.UsageError("--endpoint is only for plans at s3:// URLs; leave it out")
        return None
    if server is None:
        return config_argument(config_file).checkpoint.endpoint if config_file is not None else None
    try:
        return endpoint(server)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--endpoint") from error


def _masters(manifest: PlanManifest, only: str | None) -> list[str]:
    if only is not None and only not in manifest.mailboxes:
        masters = ", ".join(sorted(manifest.mailboxes)) or "none"
        raise click.BadParameter(
            f"{only} is not a master in this plan; its masters are: {masters}", param_hint="--only-master"
        )
    return sorted(manifest.mailboxes) if only is None else [only]


def _check_node(node: NodeUrl, status: NodeStatus, manifest: PlanManifest) -> None:
    if status.cluster != manifest.cluster:
        raise CommandError(f"{node.name} belongs to cluster {status.cluster!r}, but the plan to {manifest.cluster!r}")
    if status.sid not in manifest.nodes:
        nodes = ", ".join(sorted(manifest.nodes))
        raise CommandError(f"{status.sid} is not a node of the plan; use one of its nodes: {nodes}")


def _settle(manifest: PlanManifest, status: NodeStatus, settle_s: float) -> None:
    """Wait until changes on their way during the last inventory have most likely arrived."""
    taken_ms = max((taken.taken_ms for taken in manifest.nodes.values()), default=0)
    left_s = settle_s - (status.clock_ms - taken_ms) / 1000
    if left_s > 0:
        time.sleep(min(left_s, settle_s))


# ---- execution


class _Sender:
    """Sends batches to the node, one after the other."""

    def __init__(self, node: NodeUrl, report: Report, rate: int | None, show: Show) -> None:
        self._node, self._rate, self._show = node, rate, show
        self.report = report

    def send(self, mailboxes: Sequence[PlannedMailbox], *, texts: bool = False) -> None:
        """Run one batch. Raises CommandError, and KeyboardInterrupt if the task was cancelled."""
        report = self.report
        options = ApplyOptions(tuple(mailboxes), report.dry_run, self._rate, texts)
        status = carried_out(self._node, APPLY, options, lambda done, _: self._show(report.done + done, report.total))
        report.add(status.outcomes, status.undone)
        report.texts_lacking = status.texts_lacking
        _require_done(status)


def _require_done(status: ApplyStatus) -> None:
    if status.state == "cancelled":
        raise KeyboardInterrupt
    if status.state != "done":
        raise CommandError(status.error or f"apply {status.state}")


def _planned(plan: Plan, masters: Sequence[str]) -> Iterator[PlannedMailbox | Undone]:
    """Yield all trees before all mailboxes: a folder tells where its mailbox is shown."""
    yield from plan.mailboxes(masters, trees=True)
    yield from plan.mailboxes(masters, trees=False)


def _apply(sender: _Sender, planned: Iterator[PlannedMailbox | Undone], nodes: int) -> None:
    report = sender.report
    batch: list[PlannedMailbox] = []
    batch_max = max(1, min(PLANNED_MAX, HEADS_MAX // max(1, nodes)))
    for one in planned:
        if isinstance(one, Undone):
            report.add({one.outcome: 1}, [one])
            continue
        batch.append(one)
        if len(batch) == batch_max:
            sender.send(batch)
            batch = []
    if batch:
        sender.send(batch)
    if report.outcomes.get("repaired") and not report.dry_run:
        sender.send((), texts=True)
    report.state = "done"
