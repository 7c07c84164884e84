"""`replicator resync`: compares mailboxes with other nodes and makes them equal, on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from replicator.cli.api.client import RESYNC
from replicator.cli.output import console, echo, echo_json, table
from replicator.cli.target import node_options, one_node
from replicator.cli.task_progress import echo_end, followed
from replicator.tasks import RATE_MAX, Difference, ResyncOptions, ResyncStatus

TREE = "(folder tree)"
NOTHING = "unchanged (dry run)"

_WORDS = {
    "missing_here": "missing here", "missing_there": "missing there",
    "expunged_here": "expunged here", "expunged_there": "expunged there",
    "uid_conflict": "UID conflict", "modseq": "MODSEQ", "context": "same mail, different history",
}  # fmt: skip


@click.command()
@click.argument("user", required=False)
@click.argument("mailbox", required=False)
@click.option("--user", "whole_user", metavar="USER", help="Compare all folders of a user.")
@click.option("--all", "everything", is_flag=True, help="Compare all folders of all users.")
@click.option("--peer", metavar="NODE", help="Compare with this node only; default: all reachable nodes.")
@click.option("--dry-run", is_flag=True, help="Report differences, and change nothing.")
@click.option("--rate", type=click.IntRange(1, RATE_MAX), help="Maximum number of rows per second; default: no limit.")
@node_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def resync(
    *,
    user: str | None,
    mailbox: str | None,
    whole_user: str | None,
    peer: str | None,
    rate: int | None,
    config_file: Path | None,
    url: str | None,
    everything: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Compare USER's MAILBOX at a node with other nodes, and make equal what differs.

    The user's folder tree is compared as well. Nodes do the same by themselves; this command does it now, and reports
    the differences and the repairs. Rows that were damaged here are restored from a node that shows them; other damage
    is reported and left alone. With --all, digests are compared, and rows only where digests differ; to find rows that
    do not match their digest, run `replicator check`. An interrupt ends the command. Exit code 0 if all nodes were
    compared and nothing differs in the end, 1 otherwise.
    """
    if [user is not None, whole_user is not None, everything].count(True) != 1 or (user is None) != (mailbox is None):
        raise click.UsageError("name what to compare: USER MAILBOX, or --user USER, or --all")
    if "" in {user, mailbox, whole_user, peer}:
        raise click.UsageError("names of users, mailboxes and nodes must not be empty")
    options = ResyncOptions(whole_user if user is None else user, mailbox, peer, dry_run, rate)
    status = followed(one_node(config_file, url), RESYNC, options, "Comparing")
    if as_json:
        echo_json(asdict(status))
    else:
        _print(status)
    if status.state != "done" or status.unmended:
        raise click.exceptions.Exit(1)


def _print(status: ResyncStatus) -> None:
    if status.differences:
        echo(console(), _differences_table(status.differences))
    if status.left_out:
        click.echo(f"{status.left_out} more are not listed")
    if status.peers and (status.state != "failed" or status.differences):
        some = f"{status.done} mailboxes and trees, {status.rows} rows"
        if status.state == "cancelled":
            some = f"{status.done} of {status.total} mailboxes and trees"
        elif status.user is None:
            some = "The digests of all mailboxes and trees"
        click.echo(f"{some} compared with {', '.join(status.peers)}: {_amounts(status)}")
    if status.state != "done":
        echo_end(status)


def _amounts(status: ResyncStatus) -> str:
    failed = sum(one.user is None for one in status.differences)  # whole nodes: the table says why
    count = status.mended + status.unmended - failed
    comparisons = f"; {failed} node{'s' if failed > 1 else ''} could not be compared" if failed else ""
    if not count:
        return f"nothing differs{comparisons}"
    kinds = f" ({_in_words(status.differed)})" if status.differed else ""
    return f"{count} differ{'s' if count == 1 else ''}{kinds}; {status.mended} equal now{comparisons}"


def _in_words(differed: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {_WORDS.get(kind, kind)}" for kind, count in differed.items())


def _differences_table(differences: Iterable[Difference]) -> Table:
    made = table("Differences", "with", "user", "folder…", "differed…", "result…")
    for one in differences:
        folder = one.folder or (TREE if one.user is not None else "")
        done = one.done or one.why_not or NOTHING
        made.add_row(*map(escape, (one.peer, one.user or "", folder, _in_words(one.differed), done)))
    return made
