"""The work of a node at this moment: its pace, its peers, its processes, who keeps it busy.

All comes from figures that a node has anyway: `/metrics`, its status, and the register of sessions. Rates are those
between two looks. The register is asked for at most 1/`REST` of the time: with tens of thousands of sessions, telling
them holds the node's event loop for a noticeable part of a second.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from prometheus_client.parser import text_string_to_metric_families

from replicator.cli.api.client import NodeClient
from replicator.runtime.sessions import SessionStatus
from replicator.status import NodeStatus

ROWS = 10  # users and commands that are told
REST = 20
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
    """The load of the core, or of a door's process. `processors`: 1.0 is one of them all the time."""

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
