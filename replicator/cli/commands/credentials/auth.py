"""`replicator auth`: tries a log-in at a running node, and says why it would fail."""

from __future__ import annotations

import sys
from dataclasses import asdict
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.commands.credentials.passwords import first_line
from replicator.cli.group import HelpfulGroup
from replicator.cli.output import echo_json, json_option
from replicator.cli.target import node_options, one_node
from replicator.users import Trial


@click.group(cls=HelpfulGroup)
def auth() -> None:
    """Try log-ins."""


@auth.command("test")
@click.argument("name")
@click.option("--password-stdin", "from_stdin", is_flag=True, help="Do not ask: read the first line of standard input.")
@click.option("--address", type=ip_address, metavar="IP", help="The client's IP address, for users with `allow_nets`.")
@node_options
@json_option
def auth_test(
    name: str,
    address: IPv4Address | IPv6Address | None,
    config_file: Path | None,
    url: str | None,
    *,
    from_stdin: bool,
    as_json: bool,
) -> None:
    """Say whether NAME, a user's name or address, may log in with a password now, and if not, why.

    The command asks for the password; without a terminal, it reads the first line of standard input. The node counts
    it as nobody's attempt, and logs nothing. Exit code 1: a client would not get in.
    """
    if not name:
        raise click.UsageError("NAME must not be empty")
    node = one_node(config_file, url)
    asks = sys.stdin.isatty() and not from_stdin
    password = str(click.prompt("Password", hide_input=True, err=True)) if asks else first_line()
    with NodeClient(node) as client:
        trial = client.try_login(name, password, None if address is None else str(address))
    if as_json:
        echo_json(asdict(trial))
    else:
        _tell(name, trial)
    if trial.reasons:
        sys.exit(1)


def _tell(name: str, trial: Trial) -> None:
    if not trial.reasons:
        only = "" if trial.only_from is None else f", from {', '.join(trial.only_from)} only"
        by = "" if trial.master is None else f" by the master user {trial.master}"
        click.echo(f"{name} may log in" + (f", as {trial.user}" if trial.user != name else "") + by + only)
    for reason in trial.reasons:
        click.echo(f"{name} may not log in: {reason.text}")
    if trial.origin is not None:
        click.echo(f"{trial.user} comes from {trial.origin}" + ("" if trial.answer is None else f"; {trial.answer}"))
    if trial.slowed:
        where = ", ".join(address or "this machine" for address in trial.slowed)
        click.echo(f"After failed attempts, others wait for {trial.waits_s:.1f} s more at the most, from: {where}")
        click.echo("`replicator penalty list` shows who waits, and `replicator penalty clear` ends it")
