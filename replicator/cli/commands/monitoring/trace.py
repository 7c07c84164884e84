"""`replicator trace`: shows the commands between a node and its peers, as they are sent and received."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

import click
from rich.cells import cell_len, set_cell_size

from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import UnreachableError
from replicator.cli.output import FOLDS, counted, json_option, printable, size
from replicator.cli.target import CommandError, node_options, one_node
from replicator.cli.times import time_of_day
from replicator.tracing.traced import (
    EVENTS,
    LeftOut,
    LinkEnded,
    TracedCommand,
    TracedPlace,
    TraceEnded,
    TraceEvent,
    document_of,
)
from replicator.tracing.words import word

ID_CHARS = 8  # of the id of a mailbox that has no name here

_NAMES = {kind: name for name, kind in EVENTS.items()}


@click.command()
@click.argument("peer", required=False)
@click.option("--command", "commands", metavar="NAME,...", help="Only these commands, and the replies to them.")
@click.option("--user", help="Only commands about mailboxes of this user.")
@click.option("--mailbox", help="Only commands about folders that have this name when they are shown.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), metavar="N", help="End after so many seconds.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after so many commands.")
@node_options
@json_option
def trace(
    peer: str | None,
    config_file: Path | None,
    url: str | None,
    *,
    commands: str | None,
    user: str | None,
    mailbox: str | None,
    seconds: float | None,
    count: int | None,
    as_json: bool,
) -> None:
    """Show the commands between a node and its peers, or PEER, as they are sent (->) and received (<-), until Ctrl-C.

    Each line has the time, the peer, the command, the size before compression, the mailboxes, the entries in brackets,
    the tag, and the other values. Neither mail nor secrets are shown: a literal is {OCTETS MARK}, and equal ones have
    the same mark during the trace. On a terminal, lines are cut to its width. With --json, each event is a line. A node
    that is busier than the terminal is fast leaves commands out, and tells how many.
    """
    listener = _Listener(count, seconds, as_json=as_json)
    try:
        with (
            NodeClient(one_node(config_file, url)) as client,
            closing(client.trace(peer, commands, user, mailbox)) as events,
        ):
            listener.listen(events)
    except KeyboardInterrupt:
        pass
    except UnreachableError as error:
        if not listener.has_begun:
            raise
        listener.sum_up()
        told = "the trace was broken off: the node has stopped, or the connection to it has failed"
        raise CommandError(told) from error
    listener.sum_up()


class _Listener:
    """The listener at the terminal."""

    def __init__(self, count: int | None, seconds: float | None, *, as_json: bool) -> None:
        self.has_begun = False
        self._count = count
        self._seconds = seconds
        self._as_json = as_json
        self._shown = self._left_out = 0

    def listen(self, events: Iterator[TraceEvent | None]) -> None:
        """Show the events until the end of the trace, or of what was asked for."""
        ends_at = None if self._seconds is None else time.monotonic() + self._seconds
        for event in events:
            if not self.has_begun:
                self.has_begun = True
                click.echo("tracing; Ctrl-C ends it", err=True)
            if event is not None:
                self._show(event)
            if self._shown == self._count or (ends_at is not None and time.monotonic() >= ends_at):
                return

    def sum_up(self) -> None:
        """Tell how many commands were shown and left out."""
        if self.has_begun:
            left_out = f", {self._left_out} left out" if self._left_out else ""
            click.echo(f"{counted(self._shown, 'command')}{left_out}", err=True)

    def _show(self, event: TraceEvent) -> None:
        if isinstance(event, TracedCommand):
            self._shown += 1
        elif isinstance(event, LeftOut):
            self._left_out += event.commands
        if self._as_json:
            click.echo(json.dumps({"event": _NAMES[type(event)], **document_of(event)}))
        else:
            click.echo(_fitting(printable(line_of(event))))


def line_of(event: TraceEvent) -> str:
    """Return an event as a line for people. Others have chosen parts of it."""
    match event:
        case TracedCommand():
            return _command(event)
        case LeftOut(commands):
            return f"--- {counted(commands, 'command')} left out"
        case LinkEnded(time_ms, peer):
            return f"{time_of_day(time_ms)} --- the link to {peer} has ended"
        case TraceEnded(why):
            return f"--- {why}"


def _command(one: TracedCommand) -> str:
    answers = f"({one.answers}, {one.took_ms:.1f} ms)" if one.answers and one.took_ms is not None else ""
    parts = (
        time_of_day(one.time_ms),
        "->" if one.sent else "<-",
        one.peer,
        f"{one.command:<8}",
        size(one.size_bytes),
        ", ".join(map(_place, one.places)),
        _entries(one.entries),
        one.tag or "",
        answers,
        one.detail,
    )
    return " ".join(filter(None, parts))


def _place(place: TracedPlace) -> str:
    user = word(place.user, without="/,")
    if place.is_tree:
        return f"{user} (folders)"
    folder = f"#{place.mailbox_id[:ID_CHARS]}" if place.mailbox is None else word(place.mailbox, without="#,")
    return f"{user}/{folder}"


def _entries(names: Sequence[str]) -> str:
    """Return the entries in brackets, such as `[dc1.k3f 17-21]`."""
    split = [(origin, int(seq)) for origin, _, seq in (name.rpartition(" ") for name in names)]
    runs = list[tuple[str, int, int]]()
    for (origin, _), run in groupby(enumerate(split), lambda one: (one[1][0], one[1][1] - one[0])):
        seqs = [seq for _, (_, seq) in run]
        runs.append((origin, seqs[0], seqs[-1]))
    told = [f"{origin} {first}" + (f"-{last}" if last > first else "") for origin, first, last in runs]
    return f"[{', '.join(told)}]" if told else ""


def _fitting(line: str) -> str:
    """Return the line, cut to the width of the terminal if it goes to one."""
    if not sys.stdout.isatty():
        return line
    columns = shutil.get_terminal_size().columns
    return line if cell_len(line) <= columns else set_cell_size(line, columns - 1) + FOLDS
