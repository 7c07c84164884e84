"""`replicator export`: writes a user's mail as Maildir or mbox, on the machine where the command runs.

Each folder is one request, whose answer is written while it arrives; the command holds a piece of one mail in memory.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import RefusedError, UnreachableError
from replicator.cli.api.mail_stream import MailUnreadableError
from replicator.cli.output import console, echo, echo_json, plain, printable, size, table
from replicator.cli.target import CommandError, node_options, one_node
from replicator.cli.writers import (
    DestinationError,
    FolderWriter,
    MaildirWriter,
    MailWriter,
    MboxWriter,
    fresh_directory,
)
from replicator.mail.mailstore import canonical_name
from replicator.status import FolderCounts

WRITERS: Mapping[str, Callable[[Path], MailWriter]] = {"maildir": MaildirWriter, "mbox": MboxWriter}

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Errors because of which no other folder can be written."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A mail, or with None a folder, that was not written."""

    folder: str
    uid: int | None
    reason: str


@dataclass(slots=True)
class ExportedFolder:
    """A folder that was written. `size_bytes`: of its mail, as the node has it."""

    name: str
    path: str
    messages: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class ExportResult:
    """Outcome of an export. `notes`: what the format could not keep; `stopped`: why it ended early."""

    to: str
    folders: list[ExportedFolder] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stopped: str | None = None


class _Destination(click.ParamType[tuple[str, Path]]):
    """`maildir:DIR` or `mbox:DIR`."""

    name = "maildir:DIR|mbox:DIR"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Path]:
        kind, _, directory = str(value).partition(":")
        if kind.lower() not in WRITERS or not directory:
            self.fail(f"{value!r} is neither maildir:DIR nor mbox:DIR", param, ctx)
        return kind.lower(), Path(directory)


@click.command("export")
@click.argument("user")
@click.option("--to", required=True, type=_Destination(), help="Format, and a new or empty directory.")
@click.option("--mailbox", "mailboxes", multiple=True, help="Only this folder; may be repeated.")
@node_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def export_mail(
    user: str,
    to: tuple[str, Path],
    mailboxes: tuple[str, ...],
    config_file: Path | None,
    url: str | None,
    *,
    as_json: bool,
) -> None:
    """Write the mail of USER into a directory of this machine, from a node that runs.

    maildir:DIR writes a Maildir++ with flags, keywords, received dates and UIDs, as Dovecot has it. mbox:DIR writes an
    mbox for each folder. Line ends become LF. Exit code 1 if anything could not be read or written.
    """
    if not user:
        raise click.UsageError("USER must not be empty")
    kind, directory = to
    with NodeClient(one_node(config_file, url)) as client:
        folders = _chosen(client.folders(user).folders, [canonical_name(name) for name in mailboxes], user)
        try:
            fresh_directory(directory)
        except DestinationError as error:
            raise CommandError(str(error)) from error
        writer = WRITERS[kind](directory)
        exporter = _Exporter(client, user, writer, ExportResult(f"{kind}:{directory}"))
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console(stderr=True), disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task("Exporting", total=sum(folder.messages for folder in folders))
            exporter.run(folders, lambda: progress.advance(task))
    result = exporter.result
    result.notes += writer.notes
    if as_json:
        echo_json(asdict(result))
    else:
        _report(user, result)
    if result.failures or result.stopped:
        raise click.exceptions.Exit(1)


def _chosen(folders: Sequence[FolderCounts], names: Sequence[str], user: str) -> list[FolderCounts]:
    """Return the folders of these names, or all. Raises CommandError if there is no folder of a name."""
    if missing := {*names} - {folder.name for folder in folders}:
        raise CommandError(f"{user} has no folder {min(missing)!r}; `replicator mailbox list` lists all")
    return [folder for folder in folders if not names or folder.name in names]


class _Exporter:
    """Writes folders of a user, one after the other. `result` tells what came of it."""

    def __init__(self, client: NodeClient, user: str, writer: MailWriter, result: ExportResult) -> None:
        self.result = result
        self._client = client
        self._user = user
        self._writer = writer

    def run(self, folders: Sequence[FolderCounts], advance: Callable[[], None]) -> None:
        """Write these folders, calling `advance` after each mail."""
        try:
            for folder in folders:
                self._export(folder, advance)
        except UnreachableError as error:
            self.result.stopped = error.message
        except OSError as error:  # no other folder could be written either
            self.result.stopped = _reason(error)
        except KeyboardInterrupt:
            self.result.stopped = "interrupted"

    def _export(self, folder: FolderCounts, advance: Callable[[], None]) -> None:
        """Write a folder. One that cannot be written, or is gone, is a failure. Raises UnreachableError, OSError."""
        try:
            with self._writer.folder(folder.name, folder.uidvalidity, folder.uidnext) as into:
                self._write_all(folder.name, into, advance)
        except RefusedError as error:
            self.result.failures.append(Failure(folder.name, None, error.detail))
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            self.result.failures.append(Failure(folder.name, None, _reason(error)))

    def _write_all(self, name: str, into: FolderWriter, advance: Callable[[], None]) -> None:
        written = ExportedFolder(name, str(into.path))
        self.result.folders.append(written)
        with closing(self._client.mails(self._user, name)) as mails:
            for mail in mails:
                try:
                    into.write(mail)
                except MailUnreadableError as error:
                    self.result.failures.append(Failure(name, mail.uid, str(error)))
                else:
                    written.messages += 1
                    written.size_bytes += mail.size_bytes
                advance()


def _reason(error: OSError) -> str:
    return f"{error.filename or ''}: {error.strerror}".removeprefix(": ")


def _report(user: str, result: ExportResult) -> None:
    for note in result.notes:
        click.echo(printable(note), err=True)
    for failure in result.failures:
        where = failure.folder if failure.uid is None else f"{failure.folder}, UID {failure.uid}"
        click.echo(printable(f"{where}: {failure.reason}"), err=True)
    made = table(f"Mail of {plain(user)} in {plain(result.to)}", "folder…", ">messages", ">size", "path…")
    for folder in result.folders:
        made.add_row(plain(folder.name), str(folder.messages), size(folder.size_bytes), plain(folder.path))
    messages, size_bytes = sum(one.messages for one in result.folders), sum(one.size_bytes for one in result.folders)
    echo(console(), made, f"{messages} messages ({size(size_bytes)}) written, {len(result.failures)} failures")
    if result.stopped:
        click.echo(f"Error: stopped: {result.stopped}; export into another directory to begin again", err=True)
