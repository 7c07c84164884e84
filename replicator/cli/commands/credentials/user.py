"""`replicator user`: edits the passwd-file of a node's configuration, or the table of users that its cluster has.

A file is edited here, and running nodes notice that by themselves. The cluster's table is changed through the node,
which must run; passwords are hashed here, so that they go nowhere.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.markup import escape

from replicator.cli.api.client import USERS_AT_ONCE, NodeClient
from replicator.cli.commands.credentials.passwords import first_line
from replicator.cli.commands.credentials.user_places import ClusterPlace, passwd_file_errors, user_place
from replicator.cli.group import HelpfulGroup
from replicator.cli.output import console, counted, echo, echo_json, json_option, size, table
from replicator.cli.target import CommandError, config_argument, url_of_config
from replicator.config import user_server
from replicator.users import (
    DEFAULT_SCHEME,
    NEW_SCHEMES,
    Account,
    AllowedNets,
    MailNames,
    folded,
    parse_nets,
    valid_lines,
)
from replicator.users.passwd_file.line import mail_user_in
from replicator.users.words.mail_user import NOBODY

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


def _nets(text: str) -> AllowedNets:
    """Return the networks of an option. Raises click.BadParameter."""
    try:
        return parse_nets(text)
    except ValueError as error:
        raise click.BadParameter(str(error).partition(";")[0]) from None


masters_option = click.option(
    "--masters", "is_of_masters", is_flag=True, help="Of the master users, who stand in a file of their own."
)


@click.group(cls=HelpfulGroup)
def user() -> None:
    """Add, list, show, rename, disable and delete users, and set passwords.

    The command asks for a password; without a terminal, it reads the first line of standard input. Users are those of
    the node's passwd-file, or with `source = "cluster"` in [users] those of all nodes of the cluster; then the node
    must run. Users of a server (`source = "ldap"`, "endpoint" or "dovecot") are listed and shown only.
    """


@user.command("add")
@click.argument("name", metavar="USER")
@config_option
@scheme_option
@click.option(
    "--allow-nets",
    "nets",
    type=_nets,
    metavar="NETWORKS",
    help="Let USER log in from these IP addresses and networks only, such as 192.0.2.0/24,2001:db8::/32.",
)
@masters_option
def user_add(name: str, config_file: Path, scheme: str, nets: AllowedNets | None, *, is_of_masters: bool) -> None:
    """Add USER. Names are stored in lower case."""
    place = user_place(config_file, is_of_masters=is_of_masters)
    place.add(name, _new_password(), scheme, nets)
    click.echo(f"{place.name}: user {folded(name)} added", err=True)


@user.command("passwd")
@click.argument("name", metavar="USER")
@config_option
@scheme_option
@masters_option
def user_passwd(name: str, config_file: Path, scheme: str, *, is_of_masters: bool) -> None:
    """Set a new password for USER. Open IMAP sessions end at their next command, in IDLE within half a minute."""
    place = user_place(config_file, is_of_masters=is_of_masters)
    place.set_password(name, _new_password(), scheme)
    click.echo(f"{place.name}: password of {folded(name)} set", err=True)


@user.command("disable")
@click.argument("name", metavar="USER")
@config_option
@masters_option
def user_disable(name: str, config_file: Path, *, is_of_masters: bool) -> None:
    """Keep USER from logging in, by a password, a token or a certificate. Mail is still accepted, and stays.

    Open IMAP sessions end at their next command, in IDLE within half a minute. A new password does not change this:
    `user enable` does. Other log-in names of the same mail stay as they are; the command says which there are.
    """
    place = user_place(config_file, is_of_masters=is_of_masters)
    names = place.set_disabled(name, disabled=True)
    click.echo(f"{place.name}: user {folded(name)} disabled; mail is still accepted", err=True)
    if not is_of_masters:
        _tell_of_others(names)


@user.command("enable")
@click.argument("name", metavar="USER")
@config_option
@masters_option
def user_enable(name: str, config_file: Path, *, is_of_masters: bool) -> None:
    """Let USER log in again, with the same password as before."""
    place = user_place(config_file, is_of_masters=is_of_masters)
    place.set_disabled(name, disabled=False)
    click.echo(f"{place.name}: user {folded(name)} enabled", err=True)


@user.command("rename")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@config_option
def user_rename(old: str, new: str, config_file: Path) -> None:
    """Give the user OLD the log-in name NEW, in lower case. Password and mail stay.

    From then on, mail for NEW arrives and mail for OLD is refused, unless an alias says otherwise. The mail is still
    that of the user OLD: nodes show it by that name, which nobody else can get. Open IMAP sessions end at their next
    command, in IDLE within half a minute. With the cluster's table, all nodes must be linked.
    """
    place = user_place(config_file)
    owner = place.rename(old, new)
    whose = "the mail is that of the name again" if owner == folded(new) else f"the mail stays that of the user {owner}"
    click.echo(f"{place.name}: user {folded(old)} renamed to {folded(new)}; {whose}", err=True)
    address = folded(old) if "@" in old else f"{folded(old)}@DOMAIN"  # a bare name would hold in all domains
    click.echo(f"mail for {folded(old)} is refused, unless an alias says: {address} {folded(new)}", err=True)


@user.command("delete")
@click.argument("name", metavar="USER")
@config_option
@masters_option
def user_delete(name: str, config_file: Path, *, is_of_masters: bool) -> None:
    """Delete USER, who can then neither log in nor receive mail. Existing mail stays on the nodes.

    Open IMAP sessions end at their next command, in IDLE within half a minute. If the mail is another user's, or other
    log-in names open it, the command says so.
    """
    place = user_place(config_file, is_of_masters=is_of_masters)
    names = place.delete(name)
    click.echo(f"{place.name}: user {folded(name)} deleted", err=True)
    if is_of_masters:
        return
    _tell_of_others(names)
    if names.mail_user not in (NOBODY, folded(name)) and not names.other_names:
        whose = f"the mail is that of the user {names.mail_user}, and stays"
        click.echo(f"{whose}; `replicator user purge {names.mail_user}` removes it", err=True)


def _tell_of_others(names: MailNames) -> None:
    """Say so if other log-in names open the same mail."""
    if names.other_names:
        whose = f"the mail of {names.mail_user} is still open to other log-in names"
        click.echo(f"{whose}, which this does not change: {', '.join(names.other_names)}", err=True)


@user.command("list")
@config_option
@click.option("--long", "is_long", is_flag=True, help="Also show who is disabled, quotas and clusters.")
@json_option
@masters_option
def user_list(config_file: Path, *, is_of_masters: bool, is_long: bool, as_json: bool) -> None:
    """List all users, one per line; of a server that knows them, those whom the node has found lately."""
    place = user_place(config_file, is_of_masters=is_of_masters)
    if not is_of_masters:
        _tell_if_some(config_file)
    if is_long:
        _show(place.accounts(), as_json=as_json)
        return
    names = place.names()
    if as_json:
        echo_json(names)
        return
    for name in names:
        click.echo(name)


def _tell_if_some(config_file: Path) -> None:
    """Say so if not all users are listed."""
    config = config_argument(config_file)
    server = user_server(config)
    if server is not None:
        text = f"users come from {server.name}, which is not asked for all: {config.node.id} has found these lately"
        click.echo(text, err=True)


def _show(accounts: list[Account], *, as_json: bool) -> None:
    if as_json:
        echo_json([asdict(account) for account in accounts])
        return
    others = any(one.mail_user != one.user for one in accounts)
    columns = "may log in", ">storage", ">messages", "cluster"
    made = table("Users", "user", *(["mail of"] if others else []), *columns)
    for one in accounts:
        may = "no: disabled" if one.disabled else "yes" if one.has_password else "without password"
        storage = "none" if one.storage_limit_bytes is None else size(one.storage_limit_bytes)
        messages = "none" if one.messages_limit is None else str(one.messages_limit)
        names = [one.user, *([one.mail_user or "nobody"] if others else [])]
        made.add_row(*map(escape, names), may, storage, messages, escape(one.cluster or "-"))
    echo(console(), made)
    origins = {one.origin for one in accounts}
    if len(origins) == 1:
        who = f"{accounts[0].user} comes" if len(accounts) == 1 else "all come"
        click.echo(f"{who} from {origins.pop()}")


@user.command("show")
@click.argument("name", metavar="NAME")
@config_option
@json_option
@masters_option
def user_show(name: str, config_file: Path, *, is_of_masters: bool, as_json: bool) -> None:
    """Show the user whom NAME, a user's name or address, means, and where the user comes from."""
    account = user_place(config_file, is_of_masters=is_of_masters).account(name)
    if as_json:
        echo_json(asdict(account))
    else:
        _show([account], as_json=False)


@user.command("purge")
@click.argument("name", metavar="USER")
@config_option
@click.option("--yes", is_flag=True, help="Do not ask.")
def user_purge(name: str, config_file: Path, *, yes: bool) -> None:
    """Remove the mail and folders of USER, who has been deleted, at all nodes.

    Nodes keep it for `content.keep_expunged`, as all expunged mail, and then it is gone for good.
    """
    user = folded(name)
    with NodeClient(url_of_config(config_file)) as client:
        found = client.mailboxes(user)
        messages = sum(mailbox.messages for mailbox in found)
        what = f"{counted(messages, 'message')} in {counted(len(found), 'folder')} of {user}"
        if not yes and sys.stdin.isatty():
            click.confirm(f"Remove {what}, at all nodes?", abort=True, err=True)
        elif not yes:
            raise CommandError(f"this removes {what}; say --yes")
        removed = [client.purge(user)]
        while removed[-1].more:
            removed.append(client.purge(user))
    messages, folders = sum(one.messages for one in removed), sum(one.folders for one in removed)
    click.echo(f"{counted(messages, 'message')} and {counted(folders, 'folder')} of {user} removed", err=True)


@user.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@config_option
@click.option(
    "--replace",
    is_flag=True,
    help="Give users who exist already the lines of FILE; whose mail they open stays, unless a line has `user=`.",
)
def user_import(file: Path, config_file: Path, *, replace: bool) -> None:
    """Bring the users of FILE, a passwd-file, into the cluster's table; the file is not needed afterwards.

    Users who exist already are left as they are and counted. The command can be repeated.
    """
    place = user_place(config_file)
    if not isinstance(place, ClusterPlace):
        raise CommandError(f'{config_file}: users come from {place.name}; set `source = "cluster"` in [users] first')
    with passwd_file_errors():
        lines = valid_lines(file)
    with NodeClient(place.url) as client:
        known = set() if replace else set(client.users())
        fresh = [line for user, line in lines.items() if user not in known]
        fresh.sort(key=lambda line: mail_user_in(line.encode()) is not None)  # who opens others' mail comes after them
        for start in range(0, len(fresh), USERS_AT_ONCE):
            client.add_users(fresh[start : start + USERS_AT_ONCE], replace=replace)
    if kept := sorted(known & lines.keys()):
        existing = (
            f"{len(kept)} of {counted(len(lines), 'user')} exist already, and stay as they are, such as {kept[0]}"
        )
        click.echo(f"{place.name}: {existing}; --replace gives them the lines of {file}", err=True)
    done = "added or replaced" if replace else "added"
    click.echo(f"{place.name}: {counted(len(fresh), 'user')} of {file} {done}", err=True)


def _new_password() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt="Repeat the password", err=True))
    return first_line()
