"""`replicator import`: mail from a Maildir or an mbox into a user's folders, through a running node.

What a folder holds already, by content, is left out, so an import that was interrupted is simply run again.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from replicator.cli.client import NodeClient, RefusedError, UnreachableError
from replicator.cli.output import console, echo_json
from replicator.cli.sources import MailSource, SourceError, SourceMessage, read_source
from replicator.cli.target import NodeUrl, one_node
from replicator.mailstore import INBOX

IN_FLIGHT = 8  # as many messages as a node takes by HTTP at once; they share its fsyncs


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that was not imported."""

    message: str
    reason: str


@dataclass(slots=True)
class ImportResult:
    """Counts of messages. `stopped`: why the import ended before its end."""

    imported: int = 0
    present: int = 0
    failures: list[Failure] = field(default_factory=list)
    stopped: str | None = None


@click.command("import")
@click.argument("user")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--mailbox", default=INBOX, show_default=True, help="The folder for the mail; made if need be.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="The node's configuration.")
@click.option("--url", help="The node's address, http://127.0.0.1:1080.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def import_mail(
    user: str, path: Path, mailbox: str, config_file: Path | None, url: str | None, *, as_json: bool
) -> None:
    """Import the Maildir or mbox at PATH into USER's mailbox.

    Subfolders of a Maildir become folders; flags and dates are kept. Mail that is there already is left out, so an
    import can be repeated. Exit code 1 if any message could not be imported.
    """
    node = one_node(config_file, url)
    try:
        source = read_source(path, mailbox)
    except SourceError as error:
        raise click.UsageError(str(error)) from error
    result = run_import(node, user, source)
    for failure in result.failures:
        click.echo(f"{failure.message}: {failure.reason}", err=True)
    _report(result, len(source.messages), as_json=as_json)
    if result.stopped or result.failures:
        raise click.exceptions.Exit(1)


def run_import(node: NodeUrl, user: str, source: MailSource) -> ImportResult:
    """Import everything. Raises CommandError if that cannot even begin."""
    present: dict[str, Counter[str]] = {}
    with NodeClient(node) as client:
        for folder in source.folders:
            client.make_folder(user, folder)
            present[folder] = client.contents(user, folder)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("Importing", total=len(source.messages))
        importer = _Importer(node, user, present, source.messages)
        importer.run(lambda: progress.advance(task))
    return importer.result


class _Importer:
    """Several threads, each with a connection of its own, take messages in their order. The lock guards the rest."""

    def __init__(
        self, node: NodeUrl, user: str, present: dict[str, Counter[str]], messages: Sequence[SourceMessage]
    ) -> None:
        self.result = ImportResult()
        self._node = node
        self._user = user
        self._present = present
        self._messages: Iterator[SourceMessage] = iter(messages)
        self._lock = threading.Lock()

    def run(self, advance: Callable[[], None]) -> None:
        """Import all, calling `advance` after each message. An interrupt ends it after those that are under way."""
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            try:
                for work in [pool.submit(self._work, advance) for _ in range(IN_FLIGHT)]:
                    work.result()
            except KeyboardInterrupt:
                self._stop("interrupted")

    def _work(self, advance: Callable[[], None]) -> None:
        with NodeClient(self._node) as client:
            while (message := self._take()) is not None:
                self._import(client, message)
                advance()

    def _take(self) -> SourceMessage | None:
        with self._lock:
            return None if self.result.stopped else next(self._messages, None)

    def _import(self, client: NodeClient, message: SourceMessage) -> None:
        try:
            text = message.text()
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
        """Whether the folder has this content, once more than was already met."""
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
    left = total - result.imported - result.present - failed
    if as_json:
        echo_json({**asdict(result), "left": left})
        return
    click.echo(f"{result.imported} imported, {result.present} there already, {failed} failed, {left} not tried")
    if result.stopped:
        click.echo(f"Error: stopped: {result.stopped}; import again to go on where it ended", err=True)
