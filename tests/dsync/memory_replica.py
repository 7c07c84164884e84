"""A user's mail in memory, as strict as a node: GUIDs are unique in a mailbox, and UIDs only grow."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from hashlib import sha256
from tempfile import TemporaryFile
from typing import Self

import trio

from replicator.dsync.replica import SavedAs
from replicator.dsync.rules.given_names import GivenName
from replicator.dsync.rules.mails.flags import NO_FLAGS, FlagChanges
from replicator.dsync.rules.moves import Name
from replicator.dsync.rules.tree import (
    INBOX,
    Adopt,
    Create,
    Delete,
    Rename,
    Step,
    Subscribe,
    Tree,
    name_hash,
)
from replicator.dsync.wire.items import Attribute, Deletions, Mailbox, MailboxState, TreeNode
from replicator.errors import FolderExistsError, FolderNotFoundError, InvalidNameError
from replicator.mail.compact_uids import CompactUids
from replicator.mail.dovecot_guids import is_copy
from replicator.mail.guids_by_uid import GuidsByUid
from replicator.mail.listing import ListedMessage, Listing
from replicator.mail.scratch import Scratch


@dataclass
class MemoryMailbox:
    """Mails of one folder, and all that has happened in it. Methods of users have no `async`."""

    mailbox_id: bytes
    uidvalidity: int
    uidnext: int = 1
    highestmodseq: int = 1
    stored: dict[int, ListedMessage] = field(default_factory=dict)
    texts: dict[bytes, bytes] = field(default_factory=dict)
    gone: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # MODSEQ and GUID, by UID
    flag_log: list[tuple[int, int, str, bool]] = field(default_factory=list)  # MODSEQ, UID, flag, set?
    common_uid: int | None = None
    state: MailboxState | None = None  # up to where both sides were equal after the last sync
    synced_modseq: int = 0  # as that sync began
    began_modseq: int = 0
    checked: tuple[int, int] = 0, 0  # mails and bytes for which there was to be room, the last time
    annotations: dict[tuple[bool, str], Attribute] = field(default_factory=dict)
    meanwhile: Callable[[], object] | None = None  # what somebody does once a sync has read mails
    reads: int = 0  # how often a sync has read all mails
    unfinished_uid: int | None = None
    read: set[int] = field(default_factory=set)  # UIDs of mails that this sync has read
    scratch: Scratch = field(default_factory=lambda: Scratch(TemporaryFile), compare=False)

    def next_modseq(self) -> int:
        self.highestmodseq += 1
        return self.highestmodseq

    # ---- what users do

    def append(self, guid: bytes, text: bytes, flags: frozenset[str] = NO_FLAGS, at_s: int = 1_700_000_000) -> int:
        return self._put(ListedMessage(self.uidnext, guid, 0, flags, 1000 * at_s, 1000 * at_s), text)

    def flag(self, uid: int, *, added: frozenset[str] = NO_FLAGS, removed: frozenset[str] = NO_FLAGS) -> None:
        mail, modseq = self.stored[uid], self.next_modseq()
        self.stored[uid] = mail._replace(flags=(mail.flags | added) - removed, modseq=modseq)
        self.flag_log += [(modseq, uid, flag, True) for flag in added]
        self.flag_log += [(modseq, uid, flag, False) for flag in removed]

    def remove(self, uid: int) -> None:
        mail = self.stored.pop(uid)
        self.gone[uid] = self.next_modseq(), mail.guid

    def annotate(self, key: str, value: str | None, *, shared: bool = False) -> None:
        self.annotations[shared, key] = Attribute(shared, key, value, modseq=self.next_modseq())

    # ---- what a sync does

    async def attributes(self) -> Sequence[Attribute]:
        return [*self.annotations.values()]

    async def set_attribute(self, attribute: Attribute) -> None:
        self.annotate(attribute.key, attribute.value, shared=attribute.shared)

    async def numbers(self) -> Mailbox:
        return Mailbox(
            self.mailbox_id, self.uidvalidity, self.uidnext, len(self.stored), self.uidnext, self.highestmodseq
        )

    async def mails(self) -> Listing:
        self.reads += 1
        return self._those(lambda _: True)

    async def changed(self, above_uid: int, above_modseq: int) -> Listing:
        return self._those(lambda mail: mail.uid > above_uid or mail.modseq > above_modseq)

    async def above(self, uid: int) -> Listing:
        return self._those(lambda mail: mail.uid > uid)

    async def named(self, uids: CompactUids, guids: Collection[bytes]) -> Listing:
        return self._those(lambda mail: (mail.uid in uids or mail.guid in guids) and mail.uid not in self.read)

    def _those(self, are_meant: Callable[[ListedMessage], bool]) -> Listing:
        """Return the mails that a sync reads."""
        found = Listing.of(self.stored[uid] for uid in sorted(self.stored) if are_meant(self.stored[uid]))
        self.read |= {mail.uid for mail in found}
        if self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
        return found

    async def expunged(self, since: int) -> GuidsByUid:
        return GuidsByUid((uid, guid) for uid, (modseq, guid) in sorted(self.gone.items()) if modseq > since)

    async def flag_changes(self, since: int, uids: Sequence[int]) -> Mapping[int, FlagChanges]:
        found: dict[int, FlagChanges] = {}
        wanted = {*uids}
        for modseq, uid, flag, is_set in self.flag_log:
            if modseq > since and uid in wanted:
                before = found.get(uid, FlagChanges())
                added, removed = before.added - {flag}, before.removed - {flag}
                one = frozenset({flag})
                found[uid] = FlagChanges(added | one, removed) if is_set else FlagChanges(added, removed | one)
        return found

    async def text(self, mail: ListedMessage) -> AsyncGenerator[bytes, None]:
        return _pieces(self.texts[mail.guid])

    async def check_room(self, mails: int, size_bytes: int) -> None:
        self.checked = mails, size_bytes
        await trio.lowlevel.checkpoint()

    async def save(self, mail: SavedAs, text: AsyncIterator[bytes]) -> None:
        whole = b"".join([piece async for piece in text])
        dates_ms = 1000 * mail.received_s, 1000 * mail.saved_s
        self._put(ListedMessage(mail.uid, mail.guid, 0, mail.flags, *dates_ms), whole)

    async def move(self, uids: Mapping[int, int]) -> None:
        for old, new in uids.items():
            mail = self.stored.pop(old)
            modseq = self.next_modseq()
            self.gone[old] = modseq, mail.guid
            assert new >= self.uidnext
            self.stored[new], self.uidnext = mail._replace(uid=new, modseq=modseq), new + 1

    async def expunge(self, uids: Sequence[int]) -> None:
        for uid in uids:
            self.remove(uid)

    async def change_flags(self, changes: Mapping[FlagChanges, Sequence[int]]) -> None:
        for uid, change in ((uid, change) for change, uids in changes.items() for uid in uids):
            mail = self.stored[uid]
            flags = (mail.flags | change.added) - change.removed
            self.stored[uid] = mail._replace(flags=flags, modseq=self.next_modseq())

    async def can_tell_since(self, _common_uid: int, _common_modseq: int, /) -> bool:
        return not any(is_copy(mail.guid) for mail in self.stored.values())

    async def synced(self, common_uid: int, common_modseq: int, /) -> None:
        self.common_uid = common_uid
        self.state = MailboxState(self.mailbox_id, self.uidvalidity, common_uid, common_modseq, len(self.stored))
        self.synced_modseq = self.began_modseq

    async def unfinished(self) -> int | None:
        return self.unfinished_uid

    async def note_unfinished(self, common_uid: int | None) -> None:
        self.unfinished_uid = common_uid

    async def take_uidvalidity(self, uidvalidity: int) -> None:
        assert self.uidnext == 1
        self.uidvalidity = uidvalidity

    async def raise_numbers(self, *, uidnext: int, highestmodseq: int) -> None:
        self.uidnext = max(self.uidnext, uidnext)
        self.highestmodseq = max(self.highestmodseq, highestmodseq)

    def _put(self, mail: ListedMessage, text: bytes) -> int:
        mail = mail._replace(uid=max(mail.uid, self.uidnext))  # as at a node, if it is taken
        assert mail.guid not in {one.guid for one in self.stored.values()}
        self.stored[mail.uid], self.uidnext = mail._replace(modseq=self.next_modseq()), mail.uid + 1
        self.texts[mail.guid] = text
        return mail.uid


@dataclass
class MemoryReplica:
    """Folders in memory. `now_s` is the clock; `number` makes the ids differ from those of other replicas."""

    now_s: int = 1_700_000_000
    number: int = 0
    user: str = "u1"
    made: int = 0  # parents that were created with folders
    boxes: dict[Name, MemoryMailbox] = field(default_factory=dict)
    renamed: dict[Name, int] = field(default_factory=dict)  # or created
    subscriptions: dict[Name, tuple[int, bool]] = field(default_factory=dict)
    deleted_boxes: dict[bytes, int] = field(default_factory=dict)
    deleted_names: dict[bytes, int] = field(default_factory=dict)
    past_boxes: dict[bytes, MemoryMailbox] = field(default_factory=dict)
    given_names: dict[bytes, GivenName] = field(default_factory=dict)
    full_syncs: dict[str, int] = field(default_factory=dict)  # when they ended, by Dovecots

    # ---- what users do

    def create(self, name: Name, mailbox_id: bytes, uidvalidity: int = 1_600_000_000) -> MemoryMailbox:
        if name in self.boxes:
            raise FolderExistsError("it exists")
        self._create_parents(name)
        box = self.boxes[name] = MemoryMailbox(mailbox_id, uidvalidity)
        self.renamed[name] = self.now_s
        return box

    def rename(self, old: Name, new: Name) -> None:
        if old not in self.boxes:
            raise FolderNotFoundError("there is no such folder")
        names = {name: new + name[len(old) :] for name in self.boxes if name[: len(old)] == old}
        if any(name in self.boxes and name not in names for name in names.values()):
            raise FolderExistsError("it exists")
        if new[: len(old)] == old:
            raise InvalidNameError("it cannot be moved below itself")
        self._create_parents(new)
        moving = {new: self.boxes.pop(old) for old, new in names.items()}
        self.boxes |= moving
        self.renamed[new] = self.now_s

    def _create_parents(self, name: Name) -> None:
        """Create what is missing above a folder, as a node does."""
        for levels in range(1, len(name)):
            if name[:levels] not in self.boxes:
                self.made += 1
                new_id = sha256(b"%d of %d" % (self.made, self.number)).digest()[:16]
                self.boxes[name[:levels]] = MemoryMailbox(new_id, 1_600_000_000)

    def delete(self, name: Name) -> None:
        box = self.boxes.pop(name)
        self.past_boxes[box.mailbox_id] = box
        self.deleted_boxes[box.mailbox_id] = self.now_s
        self.deleted_names[name_hash(name, "/")] = self.now_s

    def subscribe(self, name: Name, *, subscribed: bool) -> None:
        self.subscriptions[name] = self.now_s, subscribed

    # ---- what a sync does

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def states(self, _peer: str, /) -> Sequence[MailboxState]:
        return [box.state for box in self.boxes.values() if box.state is not None]

    async def unchanged(self, _peer: str, /) -> AbstractSet[bytes]:
        return {box.mailbox_id for box in self.boxes.values() if box.highestmodseq == box.synced_modseq}

    def forget(self, _peer: str, mailbox_id: bytes | None = None, /) -> None:
        for box in self.boxes.values():
            if mailbox_id in {None, box.mailbox_id}:
                box.state = None

    def held_up(self, _mailbox_id: bytes, /) -> str | None:
        return None

    async def tree(self) -> Tree:
        nodes = dict[Name, TreeNode]()
        subscribed = {name for name, (_, is_set) in self.subscriptions.items() if is_set}
        for name in self.boxes.keys() | subscribed:
            box = self.boxes.get(name)
            changed_s, is_subscribed = self.subscriptions.get(name, (0, False))
            nodes[name] = TreeNode(
                name,
                box is not None,
                None if box is None else box.mailbox_id,
                0 if box is None else box.uidvalidity,
                1 if box is None else box.uidnext,
                self.renamed.get(name, 0),
                is_subscribed,
                changed_s,
            )
        unsubscribed = {name_hash(name, "/"): at_s for name, (at_s, is_set) in self.subscriptions.items() if not is_set}
        return Tree(nodes, Deletions("/", self.deleted_boxes, self.deleted_names, unsubscribed))

    async def carry_out(self, step: Step) -> None:
        match step:
            case Delete(name, mailbox_id, _):
                assert name != INBOX
                assert self.boxes[name].mailbox_id == mailbox_id
                self.delete(name)
            case Rename(old, new, _):
                self.rename(old, new)
            case Create(name, mailbox_id, uidvalidity):
                self.create(name, mailbox_id, uidvalidity)
            case Adopt(name, mailbox_id, uidvalidity):
                self.boxes[name] = replace(self.boxes[name], mailbox_id=mailbox_id, uidvalidity=uidvalidity)
            case Subscribe(name, subscribed):
                self.subscribe(name, subscribed=subscribed)

    def note_given_names(self, names: Mapping[bytes, GivenName], /) -> None:
        self.given_names |= names

    def common_uid(self, mailbox_id: bytes, _peer: str) -> int:
        return next((box.common_uid or 0 for box in self.boxes.values() if box.mailbox_id == mailbox_id), 0)

    def seen_uid(self, mailbox_id: bytes, uidvalidity: int, _peer: str) -> int:
        box = self.past_boxes.get(mailbox_id)
        if box is None or box.uidvalidity != uidvalidity:
            return 0
        return box.common_uid or box.uidnext - 1

    def full_sync_age_s(self, dovecot: str) -> float:
        return self.now_s - self.full_syncs.get(dovecot, -math.inf)

    def note_full_sync(self, dovecot: str) -> None:
        self.full_syncs[dovecot] = self.now_s

    @asynccontextmanager
    async def mailbox(self, mailbox_id: bytes, _peer: str) -> AsyncIterator[MemoryMailbox | None]:
        box = next((box for box in self.boxes.values() if box.mailbox_id == mailbox_id), None)
        if box is None:
            yield None
            return
        box.began_modseq, box.read = box.highestmodseq, set()
        with closing(box.scratch):
            yield box


async def _pieces(text: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(text), 1000):
        yield text[start : start + 1000]
