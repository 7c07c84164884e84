"""The import of a user's source: folders are made one after the other, and filled several at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from replicator.cli.api.client import FoundFolder, NodeClient
from replicator.cli.api.connection import RefusedError, UnreachableError
from replicator.cli.importing.folder_import import Advance, FolderImport
from replicator.cli.importing.memory import FolderMemory, ImportMemory
from replicator.cli.importing.results import Failure, FolderResult, ImportResult, StopSign
from replicator.cli.sources import MailSource, SourceError, SourceFolder
from replicator.cli.target import NodeUrl


class MailImport:
    """Imports with a thread per folder, each with its own connection. The lock guards their shared result."""

    def __init__(
        self,
        node: NodeUrl,
        user: str,
        source: MailSource,
        *,
        memory: ImportMemory,
        stop: StopSign,
        at_once: int,
        expunge: bool,
    ) -> None:
        failures = [Failure(name, reason) for name, reason in source.unreadable.items()]
        self.result = ImportResult(failures=failures, notes=[*memory.notes, *source.notes])
        self._node = node
        self._user = user
        self._source = source
        self._memory = memory
        self._stop = stop
        self._at_once = min(at_once, source.readers_max)
        self._expunge = expunge
        self._lock = threading.Lock()

    def run(self, advance: Advance) -> ImportResult:
        """Import everything, calling `advance` as messages are done with. Raises CommandError if it cannot begin.

        On an interrupt, requests under way are finished.
        """
        with NodeClient(self._node) as client:
            known = client.folders(self._user)
            here = [
                FoundFolder(one.name, one.mailbox_id, one.uidvalidity, one.uidnext, one.messages)
                for one in known.folders
            ]
            if not self._memory.begin(here[0].mailbox_id, {one.mailbox_id for one in here}):
                self.result.notes.append("earlier imports were into another cluster, so all mail is compared anew")
            folders = [(folder, made) for folder in self._source.folders if (made := self._made(client, folder, here))]
            self._subscribe(
                client, {*known.stray_subscriptions, *(one.name for one in known.folders if one.subscribed)}
            )
        with ThreadPoolExecutor(self._at_once) as pool:
            try:
                for work in [pool.submit(self._import_folder, folder, made, advance) for folder, made in folders]:
                    work.result()
            except KeyboardInterrupt:
                self._stop.set("interrupted")
        self._remember(self._memory.close)
        self.result.folders.sort(key=lambda folder: folder.name)
        self.result.stopped = self._stop.reason
        return self.result

    def _made(self, client: NodeClient, folder: SourceFolder, here: Sequence[FoundFolder]) -> FoundFolder | None:
        """Return the folder of an earlier import or of this name, which is created if necessary; None: there is none.

        What was renamed here goes on there; what was deleted here is not imported again.
        """
        known = self._memory.folder(folder.name)
        if known is not None and known.uidvalidity == folder.uidvalidity and known.has_mail:
            same = next((one for one in here if one.mailbox_id == known.mailbox_id), None)
            if same is None:
                self._note(f"{folder.name}: was deleted here since an earlier import, so its mail does not come again")
                self.result.folders.append(FolderResult(folder.name, removed=folder.messages))
            elif same.name != folder.name:
                self._note(f"{folder.name}: is {same.name!r} here since an earlier import, and goes on there")
            return same
        same = next((one for one in here if one.name == folder.name), None)
        if same is not None:
            return same
        try:
            return client.make_folder(self._user, folder.name, folder.use)
        except RefusedError as error:
            self.result.failures.append(Failure(folder.at, error.message))
            self.result.folders.append(FolderResult(folder.name, left=folder.messages))
            return None

    def _subscribe(self, client: NodeClient, subscribed: set[str]) -> None:
        """Subscribe to what the user has subscribed to at the source since an earlier import."""
        wanted = {*(self._source.subscriptions or ())} - self._memory.subscriptions
        taken = {*wanted}
        for name in sorted(wanted - subscribed):
            try:
                client.subscribe(self._user, name, subscribed=True)
            except RefusedError as error:
                taken.discard(name)
                self.result.failures.append(Failure(f"the subscription to {name!r}", error.message))
        if taken:
            self._remember(partial(self._memory.keep_subscriptions, taken))

    def _import_folder(self, folder: SourceFolder, here: FoundFolder, advance: Advance) -> None:
        known = self._known(folder, here)
        if known is not None and self._is_unchanged(folder, known):
            kept = None if folder.uidvalidity is None else here.uidvalidity == folder.uidvalidity and not known.moved
            with self._lock:
                unchanged = FolderResult(folder.name, kept, present=folder.messages, gone=known.gone)
                self.result.folders.append(unchanged)
            advance(folder.messages)
            return
        with NodeClient(self._node) as client:
            work = FolderImport(
                client,
                self._user,
                folder,
                here=here,
                known=known,
                keep_memory=lambda memory: self._remember(partial(self._memory.keep_at_times, folder.name, memory)),
                stop=self._stop,
                advance=advance,
                expunge=self._expunge,
            )
            try:
                if not self._stop.reason:
                    self._fill(work, folder)
            finally:
                with self._lock:
                    self.result.folders.append(work.result)
                    self.result.failures += work.failures
                    self.result.notes += work.notes

    def _fill(self, work: FolderImport, folder: SourceFolder) -> None:
        """Import a folder; what was done until an error is remembered."""
        try:
            with self._source.open(folder) as reader:
                work.run(reader)
        except SourceError as error:
            work.failures.append(Failure(folder.name, str(error)))
        except UnreachableError as error:
            self._stop.set(error.message)
        except RefusedError as error:
            work.failures.append(Failure(folder.name, error.message))
        finally:
            self._remember(partial(self._memory.keep, folder.name, work.memory))

    def _remember(self, keep: Callable[[], None]) -> None:
        try:
            keep()
        except OSError as error:
            self._note(f"{error.filename}: {error.strerror}; another import will take longer")

    def _is_unchanged(self, folder: SourceFolder, known: FolderMemory) -> bool:
        """Return True if nothing is to be done."""
        return known.version is not None and known.version == folder.version and not (known.gone and self._expunge)

    def _note(self, text: str) -> None:
        with self._lock:
            self.result.notes.append(text)

    def _known(self, folder: SourceFolder, here: FoundFolder) -> FolderMemory | None:
        """Return what earlier imports have taken, if these are still the same folders."""
        known = self._memory.folder(folder.name)
        same = known and (known.mailbox_id, known.uidvalidity) == (here.mailbox_id, folder.uidvalidity)
        return known if same else None
