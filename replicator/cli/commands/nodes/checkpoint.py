"""`replicator checkpoint`: makes a node write checkpoints now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.output import echo_json, json_option, size
from replicator.cli.target import node_options, one_node
from replicator.status import CheckpointResult, NodeStatus


@click.command()
@node_options
@json_option
def checkpoint(config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Write checkpoints of all changed mailboxes and folder trees to `checkpoint.url`.

    A node also does so by itself: every hour in which anything changes (every quarter of `log.keep`, if that is
    sooner), and when its log has grown by a quarter of `log.max_size`. Once all nodes have confirmed that they show the
    state of the checkpoints, these are in force: the log entries before them are deleted. The node waits for nodes that
    are away until a limit of `[log]` is reached; only after that are new checkpoints written.
    """
    with NodeClient(one_node(config_file, url)) as client:
        result = client.checkpoint()
        if as_json:
            echo_json(asdict(result))
        else:
            _print(result, client)


def _print(result: CheckpointResult, client: NodeClient) -> None:
    amount = f"{result.saved} checkpoint{'' if result.saved == 1 else 's'}"
    if result.outcome == "running":
        click.echo(
            f"not finished yet: {amount} written so far, {size(result.saved_bytes)}; the node continues by itself"
        )
        return
    if result.made_ms is None:
        click.echo("nothing to write yet")
        return
    manifest = f"the manifest of {_moment(result.made_ms)}"
    lists = f"{result.mailboxes} mailboxes and trees"
    if result.outcome == "written":
        click.echo(f"{amount} written, {size(result.saved_bytes)}")
        click.echo(f"{manifest} lists {lists}")
    elif result.outcome == "unchanged":
        click.echo(f"nothing has changed since {manifest}, which lists {lists}")
    else:
        click.echo(f"nothing was written: {manifest}, which lists {lists}, is not in force yet")
        click.echo("later changes will be written once it is")
    if result.in_force:
        click.echo("it is in force: the log entries that it covers are deleted")
    else:
        for line in _waiting(result, result.made_ms, client.status()):
            click.echo(line)


def _waiting(result: CheckpointResult, made_ms: int, node: NodeStatus) -> Iterator[str]:
    """Yield what the manifest still needs to come into force. Reachable nodes may have it all but not said so yet."""
    away = [sid for sid in result.waits_for if sid not in node.component]
    if reached := [sid for sid in result.waits_for if sid not in away]:
        confirm = "confirms" if len(reached) == 1 else "confirm"
        said = f"{', '.join(reached)} {confirm} to show all of it; nodes do so every 10 seconds"
        yield f"log entries that it covers are kept until {said}"
    for sid in away:
        yield f"log entries that it covers are kept for {sid}, which {_since_when(sid, node)}"
    if away:
        keep = _moment(made_ms + round(node.log_keep_s * 1000))
        largest = f"or until the log exceeds {size(node.log_max_size_bytes)} (`log.max_size`)"
        yield f"they are kept until {keep} (`log.keep`), {largest}"
        yield "a node that comes back after that takes over what other nodes show"


def _since_when(sid: str, node: NodeStatus) -> str:
    link = next((link for link in node.links if link.peer == sid), None)
    if link is None:
        return f"is no [[peer]] of {node.sid} and cannot be reached"
    if link.since_ms is None or link.up:
        return f"has not been reached since {node.sid} was started at {_moment(node.started_ms)}"
    return f"has not been reached since {_moment(link.since_ms)}"


def _moment(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
