"""`replicator mailbox`: shows a user's folders and all that a node knows of one, and changes them as clients do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import RefusedError
from replicator.cli.group import HelpfulGroup
from replicator.cli.output import console, echo, echo_json, echo_lines, json_option, plain, printable, size, table
from replicator.cli.stories import mailbox_lines
from replicator.cli.target import CommandError, node_options, one_node
from replicator.mail.mailstore import canonical_name
from replicator.status import FolderCounts, FolderList

DAY_S = 24 * 3600


@click.group(cls=HelpfulGroup)
def mailbox() -> None:
    """Show a user's folders, and create, rename and delete them.

    Names are those that IMAP clients show, with levels separated by /. Changes follow the rules of IMAP, and clients
    see them as if another client had made them.
    """


@mailbox.command()
@click.argument("user")
@click.argument("mailbox")
@node_options
@json_option
def show(user: str, mailbox: str, config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Show USER's MAILBOX: its numbers, its head and master, what waits, and whether other nodes show the same.

    The node asks all others, and gives each three seconds to answer. A folder that was deleted is shown, too, unless
    another one has its name.
    """
    if "" in {user, mailbox}:
        raise click.UsageError("USER and MAILBOX must not be empty")
    with NodeClient(one_node(config_file, url)) as client:
        found = client.mailbox(user, mailbox)
    if as_json:
        echo_json(asdict(found))
    else:
        echo_lines(mailbox_lines.lines(found))


@mailbox.command("list")
@click.argument("user")
@node_options
@json_option
def list_(user: str, config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """List the folders of USER, with their messages and subscriptions."""
    _check_given("USER", user)
    with NodeClient(one_node(config_file, url)) as client:
        found = client.folders(user)
    if as_json:
        echo_json(asdict(found))
    else:
        _echo(found)


@mailbox.command()
@click.argument("user")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--subscribe", "subscribed", is_flag=True, help="Subscribe the user to the new folders, too.")
@node_options
@json_option
def create(
    user: str, names: tuple[str, ...], config_file: Path | None, url: str | None, *, subscribed: bool, as_json: bool
) -> None:
    """Create folders of USER, with the levels above them that are missing."""
    _check_given("USER", user)
    with NodeClient(one_node(config_file, url)) as client:

        def make(name: str) -> None:
            client.create_folder(user, name)
            if subscribed:
                client.subscribe(user, name.removesuffix("/"), subscribed=True)

        _for_each(names, make, "created", as_json=as_json)


@mailbox.command()
@click.argument("user")
@click.argument("name")
@click.argument("new")
@node_options
@json_option
def rename(user: str, name: str, new: str, config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Rename the folder NAME of USER to NEW, with all folders below it; subscriptions stay as they are.

    INBOX itself stays: its mail moves to the new folder.
    """
    for what, value in (("USER", user), ("NAME", name), ("NEW", new)):
        _check_given(what, value)
    with NodeClient(one_node(config_file, url)) as client:
        client.rename_folder(user, name, new)
    if as_json:
        echo_json({"name": new, "was": name})
    else:
        click.echo(f"renamed {name} to {new}")


@mailbox.command()
@click.argument("user")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--recursive", is_flag=True, help="Delete the folders below these, too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@node_options
@json_option
def delete(
    user: str,
    names: tuple[str, ...],
    config_file: Path | None,
    url: str | None,
    *,
    recursive: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete folders of USER with their mail.

    The nodes keep the mail for `content.keep_expunged`, and `replicator undelete` brings it back until then, into a
    folder that exists. Folders below a deleted one stay, unless --recursive is given.
    """
    _check_given("USER", user)
    with NodeClient(one_node(config_file, url)) as client:
        found = client.folders(user)
        chosen = _chosen(found.folders, [canonical_name(name) for name in names], recursive=recursive)
        if not yes:
            _ask_for_deletion(found, chosen)
        _for_each(chosen, lambda name: client.delete_folder(user, name), "deleted", as_json=as_json)


@mailbox.command()
@click.argument("user")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@node_options
@json_option
def subscribe(user: str, names: tuple[str, ...], config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """Subscribe USER to folders: many clients show only these. The folders need not exist."""
    _check_given("USER", user)
    with NodeClient(one_node(config_file, url)) as client:
        _for_each(names, lambda name: client.subscribe(user, name, subscribed=True), "subscribed", as_json=as_json)


@mailbox.command()
@click.argument("user")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@node_options
@json_option
def unsubscribe(user: str, names: tuple[str, ...], config_file: Path | None, url: str | None, *, as_json: bool) -> None:
    """End subscriptions of USER. The folders stay."""
    _check_given("USER", user)
    with NodeClient(one_node(config_file, url)) as client:
        _for_each(names, lambda name: client.subscribe(user, name, subscribed=False), "unsubscribed", as_json=as_json)


def _check_given(what: str, value: str) -> None:
    if not value:
        raise click.UsageError(f"{what} must not be empty")


def _for_each(names: Iterable[str], change: Callable[[str], None], done: str, *, as_json: bool) -> None:
    """Make a change to each folder, and tell what came of it. Raises click's Exit if one was refused."""
    results: list[dict[str, str | None]] = []
    for name in names:
        error: str | None = None
        try:
            if not name:
                raise CommandError("a folder's name must not be empty")
            change(name)
        except RefusedError as refused:
            error = refused.detail
            if not as_json:
                refused.show()
        else:
            if not as_json:
                echo_lines([f"{done} {name}"])
        results.append({"name": name, "error": error})
    if as_json:
        echo_json(results)
    if any(result["error"] is not None for result in results):
        raise click.exceptions.Exit(1)


def _chosen(folders: Sequence[FolderCounts], names: Sequence[str], *, recursive: bool) -> list[str]:
    """Return the folders to delete: those that are named, each after those below it if these are to be deleted."""
    below = tuple(f"{name}/" for name in names)
    found = [folder.name for folder in folders if recursive and folder.name.startswith(below)]
    return [*sorted({*found} - {*names}, reverse=True), *names]


def _ask_for_deletion(found: FolderList, names: Sequence[str]) -> None:
    """Ask whether to delete these folders. Raises CommandError without a terminal, and click.Abort."""
    messages = sum(folder.messages for folder in found.folders if folder.name in names)
    shown = printable(", ".join(names))
    kept = f"nodes keep it for {found.keep_expunged_s / DAY_S:g} days, for `replicator undelete`"
    what = f"{shown} of {found.user}, with {messages} messages; {kept}"
    if not sys.stdin.isatty():
        raise CommandError(f"this deletes {what}; say --yes")
    click.confirm(f"Delete {what}. Go on?", abort=True, err=True)


def _echo(found: FolderList) -> None:
    made = table(f"Folders of {plain(found.user)}", "folder…", ">messages", ">unseen", ">size", "subscribed")
    for folder in found.folders:
        counts = (str(folder.messages), str(folder.unseen), size(folder.size_bytes))
        made.add_row(plain(folder.name), *counts, "yes" if folder.subscribed else "no")
    for name in found.stray_subscriptions:
        made.add_row(plain(name), "-", "-", "-", "yes, but there is no such folder")
    echo(console(), made)
