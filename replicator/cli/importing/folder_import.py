"""The import of one folder: its numbers, its messages in batches, and what has changed at the source since.

Where the folder is new here, it gets the source's UIDVALIDITY, a HIGHESTMODSEQ above all that clients know, the mail
under its UIDs in their order, and at last the source's UIDNEXT; so clients go on with what they have. Mail without a
UID at the source comes after that. A folder that has mail of its own gets the mail under new UIDs. So does one in which
mail has come by another way since an earlier import, under a UID that names another mail at the source: then clients
must not go on with what they have, and the folder gets a UIDVALIDITY of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus

from protocol.units import MIB
from protocol.values import UidSet
from replicator.cli.api.client import FoundFolder, NodeClient, SentMessage
from replicator.cli.api.connection import RefusedError, UnreachableError
from replicator.cli.importing.memory import FolderMemory
from replicator.cli.importing.results import Failure, FolderResult, StopSign
from replicator.cli.importing.taking_over import TakingOver
from replicator.cli.sources import FolderReader, Listing, ReadMessage, SourceFolder, SourceMessage
from replicator.mail.flags import SYSTEM_FLAGS, is_keyword

BATCH_MESSAGES, BATCH_BYTES = 64, MIB  # of one request; the node stores them by one entry
_SYSTEM = frozenset(flag.lower() for flag in SYSTEM_FLAGS)

Advance = Callable[[int], None]
"""Called with a number of messages that are done with."""


class FolderImport:
    """The import of one folder into `here`, by one thread, until the stop sign of the whole import is set.

    `failures`, `notes` and `memory` grow meanwhile: they hold what has been done, whatever comes next.
    """

    def __init__(
        self,
        client: NodeClient,
        user: str,
        folder: SourceFolder,
        *,
        here: FoundFolder,
        known: FolderMemory | None,
        keep_memory: Callable[[FolderMemory], None],
        stop: StopSign,
        advance: Advance,
    ) -> None:
        self.result = FolderResult(folder.name, left=folder.messages)
        self.failures: list[Failure] = []
        self.notes: list[str] = []
        self.memory = known or FolderMemory(here.mailbox_id, folder.uidvalidity)
        self._is_known = known is not None
        self._keep_memory = keep_memory  # from time to time
        self._stop_all, self._stop = stop, StopSign(stop)
        self._client = client
        self._user = user
        self._folder = folder
        self._here = here
        self._advance = advance
        self._keeps = False  # whether mail has the UIDs of the source here
        self._contents: dict[str, list[int]] = {}
        self._uids_here = self._uids_there = frozenset[int]()
        self._refused_flags = set[str]()

    def run(self, reader: FolderReader) -> None:
        """Import everything. Raises SourceError, UnreachableError, RefusedError."""
        try:
            self._run(reader)
        finally:
            if self._folder.uidvalidity is not None:
                self.result.uids_kept = self._keeps and not self.memory.moved

    def _run(self, reader: FolderReader) -> None:
        listing = reader.listing(self.memory.highestmodseq)
        self._uids_there = frozenset(listing.uids or ())
        new = [message for message in listing.messages if message.uid is None or message.uid not in self.memory.taken]
        self.result.present = max(0, self._folder.messages - len(new))
        self.result.left = len(new)
        self._advance(self.result.present)
        if new or self._is_known:
            self._contents = self._client.contents(self._user, self._folder.name)
            self._uids_here = frozenset(uid for uids in self._contents.values() for uid in uids)
        self._keeps = self._keep_numbers()
        self._save_all(reader, [message for message in new if message.uid is not None])
        self._check_foreign()
        self._raise_uidnext(listing)
        self._save_all(reader, [message for message in new if message.uid is None])
        if self._keeps and self._is_known and listing.uids is not None and not self._stop.reason:
            self._take_over(listing, listing.uids)
        self._end(listing)

    def _raise_uidnext(self, listing: Listing) -> None:
        """Raise UIDNEXT above all UIDs of the source; more mail may have come since it was looked at."""
        if not self._keeps or self._folder.uidnext is None or self._stop.reason:
            return
        newest = listing.uids.ranges[-1][1] if listing.uids else 0
        try:
            self._client.raise_numbers(self._user, self._folder.name, max(self._folder.uidnext, newest + 1), 0)
        except RefusedError as error:
            if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            self._give_up_uids(error.detail)

    def _keep_numbers(self) -> bool:
        """Return True if mail has the UIDs of the source here; give an empty folder its numbers."""
        wanted = self._folder.uidvalidity
        if wanted is None:
            return False
        if self._here.uidvalidity != wanted and self._here.messages:
            self.notes.append(f"{self._folder.name}: has had mail here, so what comes gets new UIDs")
            return False
        try:
            if self._here.uidvalidity != wanted:
                uidvalidity = self._client.keep_uidvalidity(self._user, self._folder.name, wanted)
                self._here = replace(self._here, uidvalidity=uidvalidity)
        except RefusedError as error:
            if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            self.notes.append(f"{self._folder.name}: gets new UIDs: {error.detail}")
            return False
        self._raise_modseq()
        return True

    def _raise_modseq(self) -> None:
        """Raise HIGHESTMODSEQ to that of the source, before anything changes here that its clients are to hear of."""
        if self._folder.highestmodseq is None:
            return
        try:
            self._client.raise_numbers(self._user, self._folder.name, 1, self._folder.highestmodseq)
        except RefusedError as error:
            if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            # So high that none here will ever reach it: a client that knows it is told everything, each time.
            self.notes.append(f"{self._folder.name}: HIGHESTMODSEQ is not kept: {error.detail}")

    def _save_all(self, reader: FolderReader, messages: Sequence[SourceMessage]) -> None:
        """Save messages in their order, reading ahead while the node works."""
        batches = self._batches(reader, messages)
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(next, batches, ())
            while batch := coming.result():
                coming = ahead.submit(next, batches, ())
                if new := [read for read in batch if self._is_to_save(read)]:
                    self._save(new)

    def _batches(self, reader: FolderReader, messages: Iterable[SourceMessage]) -> Iterator[Sequence[ReadMessage]]:
        """Yield messages in batches of one request each, until the import is stopped."""
        batch, size_bytes = list[ReadMessage](), 0
        for read in reader.texts(messages):
            if self._stop.reason:
                return
            if batch and (len(batch) == BATCH_MESSAGES or size_bytes + len(read.text) > BATCH_BYTES):
                yield batch
                batch, size_bytes = [], 0
            batch.append(read)
            size_bytes += len(read.text)
        if batch:
            yield batch

    def _is_to_save(self, read: ReadMessage) -> bool:
        """Return True for a message with a text that the folder does not hold; count others."""
        if read.error is not None:
            self._fail([read], read.error)
        elif not read.text:
            self.result.empty += 1
            self._done([read])
        elif (uid := self._present(read)) is not None:
            self.result.present += 1
            self._remember(read.message, None, uid)
            self._done([read])
        else:
            return True
        return False

    def _present(self, read: ReadMessage) -> int | None:
        """Return the UID of a copy of this content in the folder that no other message of the source is."""
        for text in (read.text, read.former):
            uids = (
                [] if text is None or not self._contents else self._contents.get(hashlib.sha256(text).hexdigest(), [])
            )
            for at, uid in enumerate(uids):
                if uid == read.message.uid or not self._keeps or uid not in self._uids_there:
                    return uids.pop(at)
        return None

    def _save(self, batch: Sequence[ReadMessage]) -> None:
        """Save the messages by one request or, if the node refuses that, one by one: one of them may be the cause.

        After an error of the node they are not tried again: they may be there. Where UIDs are kept, those after them
        wait for another import, too: UIDs can only rise.
        """
        if self._stop.reason:
            return
        new = [self._new_mail(read) for read in batch]
        try:
            uids = self._client.save_all(self._user, self._folder.name, new)
        except RefusedError as error:
            is_full = error.status == HTTPStatus.INSUFFICIENT_STORAGE
            if len(batch) > 1 and (is_full or error.status < HTTPStatus.INTERNAL_SERVER_ERROR):
                for one in batch:
                    self._save([one])
                return
            if error.status == HTTPStatus.CONFLICT and (bare := _without_keywords(batch[0])) != batch[0]:
                self._save([bare])  # mail is worth more than its keywords, of which a folder may have too many
                self.failures.append(Failure(bare.message.name, f"imported without its keywords: {error.detail}"))
                return
            self._fail(batch, error.message)
            if is_full:
                self._stop_all.set(error.message)
            elif self._keeps and error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                self._stop.set(error.message)
        except UnreachableError as error:
            self._fail(batch, error.message)
            self._stop_all.set(error.message)
        else:
            self.result.imported += len(batch)
            for mail, read, uid in zip(new, batch, uids, strict=True):
                self._remember(read.message, mail.flags, uid)
            self._done(batch)
        self._keep_memory(self.memory)

    def _new_mail(self, read: ReadMessage) -> SentMessage:
        message, flags = read.message, _settable(read.message.flags)
        for flag in sorted(message.flags - flags - self._refused_flags):
            self.failures.append(Failure(self._folder.name, f"the flag {flag!r} is left out: no flag of IMAP"))
        self._refused_flags |= message.flags - flags
        return SentMessage(read.text, flags, message.received_ms, message.uid if self._keeps else None)

    def _take_over(self, listing: Listing, uids: UidSet) -> None:
        """Make flags and expunges of the source since the last import here, where nobody has changed the mail."""
        flags = {one.uid: _settable(one.flags) for one in listing.messages if one.uid is not None}
        if not uids and self.memory.flags:
            self.notes.append(f"{self._folder.name}: is empty at the source now; what was imported before stays here")
            return
        TakingOver(self._client, self._user, self._here, self.memory, self.result).run(flags, uids)

    def _remember(self, message: SourceMessage, flags: frozenset[str] | None, uid: int | None) -> None:
        """Remember that a message is here under this UID, and the flags that both sides have, if they are known."""
        if message.uid is None:  # no client has seen it yet
            return
        self.memory.taken.add(message.uid)
        if self._keeps and uid == message.uid:
            if flags is not None:
                self.memory.flags[uid] = flags
            return
        self.memory.moved += 1
        # A UID that another import has passed over, since the mail could not be imported, names nothing here.
        if self._keeps and (message.uid in self._uids_here or message.uid >= self._here.uidnext):
            self._give_up_uids(f"other mail has come under UID {message.uid} here")

    def _check_foreign(self) -> None:
        """Give the UIDs up if mail that has come by another way has one that named other mail at the source."""
        if not (self._keeps and self._is_known) or self._stop.reason:
            return
        below = self._folder.uidnext or 0
        foreign = [uid for uid in self._uids_here if uid < below and uid not in self.memory.taken]
        if foreign:
            self._give_up_uids(f"other mail has come under UID {min(foreign)} here")

    def _give_up_uids(self, why: str) -> None:
        """Give the folder a UIDVALIDITY of its own, since a UID might name different mails here and at the source."""
        self._client.keep_uidvalidity(self._user, self._folder.name, None)
        self._keeps = False
        self.notes.append(f"{self._folder.name}: mail programs load it anew, because {why}")

    def _end(self, listing: Listing) -> None:
        """Remember what another import may leave out, unless this one has left something out."""
        is_whole = not (self.failures or self.result.left)
        self.memory.version = self._folder.version if is_whole else None
        self.memory.highestmodseq = self._folder.highestmodseq if is_whole and listing.uids is not None else None

    def _fail(self, batch: Sequence[ReadMessage], reason: str) -> None:
        self.failures += [Failure(one.message.name, reason) for one in batch]
        self.result.failed += len(batch)
        self._done(batch)

    def _done(self, batch: Sequence[ReadMessage]) -> None:
        self.result.left -= len(batch)
        self._advance(len(batch))


def _settable(flags: frozenset[str]) -> frozenset[str]:
    """Return the flags without those that no client could set here."""
    return frozenset(flag for flag in flags if flag.lower() in _SYSTEM or is_keyword(flag))


def _without_keywords(read: ReadMessage) -> ReadMessage:
    flags = frozenset(flag for flag in read.message.flags if flag.lower() in _SYSTEM)
    return read._replace(message=replace(read.message, flags=flags))
