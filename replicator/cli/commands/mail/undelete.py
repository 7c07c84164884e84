"""`replicator undelete`: restores messages that were expunged from a folder."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from replicator.cli.api.client import UNDELETE
from replicator.cli.output import console, echo, echo_json, table
from replicator.cli.target import node_options, one_node
from replicator.cli.task_progress import echo_end, followed
from replicator.cli.times import local, parse_since
from replicator.tasks import Undeleted, UndeleteOptions, UndeleteStatus

BACK, WOULD_BE_BACK = "restored", "would be restored (dry run)"


@click.command()
@click.argument("user")
@click.argument("mailbox")
@click.option(
    "--since",
    metavar="WHEN",
    help="Only messages expunged since then: 3d, 2026-11-20, 2026-11-20T10:00. Default: all.",
)
@click.option("--dry-run", is_flag=True, help="Report what would be restored, and change nothing.")
@node_options
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def undelete(
    user: str,
    mailbox: str,
    since: str | None,
    config_file: Path | None,
    url: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Restore messages expunged from USER's MAILBOX, and from deleted folders of that name.

    A node keeps expunged mail for `content.keep_expunged`. Restored messages are new mail to clients, the oldest first,
    with their former flags and date; the folder is created if it no longer exists. Messages that the user still has, in
    this folder or another, are left out. An interrupt ends the command, and it can be run again. Exit code 0 if
    everything that the user lacks was restored, 1 otherwise.
    """
    if "" in {user, mailbox}:
        raise click.UsageError("USER and MAILBOX must not be empty")
    since_ms = None if since is None else parse_since(since, time.time())
    options = UndeleteOptions(user, mailbox, since_ms, dry_run)
    status = followed(one_node(config_file, url), UNDELETE, options, "Restoring")
    if as_json:
        echo_json(asdict(status))
    else:
        _print(status)
    if status.state != "done" or status.textless:
        raise click.exceptions.Exit(1)


def _print(status: UndeleteStatus) -> None:
    if status.messages:
        echo(console(), _table(status.messages, BACK if not status.dry_run else WOULD_BE_BACK))
    if status.left_out:
        click.echo(f"{status.left_out} more are not listed")
    if status.state == "done" or status.messages:
        if not status.messages:
            click.echo("nothing to restore: this node keeps no expunged mail of this folder and time")
            return
        verb = "would be restored" if status.dry_run else "restored"
        some = "1 message" if status.restored == 1 else f"{status.restored} messages"
        click.echo(f"{some} ({status.restored_bytes} bytes) {verb}; left out: {_left(status)}")
    if status.state != "done":
        echo_end(status)


def _left(status: UndeleteStatus) -> str:
    reasons = {
        "already in the folder": status.present,
        "in another folder": status.elsewhere,
        "whose body no reachable node has": status.textless,
    }
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count) or "none"


def _table(messages: Iterable[Undeleted], done: str) -> Table:
    made = table("Expunged mail", "expunged", "received", ">UID", ">bytes", "result…")
    for one in messages:
        times = (local(one.expunged_ms, "minutes"), local(one.received_ms, "minutes"))
        made.add_row(*times, str(one.uid), str(one.size_bytes), escape(one.why_not or done))
    return made
