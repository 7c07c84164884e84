"""The work of a node at this moment, as text and tables for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from replicator.cli.node_pace import TopView
from replicator.cli.output import counted, plain, size, table


def pace_tables(view: TopView) -> Iterator[RenderableType]:
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
