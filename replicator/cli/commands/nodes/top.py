"""`replicator top`: shows again and again what a node does: its pace, its peers, its processes, who keeps it busy.

All comes from figures that a node has anyway: `/metrics`, its status, and the register of sessions. Rates are those
between two looks. The register is asked for at most 1/`REST` of the time: with tens of thousands of sessions, telling
them holds the node's event loop for a noticeable part of a second.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path

import click
from prometheus_client.parser import text_string_to_metric_families
from rich.console import RenderableType
from rich.table import Table

from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import RefusedError, UnreachableError
from replicator.cli.output import begin_screen, console, counted, echo, json_option, plain, size, table
from replicator.cli.target import NodeUrl, node_options, one_node
from replicator.runtime.sessions import SessionStatus
from replicator.status import NodeStatus

ROWS = 10  # users and commands that are shown
REST = 20
ANSWER_S = 10.0
WAITING = frozenset({"IDLE"})
"""Commands that do nothing until something happens."""

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PeerPace:
    """The traffic with a peer. Entries are changes: each brings one mail, or many. Lag: see `LinkStatus`."""

    peer: str
    up: bool
    sent_entries_s: float
    sent_bytes_s: float
    received_entries_s: float
    received_bytes_s: float
    lag_entries: int | None
    lag_s: float | None


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What the core, or a door's process, uses of the machine. `processors`: 1.0 is one of them all the time."""

    process: str
    processors: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class UserLoad:
    """The sessions of a user, and how many of them run a command."""

    user: str
    sessions: int
    running: int


@dataclass(frozen=True, slots=True)
class Running:
    """A command that runs, and since when."""

    session: str
    user: str | None
    protocol: str
    process: str
    command: str
    mailbox: str | None
    for_s: float


@dataclass(frozen=True, slots=True)
class TopView:
    """A node as it was during the last `seconds`, up to `clock_ms`.

    `logins_s`: successful ones; `messages_s`: mails that appeared in its mailboxes; `delivered_s`: by LMTP, by
    recipient; `stalled`: the part of the time in which steps of 5 ms and more held the event loop. `sessions_ms`: when
    the sessions were looked at.
    """

    node: str
    clock_ms: int
    seconds: float
    connections: int
    logged_in: int
    logins_s: float
    commands_s: float
    by_command: Mapping[str, float]
    messages_s: float
    delivered_s: float
    commits_s: float
    stalled: float
    waiting_entries: int
    peers: tuple[PeerPace, ...]
    processes: tuple[ProcessUse, ...]
    sessions: int
    sessions_ms: int
    users: tuple[UserLoad, ...]
    running: tuple[Running, ...]


@click.command()
@click.option(
    "--seconds",
    "every_s",
    type=click.FloatRange(0.5, 3600),
    default=2.0,
    show_default=True,
    help="Time between two looks.",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many looks; otherwise at Ctrl-C.")
@node_options
@json_option
def top(config_file: Path | None, url: str | None, *, every_s: float, count: int | None, as_json: bool) -> None:
    """Show what a node does now, again and again: sessions, commands, mail, peers, processes, users.

    With --json each look is a line. Exit code 1 if the last look has failed.
    """
    node = one_node(config_file, url)
    looks, failed = 0, False
    with suppress(KeyboardInterrupt), NodeClient(node, timeout_s=ANSWER_S) as client:
        watch = Watch(client)
        watch.look()  # raises if the node cannot be asked at all
        while count is None or looks < count:
            time.sleep(every_s)
            looks, failed = looks + 1, not _show(node, watch, as_json=as_json)
    if failed:
        raise click.exceptions.Exit(1)


def _show(node: NodeUrl, watch: Watch, *, as_json: bool) -> bool:
    """Look, and show what there is; return False if the node cannot be asked."""
    try:
        view = watch.look()
    except (UnreachableError, RefusedError) as error:
        if not as_json:
            begin_screen()
        click.echo(f"Error: {error.message}", err=True)
        return False
    if view is not None and as_json:
        click.echo(json.dumps(asdict(view)))
    elif view is not None:
        begin_screen()
        echo(console(), *_parts(view))
    else:
        click.echo(f"{node.name} has been started anew", err=True)
    return True


class Figures:
    """The figures of `/metrics` at one moment."""

    def __init__(self, text: str) -> None:
        """`text`: in Prometheus's format. Raises ValueError."""
        self._values: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._values.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of the values that have these labels; 0 if there are none."""
        return sum(value for found, value in self._of(name) if labels.items() <= dict(found).items())

    def by(self, name: str, label: str) -> Mapping[str, float]:
        """Return sums by the value of a label."""
        found = dict[str, float]()
        for labels, value in self._of(name):
            key = dict(labels).get(label, "")
            found[key] = found.get(key, 0.0) + value
        return found

    def _of(self, name: str) -> Iterator[tuple[Labels, float]]:
        yield from self._values.get(name, {}).items()


class Watch:
    """Looks at one node, one after the other, through its client."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self._before: tuple[str, float, Figures] | None = None
        self._sessions: Sequence[SessionStatus] = ()
        self._sessions_ms = 0
        self._rest_until = 0.0

    def look(self) -> TopView | None:
        """Return what the node did since the last look; None at the first one, and at the first of another process.

        Raises UnreachableError, RefusedError.
        """
        status = self._client.status()
        answered_s = time.monotonic()
        figures = self._client.parsed_by(Figures, self._client.metrics())
        at_s = time.monotonic()
        self._look_at_sessions(status.clock_ms, answered_s)
        before, self._before = self._before, (status.origin, at_s, figures)
        if before is None or before[0] != status.origin:
            return None
        return self._view(status, Pace(before[2], figures, at_s - before[1]))

    def _look_at_sessions(self, clock_ms: int, answered_s: float) -> None:
        """Look at the sessions, unless it is too early. The node's clock was at `clock_ms` when it was `answered_s`."""
        began = time.monotonic()
        if began >= self._rest_until:
            self._sessions = self._client.sessions(None, None)
            ended = time.monotonic()
            self._sessions_ms = clock_ms + ceil(1000 * (ended - answered_s))
            self._rest_until = ended + REST * (ended - began)

    def _view(self, status: NodeStatus, pace: Pace) -> TopView:
        now, commands = pace.now, pace.by("replicator_imap_commands_total", "command")
        return TopView(
            node=status.sid,
            clock_ms=status.clock_ms,
            seconds=round(pace.seconds, 3),
            connections=int(now.sum("replicator_imap_connections")),
            logged_in=int(now.sum("replicator_imap_sessions")),
            logins_s=pace.sum("replicator_imap_logins_total", result="ok"),
            commands_s=pace.sum("replicator_imap_commands_total"),
            by_command=dict(sorted(commands.items(), key=lambda one: -one[1])[:ROWS]),
            messages_s=pace.sum("replicator_messages_added_total"),
            delivered_s=pace.sum("replicator_lmtp_deliveries_total", code="2xx"),
            commits_s=pace.sum("replicator_commits_total"),
            stalled=pace.sum("replicator_event_loop_stall_seconds_sum"),
            waiting_entries=status.waiting_entries,
            peers=tuple(
                PeerPace(
                    peer=link.peer,
                    up=link.up,
                    sent_entries_s=pace.sum("replicator_entries_sent_total", peer=link.peer),
                    sent_bytes_s=pace.sum("replicator_link_sent_bytes_total", peer=link.peer),
                    received_entries_s=pace.sum("replicator_entries_received_total", peer=link.peer),
                    received_bytes_s=pace.sum("replicator_link_received_bytes_total", peer=link.peer),
                    lag_entries=link.lag_entries,
                    lag_s=link.lag_s,
                )
                for link in status.links
            ),
            processes=tuple(_processes(pace)),
            sessions=len(self._sessions),
            sessions_ms=self._sessions_ms,
            users=tuple(_users(self._sessions)),
            running=tuple(_running(self._sessions, self._sessions_ms)),
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """The rise of figures between two moments, by second."""

    before: Figures
    now: Figures
    seconds: float

    def sum(self, name: str, **labels: str) -> float:
        """Return the rise of a sum."""
        return self._rate(self.now.sum(name, **labels) - self.before.sum(name, **labels))

    def by(self, name: str, label: str) -> Mapping[str, float]:
        """Return the rises by the value of a label, without those of 0."""
        before = self.before.by(name, label)
        rises = {key: self._rate(value - before.get(key, 0.0)) for key, value in self.now.by(name, label).items()}
        return {key: rise for key, rise in rises.items() if rise > 0}

    def _rate(self, rise: float) -> float:
        return round(max(0.0, rise) / self.seconds, 3)  # what a door had counted may be told anew after its end


def _processes(pace: Pace) -> Iterator[ProcessUse]:
    now = pace.now
    yield ProcessUse("core", pace.sum("process_cpu_seconds_total"), int(now.sum("process_resident_memory_bytes")))
    for door, memory in sorted(now.by("replicator_door_resident_memory_bytes", "door").items()):
        yield ProcessUse(f"door {door}", pace.sum("replicator_door_cpu_seconds_total", door=door), int(memory))


def _is_running(session: SessionStatus) -> bool:
    return session.doing is not None and session.doing not in WAITING


def _users(sessions: Sequence[SessionStatus]) -> Sequence[UserLoad]:
    """Return the users with most running commands, and of these with most sessions."""
    having = Counter(one.user for one in sessions if one.user is not None)
    running = Counter(one.user for one in sessions if one.user is not None and _is_running(one))
    loads = [UserLoad(user, number, running[user]) for user, number in having.items()]
    return sorted(loads, key=lambda load: (-load.running, -load.sessions, load.user))[:ROWS]


def _running(sessions: Sequence[SessionStatus], now_ms: int) -> Sequence[Running]:
    """Return the commands that have run longest."""
    found = sorted(filter(_is_running, sessions), key=lambda one: one.doing_since_ms)[:ROWS]
    return [
        Running(
            session=one.id,
            user=one.user,
            protocol=one.protocol,
            process=one.process,
            command=one.doing or "",
            mailbox=one.mailbox,
            for_s=max(0, now_ms - one.doing_since_ms) / 1000,
        )
        for one in found
    ]


def _parts(view: TopView) -> Iterator[RenderableType]:
    """Yield what is shown of a view."""
    yield (
        f"{plain(view.node)}, the last {view.seconds:.1f} s: {view.commands_s:.1f} commands,"
        f" {view.messages_s:.1f} mails added, {view.delivered_s:.1f} delivered by LMTP, {view.logins_s:.1f} log-ins,"
        f" {view.commits_s:.1f} commits a second"
    )
    yield (
        f"{counted(view.connections, 'IMAP connection')}, {view.logged_in} logged in; event loop held for"
        f" {100 * view.stalled:.0f} % of the time; {counted(view.waiting_entries, 'entry waits', 'entries wait')}"
    )
    yield _process_table(view)
    if view.peers:
        yield _peer_table(view)
    if view.by_command:
        commands = ", ".join(f"{plain(name)} {rate:.1f}" for name, rate in view.by_command.items())
        yield f"IMAP commands a second: {commands}"
    age_s = (view.clock_ms - view.sessions_ms) / 1000
    yield f"{counted(view.sessions, 'session')}" + (f", as of {age_s:.0f} s ago" if age_s >= 1 else "")
    if view.users:
        yield _user_table(view)
    if view.running:
        yield _running_table(view)


def _process_table(view: TopView) -> Table:
    made = table("Processes", "process", ">processor", ">memory")
    for one in view.processes:
        made.add_row(one.process, f"{100 * one.processors:.0f} %", size(one.memory_bytes))
    return made


def _peer_table(view: TopView) -> Table:
    columns = (">entries out/s", ">bytes out/s", ">entries in/s", ">bytes in/s", ">lag: entries", ">seconds")
    made = table("Peers", "peer", "link", *columns)
    for one in view.peers:
        made.add_row(
            plain(one.peer),
            "up" if one.up else "[red]down[/]",
            f"{one.sent_entries_s:.1f}",
            size(int(one.sent_bytes_s)),
            f"{one.received_entries_s:.1f}",
            size(int(one.received_bytes_s)),
            "-" if one.lag_entries is None else str(one.lag_entries),
            "-" if one.lag_s is None else f"{one.lag_s:.1f}",
        )
    return made


def _user_table(view: TopView) -> Table:
    made = table("Busiest users", "user…", ">sessions", ">running")
    for one in view.users:
        made.add_row(plain(one.user), str(one.sessions), str(one.running))
    return made


def _running_table(view: TopView) -> Table:
    made = table("Commands that run", "command", ">for", "user…", "mailbox…", "process", "session")
    for one in view.running:
        who, where = plain(one.user or "-"), plain(one.mailbox or "-")
        made.add_row(plain(one.command), f"{one.for_s:.1f} s", who, where, one.process, one.session)
    return made
