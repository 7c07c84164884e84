"""`replicator who`: shows the sessions of mail clients and MTAs at a node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.output import ago, console, counted, echo, echo_json, json_option, plain, table
from replicator.cli.target import node_options, one_node
from replicator.runtime.sessions import SessionStatus


@click.command()
@click.argument("user", required=False)
@click.option("--address", help="Only sessions from this IP address or network, such as 192.0.2.0/24.")
@node_options
@json_option
def who(user: str | None, address: str | None, config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Show the sessions at a node, or those of USER: IMAP clients, and MTAs that deliver by LMTP.

    The sessions of a user may be at several nodes; ask each. An MTA has no user, and an IMAP client before its login
    neither.
    """
    if user == "":
        raise click.UsageError("USER must not be empty")
    with NodeClient(one_node(config_file, url)) as client:
        found = client.sessions(user, address)
    if as_json:
        echo_json([asdict(session) for session in found])
    else:
        _echo(found)


def _echo(sessions: Sequence[SessionStatus]) -> None:
    """Print the sessions by user: those that have one first."""
    now_ms = time.time_ns() // 1_000_000
    made = table("Sessions", "session", "user…", "address", "protocol", "TLS", ">for", "does", "mailbox…", "process")
    for one in sorted(sessions, key=lambda one: (one.user is None, one.user or "", one.since_ms)):
        doing = one.doing or "-"
        made.add_row(
            one.id,
            plain((one.user or "-") + (f" by {one.master}" if one.master is not None else "")),
            one.address or "-",
            one.protocol,
            "yes" if one.tls else "no",
            ago(one.since_ms, now_ms),
            plain(f"{doing} {ago(one.doing_since_ms, now_ms)}"),
            plain(one.mailbox or "-"),
            one.process,
        )
    users = len({one.user for one in sessions} - {None})
    echo(console(), made, f"{counted(len(sessions), 'session')} of {counted(users, 'user')}")
