"""`replicator import`: imports mail from files or an IMAP server into users' folders, through a running node.

What is imported, and how, is in `replicator.cli.importing`; here are the options, and the report.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from replicator.cli.api.connection import UnreachableError
from replicator.cli.importing.mail_import import MailImport
from replicator.cli.importing.many_users import ManyImports, UserListError, Wanted, read_user_list
from replicator.cli.importing.memory import BusyError, ImportMemory, memory_of
from replicator.cli.importing.results import ImportResult, StopSign
from replicator.cli.importing.sources import Credentials, check_named, place_name, read_password, source_at
from replicator.cli.output import console, counted, echo, echo_json, plain, printable, table
from replicator.cli.sources import SourceError
from replicator.cli.sources.imap.urls import is_imap_url, parse_imap_url
from replicator.cli.target import CommandError, NodeUrl, node_options, one_node
from replicator.mail.mailstore import INBOX, canonical_name

FOLDERS_AT_ONCE = 8  # a node takes as many messages by HTTP at once; they share its fsyncs
USERS_AT_ONCE_MAX = 64
STATE_VARIABLE = "XDG_STATE_HOME"
NAMES_SHOWN = 5  # folders that a line for people names


@dataclass(frozen=True, slots=True)
class _Setting:
    """The options that all users of an import share."""

    node: NodeUrl
    mailbox: str
    credentials: Credentials
    state: Path
    expunge: bool
    folders_at_once: int = FOLDERS_AT_ONCE
    stop: StopSign = field(default_factory=StopSign)


@click.command("import")
@click.argument("user", required=False)
@click.argument("path", required=False, metavar="[PATH|URL]")
@click.option("--users", "user_list", type=click.Path(path_type=Path), help="Lines `USER PATH|URL`, instead of both.")
@click.option(
    "--at-once", type=click.IntRange(1, USERS_AT_ONCE_MAX), default=FOLDERS_AT_ONCE, show_default=True,
    help="With --users: how many at the same time.",
)  # fmt: skip
@click.option("--mailbox", default=INBOX, show_default=True, help="The folder for INBOX's mail; created if necessary.")
@click.option("--password-file", type=click.Path(path_type=Path), help="File with the password for the IMAP server.")
@click.option("--master-user", help="Log in there as USER*NAME, with the password of this NAME.")
@click.option(
    "--state", type=click.Path(path_type=Path), help="Directory for what was taken; default: in ~/.local/state."
)
@click.option("--expunge", is_flag=True, help="Expunge what earlier imports brought and the source has no more.")
@node_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def import_mail(  # noqa: PLR0917 - click passes names
    user: str | None,
    path: str | None,
    user_list: Path | None,
    at_once: int,
    mailbox: str,
    password_file: Path | None,
    master_user: str | None,
    state: Path | None,
    config_file: Path | None,
    url: str | None,
    *,
    expunge: bool,
    as_json: bool,
) -> None:
    """Import mail into USER's mailbox: a Maildir or mbox at PATH, or an account at an IMAP server.

    imaps://NAME@HOST[:PORT] is such an account. Folders, flags, keywords, dates and order are kept, and UIDs and
    UIDVALIDITY in folders without mail, so that mail programs go on with what they have. Mail that the folder already
    holds is left out, so an import can be repeated; it then also takes over flags, and with --expunge expunges. Exit
    code 1 if anything was not imported.
    """
    if (user_list is None) == (user is None) or (user is None) != (path is None):
        raise click.UsageError("name USER and PATH, or a list of them by --users")
    node = one_node(config_file, url)
    credentials = Credentials(_password(password_file), master_user)
    setting = _Setting(node, canonical_name(mailbox), credentials, state or _default_state(), expunge)
    if user is not None and path is not None:
        results = [_import_one(setting, _named(user, path))]
        _report_one(results[0], as_json=as_json)
    else:
        assert user_list is not None
        results = _import_many(setting, user_list, at_once, as_json=as_json)
    if not all(result.is_complete for result in results):
        raise click.exceptions.Exit(1)


def _named(user: str, path: str) -> Wanted:
    """Return the one user of the command line. Raises click.BadParameter."""
    try:
        check_named(user, path)
    except ValueError as error:
        raise click.BadParameter(f"{place_name(path)}: {error}") from error
    if is_imap_url(path) and parse_imap_url(path).password is not None:
        raise click.BadParameter("no password here, for others to read; name a file by --password-file")
    return Wanted(user, path)


def _import_one(setting: _Setting, wanted: Wanted) -> ImportResult:
    """Import one user's mail. Raises click.UsageError, CommandError."""
    try:
        with _progress("Importing") as (progress, task):
            return _imported(setting, wanted, progress, task)
    except SourceError as error:
        if is_imap_url(wanted.place):
            raise CommandError(str(error)) from error
        raise click.UsageError(str(error)) from error


def _imported(setting: _Setting, wanted: Wanted, progress: Progress, task: TaskID | None) -> ImportResult:
    """Import a user's mail; `task` shows the progress. Raises SourceError, CommandError."""
    with (
        _memory(setting, wanted) as memory,
        closing(source_at(wanted.place, setting.mailbox, setting.credentials)) as source,
    ):
        if task is not None:
            progress.update(task, total=sum(folder.messages for folder in source.folders))
        work = MailImport(
            setting.node,
            wanted.user,
            source,
            memory=memory,
            stop=StopSign(setting.stop),
            at_once=setting.folders_at_once,
            expunge=setting.expunge,
        )
        return work.run(lambda messages: progress.advance(task, messages) if task is not None else None)


def _memory(setting: _Setting, wanted: Wanted) -> ImportMemory:
    """Return what earlier imports have taken. Raises CommandError."""
    try:
        return memory_of(setting.state, wanted.user, f"{place_name(wanted.place)} {setting.mailbox}")
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}; name a directory by --state") from error
    except BusyError as error:
        raise CommandError(f"{place_name(wanted.place)}: {error}") from error


def _import_many(setting: _Setting, user_list: Path, at_once: int, *, as_json: bool) -> list[ImportResult]:
    """Import the mail of a list of users, and report. Raises click.UsageError."""
    try:
        wanted = read_user_list(user_list)
    except (UserListError, OSError) as error:
        reason = f"{user_list}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise click.UsageError(reason) from error
    of_all = replace(setting, folders_at_once=max(1, FOLDERS_AT_ONCE // at_once))
    with _progress("Users") as (progress, task):
        progress.update(task, total=len(wanted))

        def run_one(one: Wanted) -> ImportResult:
            try:
                return _imported(of_all, one, progress, None)
            except UnreachableError as error:
                setting.stop.set(error.message)  # no other user could be imported either
                return ImportResult(stopped=error.message)
            except (SourceError, CommandError) as error:
                return ImportResult(stopped=str(error))

        results = ManyImports(run_one, setting.stop, at_once).run(wanted, lambda: progress.advance(task))
    _report_many(wanted, results, as_json=as_json)
    return results


@contextmanager
def _progress(shown: str) -> Iterator[tuple[Progress, TaskID]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        yield progress, progress.add_task(shown, total=None)


def _password(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return read_password(file)
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror}", param_hint="--password-file") from error
    except ValueError as error:
        raise click.BadParameter(f"{file}: {error}", param_hint="--password-file") from error


def _default_state() -> Path:
    """Return the directory of the user who runs this. Raises click.UsageError if there is no home."""
    try:
        base = Path(os.environ.get(STATE_VARIABLE) or Path.home() / ".local" / "state")
    except RuntimeError as error:
        raise click.UsageError("you have no home directory; name a directory by --state") from error
    return base / "replicator" / "imports"


def _document(result: ImportResult) -> dict[str, object]:
    counts = ("imported", "present", "empty", "reflagged", "expunged", "stayed", "gone", "removed", "left")
    return {**{count: result.total(count) for count in counts}, **asdict(result)}


def _report_one(result: ImportResult, *, as_json: bool) -> None:
    _report_failures(result, "")
    if as_json:
        echo_json(_document(result))
        return
    imported, present, empty = (result.total(count) for count in ("imported", "present", "empty"))
    failed, left = result.total("failed"), result.total("left")
    counts = f"{imported} imported, {present} already there, {empty} empty and skipped"
    others = len(result.failures) - failed
    rest = f", {others} other failures" if others else ""
    click.echo(f"{counts}, {failed} failed, {left} not tried{rest}")
    for line in (_changes(result), _gone(result), _uids(result)):
        if line:
            click.echo(printable(line))
    if result.stopped:
        click.echo(f"Error: stopped: {result.stopped}; run the import again to continue", err=True)


def _report_many(wanted: list[Wanted], results: list[ImportResult], *, as_json: bool) -> None:
    """Print what came of each user; last, where people look, those of whom something was not taken."""
    for one, result in zip(wanted, results, strict=True):
        _report_failures(result, f"{one.user}: ")
    if as_json:
        users = zip(wanted, results, strict=True)
        echo_json([{"user": one.user, "source": place_name(one.place), **_document(result)} for one, result in users])
        return
    made = table("Imports", "user…", ">imported", ">there", ">failed", ">left", "UIDs", "not taken, because…")
    for one, result in sorted(zip(wanted, results, strict=True), key=lambda pair: not pair[1].is_complete):
        why = result.stopped or (result.failures[0].reason if result.failures else "")
        numbers = (result.total("imported"), result.total("present"), result.total("failed"), result.total("left"))
        made.add_row(plain(one.user), *map(str, numbers), _kept(result), plain(why))
    complete = sum(result.is_complete for result in results)
    echo(console(), made, f"{complete} of {counted(len(results), 'user')} complete")


def _report_failures(result: ImportResult, prefix: str) -> None:
    for note in result.notes:
        click.echo(printable(f"{prefix}{note}"), err=True)
    for failure in result.failures:
        click.echo(printable(f"{prefix}{failure.message}: {failure.reason}"), err=True)


def _kept(result: ImportResult) -> str:
    """Return in how many folders UIDs are kept, of those for which the source tells some."""
    known = [folder for folder in result.folders if folder.uids_kept is not None]
    return f"{sum(bool(folder.uids_kept) for folder in known)} of {len(known)}" if known else "-"


def _uids(result: ImportResult) -> str:
    """Return a sentence about UIDs; nothing if the source tells none."""
    new = [folder.name for folder in result.folders if folder.uids_kept is False]
    if _kept(result) == "-":
        return ""
    names = ", ".join(new[:NAMES_SHOWN]) + (" and others" if len(new) > NAMES_SHOWN else "")
    return f"UIDs kept in {_kept(result)} folders" + (f"; mail programs load anew: {names}" if new else "")


def _gone(result: ImportResult) -> str:
    """Return a sentence about mail that is not at both places; nothing if there is none."""
    gone, removed = result.total("gone"), result.total("removed")
    sentences = [f"{gone} gone at the source stay here; --expunge would expunge them"] if gone else []
    sentences += [f"{removed} in folders that were deleted here do not come again"] if removed else []
    return "; ".join(sentences)


def _changes(result: ImportResult) -> str:
    """Return a sentence about what was taken over besides mail."""
    counts = {count: result.total(count) for count in ("reflagged", "expunged", "stayed")}
    if not any(counts.values()):
        return ""
    return (
        f"{counts['reflagged']} with other flags, {counts['expunged']} expunged,"
        f" {counts['stayed']} changed here and left"
    )
