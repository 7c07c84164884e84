"""One mailbox of this node during a sync: `replica.ReplicaMailbox` over the mail store."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from itertools import chain
from operator import itemgetter

import trio

from protocol.units import KIB, MIB
from protocol.values import Dot, UidSet
from replicator.dsync.node_mail.attribute_keys import key_of, name_of
from replicator.dsync.node_mail.kept_keywords import KeptKeywords
from replicator.dsync.node_mail.known_uids import knows_all
from replicator.dsync.node_mail.last_syncs import NO_UIDS, LastSync, annotated
from replicator.dsync.node_mail.read_mails import AT_ONCE, ReadMails, in_parts
from replicator.dsync.node_mail.this_sync import ThisSync
from replicator.dsync.replica import SavedAs
from replicator.dsync.rules.mails.flags import FlagChanges, interned
from replicator.dsync.wire.items import Attribute, Mailbox
from replicator.errors import FolderExistsError, InvalidNameError, MailboxFullError, UnavailableError
from replicator.mail.compact_uids import CompactUids
from replicator.mail.flags import SYSTEM_FLAGS, keywords
from replicator.mail.guids_by_uid import GuidsByUid
from replicator.mail.last_changes import AnnotationChange, FlagChange
from replicator.mail.listing import ListedMessage, Listing
from replicator.mail.mailstore import (
    ANY_DOVECOT,
    INBOX,
    CoreMailStore,
    Folder,
    FolderStatus,
    NewMessage,
    ReceivedBody,
)
from replicator.mail.scratch import Scratch
from replicator.mail.view import MailboxView

log = logging.getLogger(__name__)

SMALL_BYTES = 64 * KIB
"""Largest mail that is held in memory, to be saved together with others."""

BATCH_BYTES = MIB
BATCH_MAX = 64
"""Mails saved together: each time waits for disks."""

_SYSTEM_FLAGS = frozenset(SYSTEM_FLAGS)


async def with_uidvalidity(mail: CoreMailStore, folder: Folder, uidvalidity: int) -> Folder:
    """Return a new folder with this UIDVALIDITY if it may have it, or else as it is."""
    if folder.uidvalidity == uidvalidity:
        return folder
    try:
        return await mail.keep_uidvalidity(folder, uidvalidity)
    except (FolderExistsError, InvalidNameError):
        return folder


class MailReplicaMailbox:
    """One mailbox during a sync.

    `began`: as this sync began. `names`: its GUID, and the peer's name. `syncs`: the one before, if it is known, and
    what is known of this one. `remembered`: this one, once it has ended.
    """

    def __init__(
        self,
        mail: CoreMailStore,
        began: FolderStatus,
        names: tuple[bytes, str],
        syncs: tuple[LastSync | None, LastSync],
        scratch: Scratch,
    ) -> None:
        self.scratch = scratch
        self._mail = mail
        self._folder = began.folder
        self._guid, self._peer = names
        self._last_sync, beginning = syncs
        self._this_sync = ThisSync(beginning)
        self.remembered: LastSync | None = None
        self._uidnext = began.uidnext  # as this sync began
        self._read = ReadMails(mail, began.folder, scratch)
        self._is_by_state = False  # only what has changed since the last sync is read
        self._relied_on: Dot | None = None  # the mailbox's head as a state was found to tell all
        self._batch: list[NewMessage] = []
        self._batch_bytes = 0
        self._keywords: KeptKeywords | None = None  # once a mail is to have some

    async def numbers(self) -> Mailbox:
        """See `ReplicaMailbox`."""
        await self._save_batch()
        now = await self._mail.status(self._folder)
        modseq = max(now.highestmodseq, 1)
        return Mailbox(self._guid, self._folder.uidvalidity, now.uidnext, now.messages, now.uidnext, modseq)

    async def mails(self) -> Listing:
        """See `ReplicaMailbox`."""
        await self._save_batch()
        return await self._read.all()

    async def changed(self, above_uid: int, above_modseq: int) -> Listing:
        """See `ReplicaMailbox`."""
        await self._save_batch()
        found = await self._read.changed(above_uid, above_modseq)
        await self._check_reliance()
        return found

    async def above(self, uid: int) -> Listing:
        """See `ReplicaMailbox`."""
        await self._save_batch()
        return await self._read.above(uid)

    async def named(self, uids: CompactUids, guids: Collection[bytes]) -> Listing:
        """See `ReplicaMailbox`."""
        await self._save_batch()
        of_guids = await self._mail.uids_of(self._folder, guids) if guids else UidSet()
        return await self._read.named(uids.union(CompactUids(of_guids.ranges)))

    async def expunged(self, since: int) -> GuidsByUid:
        """See `ReplicaMailbox`. The node does not know by which MODSEQ: all but those that the peer has been told."""
        last = self._last_sync
        known = NO_UIDS if last is None or not 0 < last.common_modseq <= since else last.expunged
        found, read = await self._mail.expunged(self._folder, self.scratch), await self._read.uids()
        before = sorted(last.gone.items()) if last is not None else []

        def sorted_out() -> tuple[CompactUids, GuidsByUid]:
            """A mail that was there as mails were read is expunged for the next sync."""
            uids, untold = CompactUids(), GuidsByUid(scratch=self.scratch)
            for uid, guid in merge(before, found.items(), key=itemgetter(0)):  # of one UID, that of `found` is last
                if uid not in read:
                    uids.extend(uid, uid)
                    if uid not in known:
                        untold.add(uid, guid)
            return uids, untold

        uids, untold = await trio.to_thread.run_sync(sorted_out)
        self._this_sync.note_expunged(uids)
        return untold

    async def flag_changes(self, since: int, uids: Sequence[int]) -> Mapping[int, FlagChanges]:
        """See `ReplicaMailbox`. Without a memory of the last sync, changes that it made are among them."""
        last, found = self._last_sync or LastSync(b"", 0, 0, 0), dict[int, FlagChanges]()

        def of_users(uid: int, changes: Iterable[FlagChange]) -> FlagChanges:
            new = [one for one in changes if one.changed_ms >= last.at_ms]
            new = [one for one in new if uid not in last.own_flags.get((one.flag, one.is_set), NO_UIDS)]
            added = frozenset(one.flag for one in new if one.is_set)
            return FlagChanges(added, frozenset(one.flag for one in new if not one.is_set))

        for some in in_parts(uids):
            flags = await self._mail.flag_changes(self._folder, some, max(since, last.modseq))
            found |= interned((uid, of_users(uid, changes)) for uid, changes in flags.items())
        return found

    async def can_tell_since(self, common_uid: int, common_modseq: int) -> bool:
        """See `ReplicaMailbox`."""
        await self._save_batch()
        last = self._last_sync
        if last is None or (last.common_uid, last.common_modseq) != (common_uid, common_modseq) or last.copies:
            return False
        self._relied_on = (await self._part(UidSet())).head
        self._is_by_state = await knows_all(self._mail, self._folder, last)
        return self._is_by_state

    async def _check_reliance(self) -> None:
        """Raise UnavailableError if mails have got other UIDs since `can_tell_since`, by branches that have joined."""
        relied_on, self._relied_on = self._relied_on, None
        if self._last_sync is None or relied_on in {None, (await self._part(UidSet())).head}:
            return
        if not await knows_all(self._mail, self._folder, self._last_sync):
            raise UnavailableError("mails have got other UIDs meanwhile; sync again")

    async def synced(self, common_uid: int, common_modseq: int) -> None:
        """See `ReplicaMailbox`."""
        known = self._last_sync.uids if self._last_sync is not None and self._is_by_state else NO_UIDS
        numbers, read = await self.numbers(), await self._read.uids()
        copies = await self._read.have_copies()
        self._read.forget()  # nothing more is changed
        came = await self._read.above(self._uidnext - 1)
        end = replace(
            self._this_sync.beginning,
            uidvalidity=self._folder.uidvalidity,
            common_uid=common_uid,
            common_modseq=common_modseq,
            messages=numbers.messages,
            copies=copies or await self._read.have_copies(),
        )
        remembered = self._this_sync.remembered
        self.remembered = await trio.to_thread.run_sync(lambda: remembered(end, known, read, came.uids()))

    async def text(self, mail: ListedMessage) -> AsyncGenerator[bytes, None]:
        """See `ReplicaMailbox`."""
        body = await self._mail.body_of(self._folder, mail.guid)
        if body is None:
            raise UnavailableError("a mail that was expunged meanwhile is kept no longer; sync again")
        await body.check(0, body.skeleton.size_bytes)
        return body.read(0, body.skeleton.size_bytes)

    async def check_room(self, mails: int, size_bytes: int) -> None:
        """See `ReplicaMailbox`."""
        await self._save_batch()
        await self._mail.check_quota(self._folder.user, mails, size_bytes)

    async def attributes(self) -> Sequence[Attribute]:
        """See `ReplicaMailbox`. INBOX has the annotations of the account, too."""
        modseq = (await self.numbers()).highestmodseq
        changes = await self._mail.annotation_changes(self._folder.user, self._folder)
        found = self._attributes(changes, modseq, of_account=False)
        if self._is_inbox:
            changes = await self._mail.annotation_changes(self._folder.user, None)
            found += self._attributes(changes, modseq, of_account=True)
        return found

    def _attributes(self, changes: Iterable[AnnotationChange], modseq: int, *, of_account: bool) -> list[Attribute]:
        """Return annotations as attributes. They have no MODSEQ here; those that are news have the mailbox's."""
        last = self._last_sync
        found = []
        for one in changes:
            key = key_of(one.name, of_account=of_account)
            is_own = last is not None and annotated(one.name, one.value, of_account=of_account) in last.own_annotations
            is_news = last is not None and one.changed_ms >= last.at_ms and not is_own
            value = None if one.value is None else one.value.decode(errors="surrogateescape")
            if key is not None:
                changed_s = one.changed_ms // 1000 if is_news else 0
                found.append(Attribute(*key, value, changed_s=changed_s, modseq=modseq if is_news else 0))
        return found

    async def set_attribute(self, attribute: Attribute) -> None:
        """See `ReplicaMailbox`. What `attribute_keys` does not name stays at Dovecot."""
        found = name_of(attribute.key, shared=attribute.shared, is_inbox=self._is_inbox)
        if found is None:
            return
        value = None if attribute.value is None else attribute.value.encode(errors="surrogateescape")
        self._this_sync.note_annotation(found.name, value, of_account=found.of_account)
        folder = None if found.of_account else self._folder
        try:
            await self._mail.annotate(self._folder.user, folder, {found.name: value})
        except (InvalidNameError, MailboxFullError) as error:
            log.info("an annotation is left out: %s", error)

    @property
    def _is_inbox(self) -> bool:
        return self._folder.name == INBOX

    async def save(self, mail: SavedAs, text: AsyncIterator[bytes]) -> None:
        """See `ReplicaMailbox`. Small mails are saved together, at the latest by the next call of another method."""
        begin = bytearray()
        async for piece in text:
            begin += piece
            if len(begin) > SMALL_BYTES:
                await self._save_batch()
                await self._save_large(mail, bytes(begin), text)
                return
        self._batch.append(await self._new(mail, bytes(begin)))
        self._batch_bytes += len(begin)
        if len(self._batch) >= BATCH_MAX or self._batch_bytes >= BATCH_BYTES:
            await self._save_batch()

    async def _save_large(self, mail: SavedAs, begin: bytes, rest: AsyncIterator[bytes]) -> None:
        async with self._mail.receive() as sink:
            await sink.write(begin)
            async for piece in rest:
                await sink.write(piece)
            await self._mail.save(self._folder, await self._new(mail, await sink.finish()))

    async def _new(self, mail: SavedAs, body: bytes | ReceivedBody) -> NewMessage:
        flags = await self._usable(mail.flags)
        self._this_sync.note_flags(mail.uid, flags)
        return NewMessage(body, flags, mail.received_s * 1000, mail.uid, mail.guid)

    async def _usable(self, flags: frozenset[str]) -> frozenset[str]:
        """Return those of the flags that a mail here can have."""
        if self._keywords is None:
            if flags <= _SYSTEM_FLAGS:
                return flags
            found = (await self._mail.list_messages(self._folder, scratch=self.scratch)).flag_sets
            in_use = await trio.to_thread.run_sync(lambda: keywords({*chain.from_iterable(found)}))
            self._keywords = KeptKeywords(in_use)
        return self._keywords.of(flags)

    def tell_left_out(self) -> None:
        """Log which keywords of the peer's were left out."""
        if self._keywords is not None:
            self._keywords.tell(self._folder)

    async def _save_batch(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if batch:
            await self._mail.save_all(self._folder, batch)

    async def move(self, uids: Mapping[int, int]) -> None:
        """See `ReplicaMailbox`."""
        for some in _ascending(uids):
            view = await self._part(UidSet.of(some))
            read = await self._read.same(view)
            same = {old: new for old, new in some.items() if old in read}
            for old, new in same.items():
                self._this_sync.note_moved(old, new, view.messages[old].flags, read[old].flags)
            await self._mail.renumber(view, same)
            self._this_sync.taken_away.update(same)
            await self._note_gone(some)

    async def _note_gone(self, moved: Mapping[int, int]) -> None:
        """Note which mails that were to get other UIDs, values for keys, were expunged before."""
        now = await self._part(UidSet.of(moved.values()))
        gone = {old: new for old, new in moved.items() if new not in now.messages}
        guids = {gone[old]: mail.guid for old, mail in (await self._read.find(gone)).items()}
        if guids:
            elsewhere = await self._mail.uids_of(self._folder, guids.values())
            here = {mail.guid for mail in await self._mail.list_messages(self._folder, elsewhere)}
            self._this_sync.gone |= {new: guid for new, guid in guids.items() if guid not in here}

    async def expunge(self, uids: Sequence[int]) -> None:
        """See `ReplicaMailbox`."""
        for some in in_parts(uids):
            view = await self._part(some)
            same = await self._read.same(view)
            await self._mail.expunge(view, UidSet.of(same))
            self._this_sync.taken_away.update(same)

    async def change_flags(self, changes: Mapping[FlagChanges, Sequence[int]]) -> None:
        """See `ReplicaMailbox`."""
        for change, uids in changes.items():
            added, removed = await self._usable(change.added), change.removed
            for some in in_parts(uids) if added or removed else ():
                view = await self._part(some)
                same = await self._read.same(view)
                for uid in same:
                    self._this_sync.note_flags(uid, added, removed)
                await self._mail.store_flags(view, UidSet.of(same), added=added, removed=removed)

    async def unfinished(self) -> int | None:
        """See `ReplicaMailbox`. All nodes know it, so the next sync may be with another one."""
        return await self._mail.unfinished_sync(self._folder)

    async def note_unfinished(self, common_uid: int | None) -> None:
        """See `ReplicaMailbox`."""
        await self._save_batch()
        await self._mail.note_unfinished_sync(self._folder, self._peer, common_uid)
        if common_uid is None:
            await self._mail.note_unfinished_sync(self._folder, ANY_DOVECOT, None)

    async def take_uidvalidity(self, uidvalidity: int) -> None:
        """See `ReplicaMailbox`."""
        self._folder = await with_uidvalidity(self._mail, self._folder, uidvalidity)

    async def raise_numbers(self, *, uidnext: int, highestmodseq: int) -> None:
        """See `ReplicaMailbox`."""
        now = await self.numbers()
        if now.uidnext < uidnext or now.highestmodseq < highestmodseq:
            await self._mail.raise_numbers(self._folder, uidnext, highestmodseq)

    async def _part(self, uids: UidSet) -> MailboxView:
        """Return these mails as they are once all are saved."""
        await self._save_batch()
        return await self._mail.part_of(self._folder, uids)


def _ascending(uids: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """Yield parts of it, of `AT_ONCE` at most, in which the keys ascend, too: new UIDs are given in their order."""
    some = dict[int, int]()
    for old, new in uids.items():
        if some and (old < next(reversed(some)) or len(some) == AT_ONCE):
            yield some
            some = {}
        some[old] = new
    if some:
        yield some
