"""`replicator peer`: changes which other nodes a node has in its configuration, and has the node take that over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import RefusedError, UnreachableError
from replicator.cli.group import HelpfulGroup
from replicator.cli.target import CommandError, ConfigurationError, NoSocketError, config_argument, url_of_config
from replicator.config import with_peer, without_peer
from replicator.errors import ConfigError
from replicator.runtime.files.line_files import edit_lines
from replicator.status import NodeStatus

config_option = click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="The node's configuration."
)


@click.group(cls=HelpfulGroup)
def peer() -> None:
    """Add and remove nodes of the cluster in a node's configuration, while the node runs.

    To be done at each node. The file keeps its comments, and is replaced as a whole or not at all; then the node reads
    it again. If the node does not run, it uses the file at its next start.
    """


@peer.command("add")
@click.argument("name")
@click.argument("address")
@config_option
def peer_add(name: str, address: str, config_file: Path) -> None:
    """Add the node NAME, whose `listen.peer` is reached at ADDRESS, as a [[peer]].

    Takes NAME out of `removed` in [node].
    """
    _, running = _look(config_file)
    _edit(config_file, lambda text: with_peer(config_file, text, name, address))
    _reload(config_file, running, name, is_peer=True)


@peer.command("remove")
@click.argument("name")
@click.option("--force", is_flag=True, help="Although there is a link to NAME.")
@config_option
def peer_remove(name: str, config_file: Path, *, force: bool) -> None:
    """Remove the [[peer]] NAME, a node that has left for good, and put NAME into `removed` in [node].

    The node then keeps no log for NAME, and does not count it any more. Stop NAME before: mail that it took afterwards
    would reach nobody.
    """
    sid, running = _look(config_file)
    if not force and running is not None and any(link.up for link in running.links if link.peer == name):
        raise CommandError(f"{sid} has a link to {name}: stop {name} first, or what it takes from now on is lost")
    _edit(config_file, lambda text: without_peer(config_file, text, name))
    _reload(config_file, running, name, is_peer=False)


def _look(file: Path) -> tuple[str, NodeStatus | None]:
    """Return the node's id, and its status if it runs. Raises ConfigurationError, and CommandError if it is mute."""
    node = config_argument(file).node
    sid = node.id
    try:
        with NodeClient(url_of_config(file)) as client:
            return sid, client.status()
    except NoSocketError:
        if not _is_absent(node.own_socket):  # it may run, as another user
            raise
        return sid, None
    except UnreachableError as error:
        if error.is_connected:
            raise
        return sid, None


def _is_absent(path: Path) -> bool:
    """Return True if there is certainly no such file: where we may not look, there may be one."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def _edit(file: Path, change: Callable[[str], str]) -> None:
    """Change the file. Raises ConfigurationError if that would spoil it, CommandError if it cannot be written."""
    try:
        edit_lines(file, lambda path: [path.read_bytes()], lambda lines: [change(b"".join(lines).decode()).encode()])
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{error}\n{file} stays as it is") from error
    except OSError as error:
        raise CommandError(
            f"{file} stays as it is, because it cannot be changed here: {error.strerror}; if it is written elsewhere,"
            " such as by a configuration management, change it there, and then run `replicator reload`"
        ) from error


def _reload(file: Path, running: NodeStatus | None, name: str, *, is_peer: bool) -> None:
    """Have the node read the file again if it runs, and check that it has. Raises CommandError."""
    now = f"{name} is {'a peer' if is_peer else 'no peer any more'}"
    elsewhere = "do the same at each other node"
    if running is None:
        click.echo(f"{file}: {now}; the node does not run, and {elsewhere}", err=True)
        return
    try:
        with NodeClient(url_of_config(file)) as client:
            client.reload()
            status = client.status()
    except (RefusedError, UnreachableError) as error:
        raise CommandError(f"{file} is changed, but not in force: {error.message}") from error
    if "[[peer]]" in status.restart_for:
        raise CommandError(f"{file} is changed, and in force after a restart, because [tls] has changed, too")
    if any(link.peer == name for link in status.links) is not is_peer:
        raise CommandError(f"{file} is changed, but {status.sid} runs with another file")
    click.echo(f"{status.sid}: {now}; {elsewhere}", err=True)
    if status.restart_for:
        click.echo(f"{status.sid} needs a restart to use the new values of {', '.join(status.restart_for)}", err=True)
