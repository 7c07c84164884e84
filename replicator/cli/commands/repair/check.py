"""`replicator check` and `replicator scrub`: finding and repairing damage in a running node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from replicator.cli.api.client import CHECK, SCRUB, TaskKind
from replicator.cli.output import console, echo, echo_json, table
from replicator.cli.target import CommandError, NodeUrl, node_options, one_node
from replicator.cli.task_progress import echo_end, followed
from replicator.tasks import RATE_MAX, CheckOptions, CheckStatus, Finding, ScrubOptions, TaskOptions
from spark.job.command import check_given, check_installed, spark_options, told
from spark.job.resources import Resources

WRONG = ("missing", "extra", "different")  # of a row of an index
LEFT_AS_IT_IS = "not repaired"


@click.command()
@click.option("--repair", is_flag=True, help="Repair damage: rows from the log, bodies from other nodes.")
@click.option("--rate", type=click.IntRange(1, RATE_MAX), help="Maximum number of rows per second; default: no limit.")
@node_options
@click.option("--spark", "on_spark", is_flag=True, help="Check the indexes of nodes' inventories instead, on Spark.")
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def check(
    *,
    config_file: Path | None,
    url: str | None,
    rate: int | None,
    given: tuple[str, ...],
    master: str | None,
    memory: str | None,
    scratch: str | None,
    conf: dict[str, str],
    repair: bool,
    on_spark: bool,
    as_json: bool,
) -> None:
    """Compare what a node shows with its log, while it runs.

    The check covers messages, indexes, counters, folders and subscriptions. It also checks that the body of each
    message and each attachment exists, without reading them: `scrub` does that. An interrupt ends the check. Exit code
    0 if there is no damage or all of it was repaired, 1 otherwise.

    With --spark, the command asks no node. Instead, in each --inventory, the index by GUID and the counters of
    mailboxes are compared with the messages by mailbox and UID, which count as correct. To repair errors found that
    way, run a check with --repair at the node.
    """
    if on_spark:
        if repair or rate or config_file or url:
            raise click.UsageError(
                "--spark checks inventories: give --inventory NODE=PLACE, without a node, --rate or --repair"
            )
        check_given(given, 1)
        _check_inventories(given, Resources(master, memory, scratch, conf), as_json=as_json)
        return
    if given or master or memory or scratch or conf:
        raise click.UsageError("--inventory, --master, --memory, --scratch and --conf work only with --spark")
    _run(one_node(config_file, url), CHECK, CheckOptions(repair, rate), "Checking", as_json=as_json)


@click.command()
@click.option(
    "--rate", type=click.IntRange(1, RATE_MAX), help="Maximum number of bodies and rows per second; default: no limit."
)
@node_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def scrub(config_file: Path | None, url: str | None, rate: int | None, *, as_json: bool) -> None:
    """Read all message bodies and attachments of a running node; fetch damaged or missing ones from other nodes.

    Leftovers of crashes among the attachments are removed. An interrupt ends the scrub. Exit code 0 if all bodies are
    intact in the end, 1 if some could be fetched from no reachable node.
    """
    _run(one_node(config_file, url), SCRUB, ScrubOptions(rate), "Scrubbing", as_json=as_json)


def _check_inventories(given: tuple[str, ...], resources: Resources, *, as_json: bool) -> None:
    check_installed()
    from spark.job.jobs import JobError, check_indexes  # noqa: PLC0415  needs pyspark, and takes seconds

    try:
        with told() as tell:
            found = check_indexes(given, resources, tell=tell)
    except JobError as error:
        raise CommandError(str(error)) from error
    if as_json:
        echo_json([asdict(one) for one in found])
    else:
        made = table(
            "Indexes", "node", ">mailboxes", ">rows", *(f">{what}" for what in WRONG), ">miscounted", ">unreadable"
        )
        for one in found:
            wrong = (*(one.index.get(what, 0) for what in WRONG), one.damage.get("chain", 0))
            counts = (one.mailboxes, one.rows, *wrong, sum(one.unreadable.values()))
            made.add_row(escape(one.node), *map(str, counts))
        echo(console(), made)
    if not all(one.is_clean for one in found):
        raise click.exceptions.Exit(1)


def _run(node: NodeUrl, task: TaskKind[CheckStatus], options: TaskOptions, shown: str, *, as_json: bool) -> None:
    status = followed(node, task, options, shown)
    if as_json:
        echo_json(asdict(status))
    else:
        _print(status)
    if status.state != "done" or status.unrepaired:
        raise click.exceptions.Exit(1)


def _print(status: CheckStatus) -> None:
    if status.findings:
        echo(console(), findings_table(status.findings))
    if status.left_out:
        click.echo(f"{status.left_out} more are not listed")
    kinds = "".join(f", {count} in {kind}" for kind, count in sorted(status.damage.items()))
    found = status.repaired + status.unrepaired
    click.echo(f"{_amount(status)} read: {found} damaged{kinds}; {status.repaired} repaired")
    if status.tidied:
        click.echo(f"removed {status.tidied} leftovers of crashes from the attachments")
    if status.unproven:
        click.echo(
            f"{status.unproven} could not be compared with the log: run `replicator checkpoint`, and check again"
        )
    if status.state != "done":
        echo_end(status)
    elif status.unrepaired and not status.repair:
        click.echo("run `replicator check --repair` to repair this from the log and from other nodes", err=True)
    elif status.unrepaired and status.task == "check":
        what = "run `replicator resync USER MAILBOX` to restore rows from a node that shows them"
        click.echo(f"{what}; if damage remains, run `replicator rebuild --from-peers`", err=True)


def _amount(status: CheckStatus) -> str:
    if status.task == "scrub":
        return f"{status.contents} bodies"
    return f"{status.mailboxes} mailboxes and trees, {status.rows} rows"


def findings_table(findings: Iterable[Finding]) -> Table:
    """Return a table of the findings and their repairs."""
    made = table("Damage", "table", "user", "folder…", ">UID", "damage…", "repair…")
    for one in findings:
        uid = "" if one.uid is None else str(one.uid)
        cells = (one.kind, one.user or "", one.folder or "", uid, one.what, one.done or LEFT_AS_IT_IS)
        made.add_row(*map(escape, cells))
        for other in one.also:
            made.add_row("", escape(other.user or ""), escape(other.folder), str(other.uid))
        if one.more:
            made.add_row("", "", f"{one.more} more")
    return made
