"""`replicator user`: edits the passwd-file of a node's configuration. Running nodes notice changes by themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from replicator.cli.group import HelpfulGroup
from replicator.cli.output import echo_json
from replicator.cli.target import CommandError, config_argument
from replicator.users import (
    DEFAULT_SCHEME,
    NEW_SCHEMES,
    PasswdFileError,
    add_user,
    delete_user,
    folded,
    list_users,
    set_password,
)

config_option = click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="A node's configuration."
)


scheme_option = click.option(
    "--scheme",
    type=click.Choice(NEW_SCHEMES, case_sensitive=False),
    default=DEFAULT_SCHEME,
    show_default=True,
    help="How the password is stored. With SCRAM-SHA-256, clients need not send it.",
)


@click.group(cls=HelpfulGroup)
def user() -> None:
    """Add, list and delete users, and set passwords.

    The command asks for a password; without a terminal, it reads the first line of standard input. Nodes on other
    machines have their own passwd-file.
    """


@user.command("add")
@click.argument("name", metavar="USER")
@config_option
@scheme_option
def user_add(name: str, config_file: Path, scheme: str) -> None:
    """Add USER. Names are stored in lower case."""
    file = _passwd_file(config_file)
    password = _new_password()
    _edit(lambda: add_user(file, name, password, scheme=scheme))
    click.echo(f"{file}: user {folded(name)} added", err=True)


@user.command("passwd")
@click.argument("name", metavar="USER")
@config_option
@scheme_option
def user_passwd(name: str, config_file: Path, scheme: str) -> None:
    """Set a new password for USER. Open IMAP sessions end at their next command, in IDLE within half a minute."""
    file = _passwd_file(config_file)
    password = _new_password()
    _edit(lambda: set_password(file, name, password, scheme=scheme))
    click.echo(f"{file}: password of {folded(name)} set", err=True)


@user.command("delete")
@click.argument("name", metavar="USER")
@config_option
def user_delete(name: str, config_file: Path) -> None:
    """Delete USER, who can then neither log in nor receive mail. Existing mail stays on the nodes.

    Open IMAP sessions end at their next command, in IDLE within half a minute.
    """
    file = _passwd_file(config_file)
    _edit(lambda: delete_user(file, name))
    click.echo(f"{file}: user {folded(name)} deleted", err=True)


@user.command("list")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def user_list(config_file: Path, *, as_json: bool) -> None:
    """List all users, one per line."""
    file = _passwd_file(config_file)
    try:
        names = list_users(file)
    except PasswdFileError as error:
        raise CommandError(str(error)) from error
    if as_json:
        echo_json(names)
        return
    for name in names:
        click.echo(name)


def _passwd_file(config_file: Path) -> Path:
    return config_argument(config_file).users.passwd_file


def _new_password() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt="Repeat the password", err=True))
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CommandError("no password: standard input is empty; give the password as its first line")
    return password


def _edit(edit: Callable[[], None]) -> None:
    try:
        edit()
    except PasswdFileError as error:
        raise CommandError(str(error)) from error
