"""`replicator cluster run`: a whole cluster on this machine, for trying out and for development."""

from __future__ import annotations

import fcntl
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
import trio
from rich.markup import escape
from rich.table import Table

from replicator.cli.group import HelpfulGroup
from replicator.cli.output import console, echo, own_name, table
from replicator.cli.processes.cluster_files import (
    HOST,
    NODES_DEFAULT,
    NODES_MAX,
    ClusterNode,
    Login,
    check_directory,
    logins,
    prepare,
)
from replicator.cli.processes.cluster_processes import NodeProcess, run_processes
from replicator.cli.target import CommandError
from replicator.config import Address, PeerAddress

COLOURS = ("cyan", "magenta", "yellow", "blue", "green")


@click.group(cls=HelpfulGroup)
def cluster() -> None:
    """Run a whole cluster on this machine."""


@cluster.command("run")
@click.option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX),
    help=f"Number of nodes; default: those in the directory, or {NODES_DEFAULT} in a new one.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("mail-cluster"),
    show_default=True,
    help="Directory of the configurations, users and mail.",
)
@click.option("--new-cluster", is_flag=True, help="Nodes with a new database do not wait for other nodes.")
def cluster_run(nodes: int | None, directory: Path, *, new_cluster: bool) -> None:
    """Run a cluster until Ctrl-C, in a directory that keeps its configuration and mail.

    Prints ports, users and passwords, and how to deliver and read a message.
    """
    check_directory(directory)
    with _only_one(directory):
        cluster_nodes = prepare(directory, nodes)
        click.echo(f"Starting {', '.join(node.sid for node in cluster_nodes)} in {directory} …")
        stopped = trio.run(
            partial(
                run_processes,
                cluster_nodes,
                ["--new-cluster"] if new_cluster else [],
                say=partial(_say_line, [node.sid for node in cluster_nodes]),
                started=partial(_welcome, directory, cluster_nodes),
                ending=_say_ending,
            )
        )
    if not stopped:
        raise CommandError("all nodes have stopped; their last log lines above say why")
    click.echo(f"All nodes have stopped. Their mail stays in {directory}.")


@contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Hold the directory. The lock is the kernel's, so it ends with this process in any case."""
    file = directory / "cluster.lock"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise CommandError(f"{error.filename or file}: {error.strerror}; use another --dir") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CommandError(f"{directory}: this cluster is already running; stop it, or use another --dir") from None
    try:
        yield
    finally:
        os.close(descriptor)


def _say_line(sids: Sequence[str], sid: str, line: str) -> None:
    prefix = click.style(f"{sid:<{max(map(len, sids))}} |", fg=COLOURS[sids.index(sid) % len(COLOURS)])
    click.echo(f"{prefix} {line}", err=True)


def _say_ending() -> None:
    click.echo("Stopping the nodes; press Ctrl-C again to kill them.")


def _welcome(directory: Path, nodes: Sequence[ClusterNode], children: Sequence[NodeProcess]) -> None:
    """Print all that a user needs to use the cluster."""
    ready = [node for node, child in zip(nodes, children, strict=True) if child.is_ready]
    users = logins(directory, ready[0].config.users.passwd_file)
    echo(console(), "", _node_table(nodes, children), _user_table(users))
    if users:
        click.echo(f"The generated passwords are in {directory / 'passwords.txt'}.")
    else:
        click.echo("There are no users yet: see `replicator user add` and `replicator user import`.")
    for text, command in _examples(ready, users):
        click.echo(f"\n{text}:\n\n  {command}")
    click.echo("\nCtrl-C stops the cluster. To continue with the same mail, run this command again.\n")


def _node_table(nodes: Sequence[ClusterNode], children: Sequence[NodeProcess]) -> Table:
    rows = table(f"Ports on {HOST}", "node", "LMTP", "IMAP", "HTTP", "nodes", "process", "configuration…")
    for node, child in zip(nodes, children, strict=True):
        listen = node.config.listen
        doors = [_port(door) for door in (listen.lmtp, listen.imap, listen.http, listen.peer)]
        process = str(child.pid) if child.is_ready and child.pid else "[red](stopped)[/]"
        rows.add_row(f"[bold]{escape(node.sid)}[/]", *doors, process, escape(str(node.file)))
    return rows


def _port(door: PeerAddress | None) -> str:
    if door is None:
        return "-"
    return str(door.port) if isinstance(door, Address) and door.host == HOST else str(door)


def _user_table(users: Sequence[Login]) -> Table:
    rows = table("Users", "user", "password")
    for login in users:
        rows.add_row(escape(login.user), escape(login.password or "(changed since)"))
    return rows


def _examples(ready: Sequence[ClusterNode], users: Sequence[Login]) -> Iterator[tuple[str, str]]:
    """Yield example tasks with their commands, which need only programs that every Debian has."""
    login = next((login for login in users if login.password), Login("USER", None))
    accepting = next((node for node in ready if node.config.listen.lmtp), None)
    serving = next((node for node in reversed(ready) if node.config.listen.imap), None)
    if accepting is not None:
        yield (
            f"Deliver a message to {login.user} at {accepting.sid}",
            _deliver(accepting.config.listen.lmtp, login.user),
        )
    if serving is not None:
        secret = shlex.quote(f"{login.user}:{login.password or 'PASSWORD'}")
        url = f"imap://{serving.config.listen.imap}/INBOX;MAILINDEX=*"
        yield f"Read the newest message at {serving.sid}", f"curl -s --user {secret} {shlex.quote(url)}"
    asked = " ".join(f"--config {shlex.quote(str(node.file))}" for node in ready if node.config.listen.http)
    if asked:
        yield "See nodes, links, lag and masters", f"{own_name()} status {asked}"
    if shown := [f"http://{node.config.listen.http}/" for node in ready if node.config.listen.http]:
        yield "Look at them in a browser", "  ".join(shown)


def _deliver(lmtp: Address | None, user: str) -> str:
    assert lmtp is not None
    message = r'b"Subject: Hello\r\n\r\nThis is my first mail.\r\n"'
    program = (
        f'import smtplib; smtplib.LMTP("{lmtp.host}", {lmtp.port}).sendmail("me@example.org", ["{user}"], {message})'
    )
    return f"python3 -c {shlex.quote(program)}"
