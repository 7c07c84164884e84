"""The audit as a command, `replicator diff`.

It imports pyspark only when called, because the import is slow and pyspark may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

import click
from rich.console import Console

from spark.job.resources import Resources
from spark.report.markup import moment
from spark.report.summary import Summary

MEMORY = re.compile(r"[1-9]\d{0,5}[mMgG]")
MEMORY_MIN_MIB = 512  # Spark does not start with less

INSTALL = "pyspark is not installed here; run `pip install 'mail-replicator[spark]'`, and install Java"


class JobFailedError(click.ClickException):
    """A job failed: exit code 1."""


def _memory(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Check an amount of memory. Raises click.BadParameter."""
    if value is None:
        return None
    if not MEMORY.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not an amount of memory; write it like 4g or 900m")
    if int(value[:-1]) << (10 if value[-1] in "gG" else 0) < MEMORY_MIN_MIB:
        raise click.BadParameter(f"{value} is too little for Spark; give it at least {MEMORY_MIN_MIB}m")
    return value


def _conf(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse Spark settings. Raises click.BadParameter."""
    found = {}
    for setting in values:
        key, equals, value = setting.partition("=")
        if not (equals and key.startswith("spark.") and key.strip() == key):
            raise click.BadParameter(f"{setting!r} is not a setting; write it like spark.executor.memory=4g")
        found[key] = value
    return found


def spark_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every Spark job: the inventories, and the resources to run on."""
    for option in (
        click.option(
            "--conf", metavar="KEY=VALUE", multiple=True, callback=_conf, help="A setting of Spark itself, spark.*."
        ),
        click.option(
            "--scratch",
            type=click.Path(exists=True, file_okay=False),
            metavar="DIR",
            help="Directory for data that does not fit into memory; by default the system's.",
        ),
        click.option(
            "--memory",
            metavar="4g",
            callback=_memory,
            help="Memory of Spark on this machine; by default half of all, at most 8g.",
        ),
        click.option(
            "--master", metavar="URL", help="URL of a Spark cluster; by default Spark uses all cores of this machine."
        ),
        click.option(
            "--inventory",
            "given",
            metavar="NODE=PLACE",
            multiple=True,
            help="The inventory of a node; give one for each.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@spark_options
@click.option("--out", required=True, metavar="DIR", help="Directory for the plan, summary.json and report.html.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier audit at --out.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def diff(
    *,
    given: tuple[str, ...],
    out: str,
    master: str | None,
    memory: str | None,
    scratch: str | None,
    conf: dict[str, str],
    overwrite: bool,
    as_json: bool,
) -> None:
    """Compare whole nodes by their inventories, on Spark; write a plan for `replicator apply`, and a report.

    PLACE and DIR are directories, or other places that Spark can reach, such as s3a://bucket/prefix; all workers of a
    cluster must reach them. No node is contacted or changed. Inventories of a cluster in use are not of one moment, so
    changes that were still on their way also count as differences; `apply` will find those equal. Exit code 0 if all
    nodes show the same, 1 otherwise.
    """
    check_given(given, 2)
    check_installed()
    from spark.job.jobs import JobError, run_audit  # noqa: PLC0415  needs pyspark

    try:
        with told() as tell:
            found = run_audit(given, out, Resources(master, memory, scratch, conf), overwrite=overwrite, tell=tell)
    except JobError as error:
        raise JobFailedError(str(error)) from error
    if as_json:
        click.echo(found.to_json(), nl=False)
    else:
        _print(found, out)
    if not found.is_clean:
        raise click.exceptions.Exit(1)


def check_given(given: tuple[str, ...], least: int) -> None:
    """Raise click.UsageError unless at least `least` inventories are named correctly, each node once."""
    nodes = [node for node, equals, place in (one.partition("=") for one in given) if node and equals and place]
    if len(nodes) < max(least, len(given)):
        raise click.UsageError(f"give --inventory NODE=PLACE, such as dc1=/srv/inventories/dc1, at least {least} times")
    if twice := [node for node in nodes if nodes.count(node) > 1]:
        raise click.UsageError(f"{twice[0]} is given twice; give one inventory for each node")


def check_installed() -> None:
    """Raise JobFailedError if pyspark is missing."""
    if find_spec("pyspark") is None:
        raise JobFailedError(INSTALL)


@contextmanager
def told() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step on standard error.

    The line disappears at the end; if standard error is no terminal, nothing is shown.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield lambda what: status.update(f"{what} ...")


def _print(found: Summary, out: str) -> None:
    for kind, relations in (("mailboxes", found.relations), ("folder trees", found.trees)):
        click.echo(f"{sum(relations.values()):,} {kind}{_after_colon(relations)}")
    click.echo(f"{found.differing:,} messages differ{_after_colon(found.kinds)}")
    for node in found.nodes:
        wrong = f"; its index is wrong: {_listed(node.index)}" if node.index else ""
        unread = f"; {node.unreadable:,} rows are not in its inventory" if node.unreadable else ""
        shown = f"{node.mailboxes:,} mailboxes, {node.behind:,} of them behind; {node.messages:,} messages"
        lacking = f"{node.missing:,} missing, {node.expunged:,} expunged"
        click.echo(f"{node.node}, at {moment(node.taken_ms)}: {shown}, {lacking}{wrong}{unread}")
    if damaged := sum(relations.get("damaged", 0) for relations in (found.relations, found.trees)):
        click.echo(f"{damaged:,} damaged: run `replicator check --repair` at their nodes, and audit again")
    masters = f" (by master: {_listed(found.plan)})" if found.plan else ""
    click.echo(f"{sum(found.plan.values()):,} for `replicator apply`{masters}; {out.rstrip('/')}/report.html")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)


def _after_colon(counts: Mapping[str, int]) -> str:
    listed = _listed(counts)
    return f": {listed}" if listed else ""
