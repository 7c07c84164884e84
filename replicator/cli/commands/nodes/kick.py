"""`replicator kick`: ends sessions of mail clients and MTAs at a node."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.output import echo_json, echo_lines, json_option
from replicator.cli.target import CommandError, node_options, one_node


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
    if user == "":
        raise click.UsageError("USER must not be empty")
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
