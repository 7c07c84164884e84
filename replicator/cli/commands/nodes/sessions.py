"""`replicator who` and `replicator kick`: show and end the sessions of mail clients and MTAs at a node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.output import ago, console, counted, echo, echo_json, echo_lines, json_option, plain, table
from replicator.cli.target import CommandError, node_options, one_node
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
    _check_user(user)
    with NodeClient(one_node(config_file, url)) as client:
        found = client.sessions(user, address)
    if as_json:
        echo_json([asdict(session) for session in found])
    else:
        _echo(found)


@click.command()
@click.argument("user", required=False)
@click.option("--address", help="Only sessions from this IP address or network, such as 192.0.2.0/24.")
@click.option("--session", help="Only the session with this id, as `replicator who` shows it.")
@node_options
@json_option
def kick(
    user: str | None,
    address: str | None,
    session: str | None,
    config_file: Path | None,
    url: str | None,
    *,
    as_json: bool,
) -> None:
    """End sessions at a node: all of USER, or those with this address or id; with more than one of these, what has all.

    IMAP clients are told BYE at once, MTAs 421 after the message that they are sending. Whoever is ended may connect
    again: `replicator user disable` keeps a user out. The command fails if there is no such session.
    """
    _check_user(user)
    if user is None and address is None and session is None:
        raise click.UsageError("name whose sessions to end: USER, --address or --session")
    with NodeClient(one_node(config_file, url)) as client:
        ended = client.end_sessions(user, address, session)
    if not ended:
        raise CommandError("there is no such session at this node; `replicator who` shows all")
    if as_json:
        echo_json([asdict(one) for one in ended])
        return
    echo_lines(
        f"ended {one.id}: {one.protocol} of {one.user or 'nobody'} from {one.address or 'this machine'}"
        for one in ended
    )


def _check_user(user: str | None) -> None:
    if user == "":
        raise click.UsageError("USER must not be empty")


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
