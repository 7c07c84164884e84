"""`replicator config`: checks configuration files, alone and against each other, and shows what they mean."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from replicator.cli.group import HelpfulGroup
from replicator.cli.output import echo_json, json_option
from replicator.cli.target import USAGE_EXIT_CODE, config_argument
from replicator.config import Config, UserSource, config_text, disagreements, line_in_file, load_config, user_server
from replicator.config.positions import key_lines
from replicator.errors import ConfigError

SECTION = re.compile(r"\[+(\w+)\]")
"""The section with which a problem of certificates begins, such as `[tls]` or `[[certificate]]`."""

FILES = click.Path(path_type=Path, dir_okay=False)


@click.group(cls=HelpfulGroup)
def config() -> None:
    """Check configuration files, and show what they mean with all defaults."""


@config.command("check")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILES)
@json_option
def config_check(files: tuple[Path, ...], *, as_json: bool) -> None:
    """Check configuration files as a node does at its start: keys, values, certificates and the passwd-file.

    Certificates must also be such that other nodes accept them now. A server that knows the users ([ldap], [endpoint],
    [dovecot_auth]) is asked about somebody. With several FILEs, the nodes of one cluster, also check that they fit each
    other. Exits with 2 if anything is wrong. Changes nothing, and needs no running node.
    """
    problems: list[str] = []
    loaded: list[Config] = []
    for file in files:
        try:
            loaded.append(load_config(file, serving=True))
        except ConfigError as error:
            problems += str(error).split("\n")
        else:
            lines = key_lines(file.read_text("utf-8"))
            problems += (
                f"{file}:{lines[section,]}: {problem}" if (section,) in lines else f"{file}: {problem}"
                for section, problem in _problems_beside(loaded[-1])
            )
            problems += _problems_of_server(file, loaded[-1])
    problems += disagreements(loaded)
    if as_json:
        echo_json(problems)
    else:
        for problem in problems:
            click.echo(problem, err=True)
    if problems:
        sys.exit(USAGE_EXIT_CODE)
    if not as_json:
        for each in loaded:
            for missing in _not_there_yet(each):
                click.echo(missing, err=True)
        click.echo("no problems found")


def _problems_beside(checked: Config) -> Iterator[tuple[str, str]]:
    """Yield the problems of files that the configuration names, without the file of the configuration.

    Each comes after the section that names the file; empty: the problem names a line of that file itself.
    """
    from replicator.network.certificates import Certificates  # noqa: PLC0415 - slow to import, and `show` needs neither
    from replicator.network.rehearsal import certificate_faults  # noqa: PLC0415
    from replicator.users.passwd_file.line import PasswdFileError  # noqa: PLC0415
    from replicator.users.passwd_file.table import read_whole_file  # noqa: PLC0415

    try:
        certificates = Certificates(
            checked.tls, checked.certificates, of_clients=checked.client_certificates, oauth=checked.oauth
        )
    except ConfigError as error:
        section = SECTION.match(str(error))
        yield section[1] if section else "", str(error)
    else:
        for fault in certificate_faults(checked.node.id, checked.tls, certificates):
            yield "tls", fault
    files = [checked.users.passwd_file] if checked.users.source is UserSource.FILE else []
    files += filter(None, [checked.users.master_passwd_file])
    for file in files:
        if file.exists():
            try:
                for problem in read_whole_file(file).table.problems:
                    yield "", problem
            except PasswdFileError as error:
                yield "users", f"{file}: {error}"
    if checked.lmtp.aliases is not None:
        passwd_file = None if user_server(checked) else checked.users.passwd_file
        for problem in _alias_problems(checked.lmtp.aliases, passwd_file):
            yield "", problem


def _alias_problems(file: Path, passwd_file: Path | None) -> Iterator[str]:
    """Yield the problems of a file of aliases. Targets must be users, if those can be read here."""
    from replicator.users.aliases.recipients import problems_of  # noqa: PLC0415
    from replicator.users.aliases.table import AliasFileError, read_aliases  # noqa: PLC0415
    from replicator.users.names import KnownNames  # noqa: PLC0415
    from replicator.users.passwd_file.line import PasswdFileError  # noqa: PLC0415
    from replicator.users.passwd_file.table import read_whole_file  # noqa: PLC0415

    try:
        table = read_aliases(file)
    except (OSError, AliasFileError) as error:
        yield f"{file}: {error.strerror if isinstance(error, OSError) else error}"
        return
    if passwd_file is None:
        yield from table.problems
        return
    try:
        users = KnownNames(read_whole_file(passwd_file).table.users)
    except (OSError, PasswdFileError):
        yield from table.problems
    else:
        yield from problems_of(table, file, users)


def _problems_of_server(file: Path, checked: Config) -> Iterator[str]:
    """Yield what is wrong with the server that knows the users, by asking it about somebody."""
    server = user_server(checked)
    if server is None:
        return
    import trio  # noqa: PLC0415 - slow to import, as above

    from replicator.user_sources import server_faults  # noqa: PLC0415

    try:
        fault = trio.run(server_faults, server)
    except ConfigError as error:
        yield f"{file}: {error}"
    else:
        if fault is not None:
            key, text = fault
            yield f"{file}:{line_in_file(file, (checked.users.source.value, key))}: {key}: {text}"


def _not_there_yet(checked: Config) -> Iterator[str]:
    """Yield which files are missing that may come later: the node runs without them, unless a path is mistyped."""
    users, tokens = checked.users, checked.http.tokens
    if users.source is UserSource.FILE and not users.passwd_file.exists():
        yield f"{users.passwd_file}: not there yet; {checked.node.id} has no users until `replicator user add` makes it"
    masters = users.master_passwd_file
    if masters is not None and not masters.exists():
        yield f"{masters}: not there yet; {checked.node.id} has no master users until `replicator user add --masters`"
    if tokens is not None and not tokens.exists():
        yield f"{tokens}: not there yet; {checked.node.id} accepts no token until `replicator token add` makes it"


@config.command("show")
@click.argument("file", type=FILES)
def config_show(file: Path) -> None:
    """Print the configuration of FILE as the node understands it, with the defaults of what FILE leaves out."""
    click.echo(config_text(config_argument(file), file.parent), nl=False)
