"""Selection of a node: `--config F`, the configuration of a node on this machine, or `--url U`."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import click

from replicator.config import Config, load_config
from replicator.errors import ConfigError
from replicator.runtime.addresses import is_loopback

USAGE_EXIT_CODE = 2
TOKEN_VARIABLE = "REPLICATOR_TOKEN"  # noqa: S105  a name
AUTHORITIES_VARIABLE = "SSL_CERT_FILE"
TOKEN_MAX_CHARS = 1024
_TOKEN_KEY = "replicator.cli.token"  # noqa: S105  the same


def _read_token(context: click.Context, _parameter: click.Parameter, file: Path | None) -> None:
    """Keep the file's first line for `one_node` and `url_of_config`. Raises click.BadParameter."""
    if file is None:
        return
    try:
        with file.open(encoding="ascii") as stream:
            context.meta[_TOKEN_KEY] = _checked_token(stream.readline(TOKEN_MAX_CHARS + 1).strip())
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", param_hint="--token-file") from error
    except ValueError as error:
        raise click.BadParameter(f"{file}: the first line is not a token", param_hint="--token-file") from error


token_option = click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    expose_value=False,
    callback=_read_token,
    help=f"File with a token for the node's HTTP listener; default: the variable {TOKEN_VARIABLE}.",
)
"""The option of all commands that talk to a node. A token is no argument: others see the arguments of a process."""

_F = TypeVar("_F", bound=Callable[..., object])


def node_options(command: _F) -> _F:
    """Add the options of a command that talks to one node, by which `one_node` finds it."""
    config = click.option("--config", "config_file", type=click.Path(path_type=Path), help="The node's configuration.")
    url = click.option("--url", help="The node's address, such as http://127.0.0.1:1080.")
    return config(url(token_option(command)))


class CommandError(click.ClickException):
    """A failed operation: exit code 1. The text is always one line, whatever it quotes."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split("\n")))


class ConfigurationError(click.ClickException):
    """A configuration that cannot be used: exit code 2."""

    exit_code = USAGE_EXIT_CODE


class NoSocketError(ConfigurationError):
    """A node without an HTTP listener whose own socket is not there, for instance because it does not run yet."""


@dataclass(frozen=True, slots=True)
class NodeUrl:
    """Address of a node's HTTP door, and the node's id if its configuration is known.

    `socket`: the node's own socket on this machine, which is used instead of the address. `token`: the secret of the
    token to show at the address.
    """

    host: str
    port: int
    sid: str | None = None
    socket: Path | None = None
    token: str | None = field(default=None, repr=False)
    tls: bool = False

    @property
    def name(self) -> str:
        """The node's name for people: its id or its address."""
        return self.sid or str(self)

    def __str__(self) -> str:
        if not self.host:
            return f"unix:{self.socket}"
        scheme, host = "https" if self.tls else "http", f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


def config_argument(file: Path, *, serving: bool = False) -> Config:
    """Load the configuration in the file; `serving`: to run a node with it. Raises ConfigurationError."""
    try:
        return load_config(file, serving=serving)
    except ConfigError as error:
        raise ConfigurationError(str(error)) from error


def url_of_config(file: Path) -> NodeUrl:
    """Return where the node of this configuration can be reached: at its own socket, if it is there and we may.

    Raises ConfigurationError, NoSocketError, click.UsageError.
    """
    config = config_argument(file)
    http, own = config.listen.http, config.node.own_socket
    if http is not None and http.port:
        tls = not http.is_loopback
        if _is_listened_at(own):
            return NodeUrl(http.host, http.port, config.node.id, own, tls=tls)
        if tls:
            _check_authorities()
        return NodeUrl(http.host, http.port, config.node.id, token=_token(http.host, tls=tls), tls=tls)
    if not os.access(own, os.R_OK | os.W_OK):
        none = "[listen] has no http" if http is None else "[listen] http has port 0, which stands for any free port"
        raise NoSocketError(
            f"{file}: the node cannot be reached: there is no socket at {own} that you may open, and {none}; start"
            " the node, or run this as its user"
        )
    return NodeUrl("", 0, config.node.id, own)


def _is_listened_at(path: Path) -> bool:
    """Return True if we may open the socket and a node is there: one that was killed leaves its socket behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            return probe.connect_ex(str(path)) in {0, errno.EAGAIN}  # EAGAIN: others wait there, too
        except OSError:  # the path is too long for a socket
            return False


def _token(host: str, *, tls: bool) -> str | None:
    """Return the secret to show to this host, if one was given. Raises click.UsageError."""
    context = click.get_current_context(silent=True)
    token: str | None = context.meta.get(_TOKEN_KEY) if context is not None else None
    try:
        token = token or _checked_token(os.environ.get(TOKEN_VARIABLE, "")) or None
    except ValueError as error:
        raise click.UsageError(f"the variable {TOKEN_VARIABLE} does not hold a token") from error
    if token is not None and not tls and not is_loopback(host):
        raise click.UsageError(f"a token is not sent to {host} unencrypted, for others to read; use https://")
    return token


def _check_authorities() -> None:
    """Raise click.UsageError if the file of the CAs to trust is missing: OpenSSL would trust none, and not say why."""
    file = os.environ.get(AUTHORITIES_VARIABLE)
    if file and not Path(file).is_file():
        raise click.UsageError(f"the variable {AUTHORITIES_VARIABLE}: there is no file {file}")


def _checked_token(text: str) -> str:
    """Return the text. Raises ValueError if it cannot be part of a request."""
    if len(text) > TOKEN_MAX_CHARS or not text.isascii() or not all("!" <= char <= "~" for char in text):
        raise ValueError("not a token")
    return text


def parse_url(url: str) -> NodeUrl:
    """Parse `http://host:port` or `https://host:port`. Raises click.UsageError."""
    try:
        parts = urlsplit(url)
        port = {"https": 443}.get(parts.scheme, 80) if parts.port is None else parts.port
    except ValueError as error:
        raise click.BadParameter(f"{url!r}: {error}", param_hint="--url") from error
    if port == 0:
        what = "there is no port 0; give the port of the node's `listen.http`"
        raise click.BadParameter(f"{url!r}: {what}", param_hint="--url")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/") or parts.query:
        raise click.BadParameter(f"{url!r} is not of the form http://127.0.0.1:1080", param_hint="--url")
    tls = parts.scheme == "https"
    if tls:
        _check_authorities()
    return NodeUrl(parts.hostname, port, token=_token(parts.hostname, tls=tls), tls=tls)


def one_node(config_file: Path | None, url: str | None) -> NodeUrl:
    """Return the node that the options name. Raises click.UsageError, ConfigurationError."""
    if config_file is not None and url is None:
        return url_of_config(config_file)
    if url is not None and config_file is None:
        return parse_url(url)
    raise click.UsageError("name the node by either --config FILE or --url URL")
