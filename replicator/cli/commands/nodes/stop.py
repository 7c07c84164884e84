"""`replicator stop`: ends a node in order, and tells when it is gone.

On the node's machine the command watches the node's process, which it knows by the node's own socket. From elsewhere it
sees no more than that nobody answers at the node's address. In neither case does it learn whether the process has ended
in order, or was killed meanwhile: it is not its parent.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import RefusedError, UnreachableError
from replicator.cli.commands.nodes.drain import waited
from replicator.cli.output import counted, echo_json, json_option, listed
from replicator.cli.target import CommandError, NodeUrl, node_options, one_node

LOOK_EVERY_S = 0.2
ANSWER_S = 3.0
STOP_S = 150.0
"""Seconds until the command gives up: longer than a service manager waits by our unit (TimeoutStopSec)."""

ANEW_S = 20.0
"""Seconds within which a service manager starts a node anew: our unit waits for 5 (RestartSec) before it does."""

GONE = ""
"""The origin of no process."""

Sight: TypeAlias = Literal["same", "none", "other"]
"""The process that answers for the node: the one that was to end, none, or another one."""


@dataclass(slots=True)
class StopReport:
    """The end of a node. `sessions` (None: not known) end with it; `behind`: nodes that lack some of its entries then.

    `managed`: systemd has started it, with a socket for notices (NOTIFY_SOCKET); other supervisors cannot be told.
    `seen`: the process has ended, in order or not; False: it is known only that nobody answers. `took_s`: from the
    request on.
    """

    node: str
    sessions: int | None = None
    behind: list[str] = field(default_factory=list)
    managed: bool = False
    seen: bool = False
    started_anew: bool = False
    took_s: float = 0.0


@click.command()
@click.option(
    "--drain",
    "drain_s",
    type=click.FloatRange(0, 86_400),
    metavar="SECONDS",
    help="First send new clients to other nodes, and wait so long at most until the present ones have gone.",
)
@node_options
@json_option
def stop(drain_s: float | None, config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """End the node in order, as SIGTERM does, and wait until it is gone.

    What is being written is finished, clients are told to connect again, and other nodes become masters. With --drain
    the node calls itself unhealthy first, as by `replicator drain`, so that balancers choose other nodes. If systemd
    has started the node (Type=notify, as our unit does) and starts it anew, the command says so, and the exit code is
    1: use `systemctl stop` there. It does not look for other supervisors, such as containers with a restart policy:
    stop the node by these. It does not tell an orderly end from a kill in between: whoever has started the node learns
    that by its exit code. An interrupt ends the command, not what it has begun.
    """

    def say(line: str) -> None:
        if not as_json:
            click.echo(line)

    node = one_node(config_file, url)
    with NodeClient(node) as client, _process_of(node) as process:
        if drain_s is not None:
            client.drain()
            say(f"{node.name} calls itself unhealthy, so that balancers send new clients to other nodes")
            for line in waited(client, most_s=drain_s):
                say(line)
        report, origin = _before(node)
        began = time.monotonic()
        report.managed = client.stop()
        client.close()
        say(f"{node.name} is stopping{_at_the_end(report)}")
        _wait(node, origin, process, report)
        report.took_s = round(time.monotonic() - began, 3)
    gone = "has ended" if report.seen else "answers no more (from here, its process cannot be seen to end)"
    say(f"{node.name} {gone}, after {report.took_s:.1f} s")
    if report.managed and not report.started_anew:
        say(f"a service manager has started it, and may start it anew: looking for {ANEW_S:g} s")
        report.started_anew = is_started_anew(node)
    if as_json:
        echo_json(asdict(report))
    if report.started_anew:
        who = "its service manager" if report.managed else "somebody"
        raise CommandError(
            f"{node.name}: {who} has started the node anew; to keep it stopped, stop it there, such as by `systemctl"
            f" stop mail-replicator@{report.node}`"
        )


def _before(node: NodeUrl) -> tuple[StopReport, str | None]:
    """Return what ends with the node, and its origin, as far as it tells: a node in trouble is stopped all the same."""
    report, origin = StopReport(node.name), None
    with suppress(UnreachableError, RefusedError), NodeClient(node, timeout_s=ANSWER_S) as client:
        status = client.status()
        report.node, origin = status.sid, status.origin
        report.behind = [link.peer for link in status.links if link.lag_entries != 0]
        report.sessions = len(client.sessions(None, None))
    return report, origin


def _at_the_end(report: StopReport) -> str:
    """Return what ends with the node, and who gets its entries later."""
    told = ""
    if report.sessions:
        told += f"; {counted(report.sessions, 'session ends', 'sessions end')}"
    if report.behind:
        told += f"; nodes that lack some of its entries, and get them later: {listed(report.behind)}"
    return told


@contextmanager
def _process_of(node: NodeUrl) -> Iterator[int | None]:
    """Open the process that listens at the node's own socket, by a descriptor (pidfd_open(2)).

    None: the command does not go through that socket, or the process is in another namespace.
    """
    opened = None
    if node.socket is not None:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.connect(str(node.socket))
            size = struct.calcsize("3i")
            pid, _, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            opened = os.pidfd_open(pid)
    try:
        yield opened
    finally:
        if opened is not None:
            os.close(opened)


def _wait(node: NodeUrl, origin: str | None, process: int | None, report: StopReport) -> None:
    """Return once the node's process is gone. Raises CommandError if it stays."""
    until = time.monotonic() + STOP_S
    if process is not None:
        report.seen = bool(select.select([process], [], [], STOP_S)[0])  # readable once the process has ended
        if report.seen:
            return
    while process is None and time.monotonic() < until:
        sight = _sight(node, origin)
        if sight != "same":
            report.started_anew = sight == "other"
            return
        time.sleep(LOOK_EVERY_S)
    raise CommandError(f"{node.name} still runs after {STOP_S:g} s; its log may say why")


def is_started_anew(node: NodeUrl) -> bool:
    """Return True as soon as a process serves in place of one that is gone, False if none does for `ANEW_S`."""
    until = time.monotonic() + ANEW_S
    while time.monotonic() < until:
        if _sight(node, GONE) == "other":
            return True
        time.sleep(LOOK_EVERY_S)
    return False


def _sight(node: NodeUrl, origin: str | None) -> Sight:
    """Return who answers. Without an origin to tell it by, another process is taken for the same.

    A refusal, or silence at a connection, is an answer, too: nodes give both while they start.
    """
    unknown: Sight = "other" if origin == GONE else "same"
    try:
        with NodeClient(node, timeout_s=ANSWER_S) as client:
            return "same" if origin in {None, client.status().origin} else "other"
    except UnreachableError as error:
        is_silent = isinstance(error.__cause__, TimeoutError)
        return unknown if is_silent and (error.is_connected or origin != GONE) else "none"
    except RefusedError:
        return unknown
