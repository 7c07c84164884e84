"""`replicator ca`: the certificates by which the nodes of a cluster trust each other (docs/operations.md)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import click

from replicator.cli.group import HelpfulGroup
from replicator.config import tls_text
from replicator.config.values import sid

F = TypeVar("F", bound=Callable[..., None])


def _directory_option(function: F) -> F:
    return click.option(
        "--dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("ca"),
        show_default=True,
        help="Directory of the CA and of the certificates that it signs.",
    )(function)


def _node_argument(function: F) -> F:
    return click.argument("node", callback=_checked_node)(function)


def _checked_node(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        return sid(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.group(cls=HelpfulGroup)
def ca() -> None:
    """Make certificates for the links between nodes.

    The private key of the CA, ca.key, can make certificates for any node: keep it off the nodes.
    """


@ca.command("init")
@_directory_option
@click.option("--name", default="mail-replicator", show_default=True, help="Name of the CA, for people.")
def init(directory: Path, name: str) -> None:
    """Make a new CA, which is valid for ten years."""
    from replicator.cli.authority import Authority  # noqa: PLC0415  cryptography takes a moment to load

    authority = Authority.create(directory, name)
    click.echo(f"Made {directory / 'ca.pem'}, valid until {_day(authority.certificate.not_valid_after_utc)}.")
    click.echo(f"Keep {directory / 'ca.key'} secret, and off the nodes.")
    click.echo(f"\nNext, for each node: replicator ca issue NODE --dir {directory}")


@ca.command("issue")
@_node_argument
@click.option(
    "--host", "hosts", multiple=True, help="Further name or IP address, for mail clients; may be given several times."
)
@_directory_option
def issue(node: str, hosts: tuple[str, ...], directory: Path) -> None:
    """Make the key and the certificate of a node, which is valid for a year."""
    from replicator.cli.authority import Authority  # noqa: PLC0415  cryptography takes a moment to load

    authority = Authority.open(directory)
    certificate = authority.issue(node, hosts)
    files = authority.files(node)
    click.echo(f"Made {files.certificate}, valid until {_day(certificate.not_valid_after_utc)}, and {files.key}.")
    click.echo(f"\nNext, copy both and {files.ca} beside the configuration of {node}, and write there:\n")
    click.echo(tls_text(node))


@ca.command("renew")
@_node_argument
@_directory_option
def renew(node: str, directory: Path) -> None:
    """Replace a node's certificate by one that is valid for a year from now, with the same key and names."""
    from replicator.cli.authority import Authority  # noqa: PLC0415  cryptography takes a moment to load

    authority = Authority.open(directory)
    certificate = authority.renew(node)
    file = authority.files(node).certificate
    click.echo(f"Renewed {file}, valid until {_day(certificate.not_valid_after_utc)}.")
    click.echo(f"\nNext, replace the certificate of {node} by it, and run there: replicator reload --config F")


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"
