"""`replicator drain`: sends clients to other nodes before a node is stopped, and tells when it can be."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.output import counted, echo_json, json_option, listed
from replicator.cli.target import node_options, one_node
from replicator.cli.times import parse_duration
from replicator.status import LinkStatus, NodeStatus

LOOK_EVERY_S = 2.0
EVERYWHERE = ("0.0.0.0/0", "::/0")


@click.command()
@click.option("--undo", is_flag=True, help="End the drain: the node is healthy again.")
@click.option("--no-wait", is_flag=True, help="Begin, and do not wait until the node can be stopped.")
@click.option(
    "--kick-after",
    "kick_after_s",
    callback=parse_duration,
    metavar="DURATION",
    help="End the sessions that are left after this time, such as 10m.",
)
@node_options
@json_option
def drain(
    kick_after_s: float | None, config_file: Path | None, url: str | None, *, undo: bool, no_wait: bool, as_json: bool
) -> None:
    """Send new clients to other nodes, and wait until the node can be stopped.

    The node calls itself unhealthy (`replicator health`, /healthz), so that balancers choose other nodes for new
    clients. It goes on serving whoever is connected, and whoever comes all the same. The command waits until all
    sessions have ended, and until the nodes that are linked have all entries that this one had when no session was
    left; a busy node always gets more from the others. An interrupt ends the wait, not the drain; a restart of the node
    ends it, and so does --undo.
    """
    if (undo or no_wait) and (kick_after_s is not None or (undo and no_wait)):
        raise click.UsageError("--undo, --no-wait and --kick-after exclude each other")
    node = one_node(config_file, url)
    with NodeClient(node) as client:
        state = client.undo_drain() if undo else client.drain()
        if not as_json:
            click.echo(
                f"{node.name} takes new clients again"
                if undo
                else f"{node.name} calls itself unhealthy, so that balancers send new clients to other nodes"
            )
        if not undo and not no_wait:
            for line in waited(client, kick_after_s):
                if not as_json:
                    click.echo(line)
    if as_json:
        echo_json(asdict(state))


def waited(client: NodeClient, kick_after_s: float | None = None, most_s: float = math.inf) -> Iterator[str]:
    """Yield what the node still waits for, as it changes, and in the end that it can be stopped.

    The linked nodes must have what the log had when no session was left: a busy node always gets more from its peers.
    After `most_s` seconds it waits no longer.
    """
    told, began, is_kicked = "", time.monotonic(), False
    end: int | None = None  # of the log, when no session was left
    while True:
        sessions = client.sessions(None, None)
        if sessions and kick_after_s is not None and not is_kicked and time.monotonic() - began >= kick_after_s:
            is_kicked = True
            yield f"ended {counted(_end_all(client), 'session')}"
            continue
        status = client.status()
        if sessions:
            end = None  # they may still change something
        elif end is None:
            end = status.log_end
        waits = [counted(len(sessions), "session")] if sessions else []
        waits += _behind(status, status.log_end if end is None else end)
        if not waits:
            yield f"{status.sid} can be stopped{_away(status)}"
            return
        if (now := f"waiting for {listed(waits)}") != told:
            told = now
            yield told
        left_s = began + most_s - time.monotonic()
        if left_s <= 0:
            yield f"{most_s:g} s are over"
            return
        time.sleep(min(LOOK_EVERY_S, left_s))


def _end_all(client: NodeClient) -> int:
    """End all sessions; return how many there were. Those without an address are on this machine."""
    ended = sum(len(client.end_sessions(None, address, None)) for address in EVERYWHERE)
    return ended + sum(len(client.end_sessions(None, None, one.id)) for one in client.sessions(None, None))


def _behind(status: NodeStatus, end: int) -> list[str]:
    """Return which linked nodes lack entries up to this end; if none is linked, and there are peers, say that."""
    if status.links and not any(link.up for link in status.links):
        return ["a link to any other node"]
    lagging = [link for link in status.links if link.up and link.lag_entries != 0 and not _has(link, end)]
    return [f"{link.peer}, which lacks {_entries(link.lag_entries)}" for link in lagging]


def _has(link: LinkStatus, end: int) -> bool:
    return link.has_until is not None and link.has_until >= end


def _entries(number: int | None) -> str:
    return "an unknown number of entries" if number is None else counted(number, "entry", "entries")


def _away(status: NodeStatus) -> str:
    away = [link.peer for link in status.links if not link.up]
    return f"; not linked now, and to be brought up to date later: {', '.join(away)}" if away else ""
