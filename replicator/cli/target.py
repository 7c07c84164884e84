"""Selection of a node: `--config F`, the configuration of a node on this machine, or `--url U`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import click

from replicator.config import Config, load_config
from replicator.errors import ConfigError

USAGE_EXIT_CODE = 2


class CommandError(click.ClickException):
    """A failed operation: exit code 1. The text is always one line, whatever it quotes."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split("\n")))


class ConfigurationError(click.ClickException):
    """A configuration that cannot be used: exit code 2."""

    exit_code = USAGE_EXIT_CODE


@dataclass(frozen=True, slots=True)
class NodeUrl:
    """Address of a node's HTTP door, and the node's id if its configuration is known.

    `socket`: the node's own socket on this machine, which is used instead of the address.
    """

    host: str
    port: int
    sid: str | None = None
    socket: Path | None = None

    @property
    def name(self) -> str:
        """The node's name for people: its id or its address."""
        return self.sid or str(self)

    def __str__(self) -> str:
        if not self.host:
            return f"unix:{self.socket}"
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def config_argument(file: Path, *, serving: bool = False) -> Config:
    """Load the configuration in the file; `serving`: to run a node with it. Raises ConfigurationError."""
    try:
        return load_config(file, serving=serving)
    except ConfigError as error:
        raise ConfigurationError(str(error)) from error


def url_of_config(file: Path) -> NodeUrl:
    """Return where the node of this configuration can be reached: at its own socket, if we may open that.

    Raises ConfigurationError.
    """
    config = config_argument(file)
    http, socket = config.listen.http, config.node.own_socket
    if os.access(socket, os.R_OK | os.W_OK):
        host, port = http if http and http.port else ("", 0)
        return NodeUrl(host, port, config.node.id, socket)
    if http is None or http.port == 0:
        none = "[listen] has no http" if http is None else "[listen] http has port 0, which stands for any free port"
        raise ConfigurationError(
            f"{file}: the node cannot be reached: there is no socket at {socket} that you may open, and {none}; start"
            " the node, or run this as its user"
        )
    return NodeUrl(http.host, http.port, config.node.id)


def parse_url(url: str) -> NodeUrl:
    """Parse `http://host:port`. Raises click.BadParameter."""
    try:
        parts = urlsplit(url)
        port = 80 if parts.port is None else parts.port
    except ValueError as error:
        raise click.BadParameter(f"{url!r}: {error}", param_hint="--url") from error
    if parts.scheme != "http" or not parts.hostname or not port or parts.path.strip("/") or parts.query:
        raise click.BadParameter(f"{url!r} is not of the form http://127.0.0.1:1080", param_hint="--url")
    return NodeUrl(parts.hostname, port)


def one_node(config_file: Path | None, url: str | None) -> NodeUrl:
    """Return the node that the options name. Raises click.UsageError, ConfigurationError."""
    if config_file is not None and url is None:
        return url_of_config(config_file)
    if url is not None and config_file is None:
        return parse_url(url)
    raise click.UsageError("name the node by either --config FILE or --url URL")
