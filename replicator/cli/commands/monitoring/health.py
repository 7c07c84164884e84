"""`replicator health`: whether a node serves clients well, for scripts and for whatever watches a container."""

from __future__ import annotations

from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.output import echo_json, json_option
from replicator.cli.target import CommandError, NodeUrl, node_options, one_node
from replicator.cli.times import parse_duration
from replicator.cli.waiting import ask_until_good

ANSWER_S = 10.0  # a node tries its disk for five seconds before it calls it broken


@click.command()
@node_options
@click.option("--live", is_flag=True, help="Ask only whether the node's process answers.")
@click.option(
    "--wait",
    "wait_s",
    callback=parse_duration,
    metavar="DURATION",
    help="Ask again until the node is healthy, for at most this time, such as 10m.",
)
@json_option
def health(config_file: Path | None, url: str | None, wait_s: float | None, *, live: bool, as_json: bool) -> None:
    """Tell whether clients should be sent to the node: exit code 0, or 1 with the reasons.

    A node that has just started, and has yet to catch up with the others, is not healthy. With --live, exit code 0
    means that the process answers; a restart would not make a live node healthy. With --wait, the node need not run
    yet, and exit code 1 means that the time is over.
    """

    def ask() -> tuple[NodeUrl, list[str]]:
        node = one_node(config_file, url)
        with NodeClient(node, timeout_s=ANSWER_S) as client:
            if live:
                client.check_alive()
            return node, [] if live else client.reasons_of_ill_health()

    node, reasons = ask_until_good(ask, lambda answer: answer[1], wait_s)
    if as_json:
        echo_json({"live": True} if live else {"healthy": not reasons, "reasons": reasons})
        if reasons:
            raise click.exceptions.Exit(1)
    elif reasons:
        raise CommandError(f"{node.name}: {'; '.join(reasons)}")
    else:
        click.echo(f"{node.name} {'answers' if live else 'is healthy'}")
