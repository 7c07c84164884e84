"""`replicator import`: imports a Maildir or an mbox into a user's folders, through a running node.

Messages whose content a folder already holds are skipped, so an interrupted import is simply run again. UIDs follow the
order of the source: within a folder messages are stored one by one; several folders are imported at once.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from replicator.cli.client import NodeClient, RefusedError, UnreachableError
from replicator.cli.output import console, echo_json
from replicator.cli.sources import MailSource, SourceError, SourceMessage, read_source
from replicator.cli.target import NodeUrl, one_node, token_option
from replicator.mailstore import INBOX, canonical_name

FOLDERS_AT_ONCE = 8  # a node takes as many messages by HTTP at once; they share its fsyncs


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that was not imported."""

    message: str
    reason: str


@dataclass(slots=True)
class ImportResult:
    """Counts of messages. `empty`: without content, skipped. `stopped`: the reason of an early end."""

    imported: int = 0
    present: int = 0
    empty: int = 0
    failures: list[Failure] = field(default_factory=list)
    stopped: str | None = None


@click.command("import")
@click.argument("user")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--mailbox", default=INBOX, show_default=True, help="The folder for the mail; created if necessary.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="The node's configuration.")
@click.option("--url", help="The node's address, such as http://127.0.0.1:1080.")
@token_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def import_mail(
    user: str, path: Path, mailbox: str, config_file: Path | None, url: str | None, *, as_json: bool
) -> None:
    """Import the Maildir or mbox at PATH into USER's mailbox.

    Subfolders of a Maildir become folders. Flags, dates and order are kept (a Maildir is ordered by date). Messages
    that the folder already holds are skipped, so an import can be repeated; so are messages without content. Exit code
    1 if any message could not be imported.
    """
    node = one_node(config_file, url)
    try:
        source = read_source(path, canonical_name(mailbox))
    except SourceError as error:
        raise click.UsageError(str(error)) from error
    result = run_import(node, user, source)
    for failure in result.failures:
        click.echo(f"{failure.message}: {failure.reason}", err=True)
    _report(result, len(source.messages), as_json=as_json)
    if result.stopped or result.failures:
        raise click.exceptions.Exit(1)


def run_import(node: NodeUrl, user: str, source: MailSource) -> ImportResult:
    """Import everything. Raises CommandError if the import cannot begin."""
    present: dict[str, Counter[str]] = {}
    with NodeClient(node) as client:
        for folder in source.folders:
            client.make_folder(user, folder)
            present[folder] = client.contents(user, folder)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("Importing", total=len(source.messages))
        importer = _Importer(node, user, present)
        importer.run(source.messages, lambda: progress.advance(task))
    return importer.result


class _Importer:
    """Imports with a thread per folder, each with its own connection. The lock guards their shared state."""

    def __init__(self, node: NodeUrl, user: str, present: dict[str, Counter[str]]) -> None:
        self.result = ImportResult()
        self._node = node
        self._user = user
        self._present = present
        self._lock = threading.Lock()

    def run(self, messages: Sequence[SourceMessage], advance: Callable[[], None]) -> None:
        """Import all messages, calling `advance` after each. On an interrupt, messages under way are finished."""
        folders: dict[str, list[SourceMessage]] = {}
        for message in messages:
            folders.setdefault(message.folder, []).append(message)
        with ThreadPoolExecutor(FOLDERS_AT_ONCE) as pool:
            try:
                for work in [pool.submit(self._import_folder, folder, advance) for folder in folders.values()]:
                    work.result()
            except KeyboardInterrupt:
                self._stop("interrupted")

    def _import_folder(self, messages: Sequence[SourceMessage], advance: Callable[[], None]) -> None:
        with NodeClient(self._node) as client:
            for message in messages:
                if self.result.stopped:
                    return
                self._import(client, message)
                advance()

    def _import(self, client: NodeClient, message: SourceMessage) -> None:
        try:
            text = message.text()
            if not text:
                with self._lock:
                    self.result.empty += 1
                return
            if self._take_present(message.folder, hashlib.sha256(text).hexdigest()):
                return
            client.save(self._user, message.folder, text, message.flags, message.received_ms)
        except OSError as error:
            self._fail(message, error.strerror or str(error))
        except RefusedError as error:
            self._fail(message, error.message)
            if error.status == HTTPStatus.INSUFFICIENT_STORAGE:
                self._stop(error.message)
        except UnreachableError as error:
            self._fail(message, error.message)
            self._stop(error.message)
        else:
            with self._lock:
                self.result.imported += 1

    def _take_present(self, folder: str, sha256: str) -> bool:
        """Return True if the folder holds another copy of this content, and count it as used."""
        with self._lock:
            if self._present[folder][sha256] == 0:
                return False
            self._present[folder][sha256] -= 1
            self.result.present += 1
            return True

    def _fail(self, message: SourceMessage, reason: str) -> None:
        with self._lock:
            self.result.failures.append(Failure(message.name, reason))

    def _stop(self, reason: str) -> None:
        with self._lock:
            self.result.stopped = self.result.stopped or reason


def _report(result: ImportResult, total: int, *, as_json: bool) -> None:
    failed = len(result.failures)
    left = total - result.imported - result.present - result.empty - failed
    if as_json:
        echo_json({**asdict(result), "left": left})
        return
    counts = f"{result.imported} imported, {result.present} already there, {result.empty} empty and skipped"
    click.echo(f"{counts}, {failed} failed, {left} not tried")
    if result.stopped:
        click.echo(f"Error: stopped: {result.stopped}; run the import again to continue", err=True)
