"""`replicator penalty`: who is slowed down after failed log-ins at a running node, and how that ends."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from rich.markup import escape

from replicator.cli.api.client import NodeClient
from replicator.cli.group import HelpfulGroup
from replicator.cli.output import console, counted, echo, echo_json, json_option, table
from replicator.cli.target import node_options, one_node


@click.group(cls=HelpfulGroup)
def penalty() -> None:
    """Show who is slowed down after failed log-ins, and end that.

    Each node counts by itself what its clients do.
    """


@penalty.command("list")
@node_options
@json_option
def penalty_list(config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """List the users and addresses whose attempts wait now, or would after another failure.

    Of an IPv6 address, the /64 network is counted.
    """
    with NodeClient(one_node(config_file, url)) as client:
        found = client.penalties()
    if as_json:
        echo_json([asdict(one) for one in found])
        return
    made = table("Penalties", "user", "address", ">failures", ">waits", ">forgotten in")
    for one in sorted(found, key=lambda each: (-each.waits_s, each.user or "", each.address or "")):
        address = "any" if one.address is None else escape(one.address) or "this machine"
        waits, forgotten = f"{one.waits_s:.1f} s", f"{one.forgotten_s:.0f} s"
        made.add_row(escape(one.user or "any"), address, str(one.failures), waits, forgotten)
    echo(console(), made)


@penalty.command("clear")
@click.argument("of", metavar="[ADDRESS|USER]", required=False)
@node_options
@json_option
def penalty_clear(of: str | None, config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Forget the failed log-ins of a user or an address, or without either, of everybody.

    Attempts that wait already wait to their end, 8 seconds at most.
    """
    with NodeClient(one_node(config_file, url)) as client:
        ended = client.forgive(of)
    if as_json:
        echo_json({"ended": ended})
        return
    click.echo(counted(ended, "penalty", "penalties") + " ended")
