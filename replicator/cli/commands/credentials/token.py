"""`replicator token`: edits the file of those who may use a node's HTTP listener. Running nodes notice changes."""

from __future__ import annotations

from pathlib import Path

import click

from replicator.cli.group import HelpfulGroup
from replicator.cli.output import console, echo, echo_json, json_option, table
from replicator.cli.target import CommandError, ConfigurationError, config_argument
from replicator.http.tokens import Role, TokenFileError, add_token, delete_token, list_tokens

config_option = click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="A node's configuration."
)


@click.group(cls=HelpfulGroup)
def token() -> None:
    """Add, list and delete tokens for a node's HTTP listener.

    The file is `tokens` in [http] of the configuration. Each node reads its own copy.
    """


@token.command("add")
@click.argument("name")
@click.option(
    "--role",
    required=True,
    type=click.Choice([role.value for role in Role]),
    help="read: look at everything; proxy: ask where a user's mail is, and nothing else; operate: do everything.",
)
@config_option
def token_add(name: str, role: str, config_file: Path) -> None:
    """Make a token called NAME, and print it.

    The file keeps only a hash: this is the one time that the token is shown.
    """
    file = _token_file(config_file)
    try:
        secret = add_token(file, name, Role(role))
    except TokenFileError as error:
        raise CommandError(str(error)) from error
    click.echo(secret)
    click.echo(f"{file}: token {name} added; it is not shown again", err=True)


@token.command("delete")
@click.argument("name")
@config_option
def token_delete(name: str, config_file: Path) -> None:
    """Delete the token called NAME. Nodes refuse it at once."""
    file = _token_file(config_file)
    try:
        delete_token(file, name)
    except TokenFileError as error:
        raise CommandError(str(error)) from error
    click.echo(f"{file}: token {name} deleted", err=True)


@token.command("list")
@config_option
@json_option
def token_list(config_file: Path, *, as_json: bool) -> None:
    """List the tokens with their roles."""
    try:
        tokens = list_tokens(_token_file(config_file))
    except TokenFileError as error:
        raise CommandError(str(error)) from error
    if as_json:
        echo_json([{"name": one.name, "role": one.role} for one in tokens])
        return
    made = table("Tokens", "name", "role")
    for one in tokens:
        made.add_row(one.name, one.role)
    echo(console(), made)


def _token_file(config_file: Path) -> Path:
    file = config_argument(config_file).http.tokens
    if file is None:
        raise ConfigurationError(f'{config_file}: there is no file of tokens; add tokens = "http.tokens" to [http]')
    return file
