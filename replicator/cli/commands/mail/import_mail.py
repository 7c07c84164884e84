"""`replicator import`: imports a Maildir or an mbox into a user's folders, through a running node.

Messages whose content a folder already holds are skipped, so an interrupted import is simply run again. UIDs follow the
order of the source: within a folder they are stored in batches, one after the other. Several folders are imported at
once.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from protocol.units import MIB
from replicator.cli.api.client import NodeClient, SentMessage
from replicator.cli.api.connection import RefusedError, UnreachableError
from replicator.cli.output import console, echo_json
from replicator.cli.sources import MailSource, SourceError, SourceMessage, read_source
from replicator.cli.target import NodeUrl, node_options, one_node
from replicator.mail.mailstore import INBOX, canonical_name

BATCH_MESSAGES, BATCH_BYTES = 64, MIB  # of one request; the node stores them by one entry
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
@node_options
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


class _Read(NamedTuple):
    """A message that has been read, and its text."""

    message: SourceMessage
    text: bytes


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
        batches = self._batches(messages, advance)
        with NodeClient(self._node) as client, ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(next, batches, ())
            while batch := ahead.result():
                ahead = reader.submit(next, batches, ())  # read while the node works
                self._save_all(client, batch, advance)

    def _batches(self, messages: Iterable[SourceMessage], advance: Callable[[], None]) -> Iterator[Sequence[_Read]]:
        """Yield what is to be imported, in batches of one request each, until the import is stopped."""
        batch, size_bytes = list[_Read](), 0
        for message in messages:
            if self.result.stopped:
                return
            text = self._read(message)
            if text is None:
                advance()
                continue
            if batch and (len(batch) == BATCH_MESSAGES or size_bytes + len(text) > BATCH_BYTES):
                yield batch
                batch, size_bytes = [], 0
            batch.append(_Read(message, text))
            size_bytes += len(text)
        if batch:
            yield batch

    def _read(self, message: SourceMessage) -> bytes | None:
        """Return the message's text; None if there is nothing to import."""
        try:
            text = message.text()
        except OSError as error:
            self._fail(message, error.strerror or str(error))
            return None
        if not text:
            with self._lock:
                self.result.empty += 1
            return None
        return None if self._take_present(message.folder, hashlib.sha256(text).hexdigest()) else text

    def _save_all(self, client: NodeClient, batch: Sequence[_Read], advance: Callable[[], None]) -> None:
        """Save the messages by one request or, if the node refuses that, one by one: one of them may be the cause.

        After an error of the node they are not tried again: they may be there.
        """
        if self.result.stopped:
            return
        try:
            self._save(client, batch)
        except RefusedError as error:
            is_full = error.status == HTTPStatus.INSUFFICIENT_STORAGE
            if len(batch) > 1 and (is_full or error.status < HTTPStatus.INTERNAL_SERVER_ERROR):
                for one in batch:
                    self._save_all(client, [one], advance)
                return
            self._fail_all(batch, error.message)
            if is_full:
                self._stop(error.message)
        except UnreachableError as error:
            self._fail_all(batch, error.message)
            self._stop(error.message)
        else:
            with self._lock:
                self.result.imported += len(batch)
        for _ in batch:
            advance()

    def _save(self, client: NodeClient, batch: Sequence[_Read]) -> None:
        folder = batch[0].message.folder
        messages = [SentMessage(text, message.flags, message.received_ms) for message, text in batch]
        if len(messages) == 1:
            client.save(self._user, folder, messages[0])
        else:
            client.save_all(self._user, folder, messages)

    def _fail_all(self, batch: Sequence[_Read], reason: str) -> None:
        for one in batch:
            self._fail(one.message, reason)

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
