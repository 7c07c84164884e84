"""The import of one folder: its numbers, its messages in batches, and what has changed at the source since.

Where the folder is new here, it keeps the source's numbers, as `numbers` says: the mail comes under its UIDs in their
order, and mail without a UID at the source after that. A folder that has mail of its own gets the mail under new UIDs.
So does one in which mail has come by another way, under a UID that names another mail at the source: then clients must
not go on with what they have, and the folder gets a UIDVALIDITY of its own. Flags go on being taken over there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus

from protocol.units import MIB
from protocol.values import UID_MAX, UidSet
from replicator.cli.api.client import FoundFolder, NodeClient, SentMessage
from replicator.cli.api.connection import RefusedError, UnreachableError
from replicator.cli.importing.guids import Guids
from replicator.cli.importing.matching import Matching
from replicator.cli.importing.memory import FolderMemory
from replicator.cli.importing.numbers import Numbers
from replicator.cli.importing.results import Failure, FolderResult, StopSign
from replicator.cli.importing.taking_over import TakingOver
from replicator.cli.sources import FolderReader, Listing, ReadMessage, SourceFolder, SourceMessage
from replicator.mail.flags import MAX_KEYWORDS, SYSTEM_FLAGS, is_keyword

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
        expunge: bool,
    ) -> None:
        self.result = FolderResult(folder.name, left=folder.messages)
        self.failures: list[Failure] = []
        self.notes: list[str] = []
        self.memory = known or FolderMemory(here.mailbox_id, folder.uidvalidity, here.uidvalidity)
        self._is_first = not self.memory.taken
        self._keep_memory = keep_memory  # from time to time
        self._stop_all, self._stop = stop, StopSign(stop)
        self._client = client
        self._user = user
        self._folder = folder
        self._here = here
        self._advance = advance
        self._expunge = expunge
        self._numbers = Numbers(client, user, here, folder, self._note)
        self._matching = Matching((), (), ())
        self._guids = Guids((), ())
        self._refused_flags = set[str]()

    def run(self, reader: FolderReader) -> None:
        """Import everything. Raises SourceError, UnreachableError, RefusedError."""
        try:
            self._run(reader)
        finally:
            self.memory.uidvalidity_here = self._numbers.here.uidvalidity
            if self._folder.uidvalidity is not None:
                self.result.uids_kept = self._numbers.are_kept and not self.memory.moved

    def _run(self, reader: FolderReader) -> None:
        self._forget_other_uids()
        since = self._since()
        self.memory.version = self.memory.highestmodseq = None  # until all is done
        listing = reader.listing(since, self.memory.taken - self.memory.expunged)
        new = self._new(listing)
        if new:
            contents = self._client.contents(self._user, self._here.name)
            taken = {*self.memory.flags, *(uid for uid, _ in self.memory.unnumbered.values())}
            self._matching = Matching(contents, taken, self._named(listing))
            self._guids = Guids(contents, self.memory.taken)
        self._numbers.keep(is_first=self._is_first)
        if not self._numbers.are_kept or self.memory.moved:
            self._guids.give_up()
        new = [message for message in new if not self._has_been_unnumbered(message)]
        self._save_all(reader, [message for message in new if message.uid is not None])
        if not self._stop.reason:
            self._numbers.raise_uidnext(listing.uids)
            self._check_foreign(listing)
        self._save_all(reader, [message for message in new if message.uid is None])
        if not self._stop.reason and not self._is_first and listing.uids is not None:
            self._take_over(listing, listing.uids)
        if not (self._stop.reason or self.failures or self.result.left):
            self.memory.version = self._folder.version
            self.memory.highestmodseq = self._folder.highestmodseq if listing.uids is not None else None

    def _since(self) -> int | None:
        """Return the HIGHESTMODSEQ of the last import; None if the source counts anew since, as with a new index."""
        since, now = self.memory.highestmodseq, self._folder.highestmodseq
        return since if since is not None and now is not None and since <= now else None

    def _new(self, listing: Listing) -> Sequence[SourceMessage]:
        """Return what no import has taken, or what one has expunged here and is at the source again."""
        again = {uid for uid in self.memory.expunged if listing.uids is not None and uid in listing.uids}
        self.memory.expunged -= again
        self.memory.taken -= again
        new = [one for one in listing.messages if one.uid is None or one.uid not in self.memory.taken]
        self.result.present = sum(uid in self.memory.taken for uid in listing.uids or ())
        self.result.left = len(new)
        self._advance(self.result.present)
        return new

    def _named(self, listing: Listing) -> frozenset[int]:
        """Return the UIDs that may name other mails at the source than here."""
        return frozenset(listing.uids or () if self._here.uidvalidity == self._folder.uidvalidity else ())

    def _forget_other_uids(self) -> None:
        """Forget which UIDs earlier imports have given, if the folder has got another UIDVALIDITY since."""
        if self.memory.uidvalidity_here != self._here.uidvalidity:
            self.memory.flags.clear()
            self.memory.unnumbered.clear()

    def _has_been_unnumbered(self, message: SourceMessage) -> bool:
        """Return True for mail that an earlier import took before it had a UID; remember the one that it has now."""
        uid_and_flags = self.memory.unnumbered.get(message.key) if message.key is not None else None
        if uid_and_flags is None:
            return False
        if message.uid is not None:
            uid, flags = uid_and_flags
            del self.memory.unnumbered[message.key or ""]
            self._remember(message, flags, uid)
        self.result.present += 1
        self.result.left -= 1
        self._advance(1)
        return True

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
            self._guids.give_up()
            self._done([read])
        elif (uid := self._matching.uid_of(read)) is not None:
            self.result.present += 1
            self._remember(read.message, None, uid)
            self._done([read])
        else:
            return True
        return False

    def _save(self, batch: Sequence[ReadMessage]) -> None:
        """Save the messages by one request or, if the node refuses that, one by one: one of them may be the cause.

        After an error of the node they are not tried again: they may be there. Where UIDs are kept, those after them
        wait for another import, too: UIDs can only rise.
        """
        if self._stop.reason:
            return
        new = [self._new_mail(read) for read in batch]
        try:
            uids = self._client.save_all(self._user, self._here.name, new)
        except RefusedError as error:
            self._guids.put_back(mail.guid for mail in new)
            is_full = error.status == HTTPStatus.INSUFFICIENT_STORAGE
            if len(batch) > 1 and (is_full or error.status < HTTPStatus.INTERNAL_SERVER_ERROR):
                for one in batch:
                    self._save([one])
                return
            if error.status == HTTPStatus.CONFLICT and (bare := _without_keywords(batch[0])) != batch[0]:
                self._save([bare])  # mail is worth more than its keywords, of which a folder may have too many
                self.notes.append(f"{bare.message.name}: imported without its keywords: {error.detail}")
                return
            self._fail(batch, error.message)
            if is_full:
                self._stop_all.set(error.message)
            elif self._numbers.are_kept and error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
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
            why = f"more than {MAX_KEYWORDS} keywords" if is_keyword(flag) else "no flag of IMAP"
            self._note(f"the flag {flag!r} is left out: {why}")
        self._refused_flags |= message.flags - flags
        uid = message.uid if self._numbers.are_kept else None
        if uid is not None and uid < self._here.uidnext:
            self._guids.give_up()  # it gets another UID
        guid = self._guids.use(message.guid, uid or UID_MAX)
        return SentMessage(read.text, flags, message.received_ms, uid, guid)

    def _take_over(self, listing: Listing, uids: UidSet) -> None:
        """Make flags of the source here, and expunges if they are asked for, where nobody has changed the mail."""
        flags = {one.uid: _settable(one.flags) for one in listing.messages if one.uid is not None}
        work = TakingOver(
            self._client,
            self._user,
            self._numbers.here,
            memory=self.memory,
            result=self.result,
            failures=self.failures,
        )
        work.take_flags(flags, uids)
        gone = {uid for uid in self.memory.flags if uid not in uids}
        if gone and self._expunge and len(gone) * 2 > len(self.memory.flags):
            reason = f"nothing is expunged: {len(gone)} of {len(self.memory.flags)} mails are gone at the source"
            self.failures.append(Failure(self._folder.name, f"{reason}, more than half; is it whole?"))
        elif self._expunge:
            gone.difference_update(work.expunge(gone))
        self.memory.gone = self.result.gone = len(gone)

    def _remember(self, message: SourceMessage, flags: frozenset[str] | None, uid: int | None) -> None:
        """Remember that a message is here under this UID, and the flags that both sides have, if they are known."""
        if message.uid is None:  # no client has seen it yet
            if message.key is not None and uid is not None and flags is not None and self._numbers.are_kept:
                self.memory.unnumbered[message.key] = uid, flags
            return
        self.memory.taken.add(message.uid)
        if self._numbers.are_kept and uid == message.uid:
            if flags is not None:
                self.memory.flags[uid] = flags
            return
        self.memory.moved += 1
        self._guids.give_up()
        # A UID that another import has passed over, since the mail could not be imported, names nothing here.
        if self._numbers.are_kept and (message.uid in self._matching.uids_here or message.uid >= self._here.uidnext):
            self._numbers.give_up(f"other mail has come under UID {message.uid} here")

    def _check_foreign(self, listing: Listing) -> None:
        """Give the UIDs up if mail that has come by another way has one that named other mail at the source.

        What comes from now on gets UIDs above all those of the source.
        """
        if not self._numbers.are_kept:
            return
        below = self._numbers.uidnext_there(listing.uids)
        mails = self._client.contents(self._user, self._here.name)
        foreign = [mail.uid for mail in mails if mail.uid < below and mail.uid not in self.memory.taken]
        if foreign:
            self._numbers.give_up(f"other mail has come under UID {min(foreign)} here")

    def _note(self, text: str) -> None:
        self.notes.append(f"{self._folder.name}: {text}")

    def _fail(self, batch: Sequence[ReadMessage], reason: str) -> None:
        self._guids.give_up()
        self.failures += [Failure(one.message.name, reason) for one in batch]
        self.result.failed += len(batch)
        self._done(batch)

    def _done(self, batch: Sequence[ReadMessage]) -> None:
        self.result.left -= len(batch)
        self._advance(len(batch))


def _settable(flags: frozenset[str]) -> frozenset[str]:
    """Return the flags without those that no client could set here, and as many keywords as a folder can have."""
    keywords = sorted(flag for flag in flags if is_keyword(flag))[:MAX_KEYWORDS]
    return frozenset([*keywords, *(flag for flag in flags if flag.lower() in _SYSTEM)])


def _without_keywords(read: ReadMessage) -> ReadMessage:
    flags = frozenset(flag for flag in read.message.flags if flag.lower() in _SYSTEM)
    return read._replace(message=replace(read.message, flags=flags))
