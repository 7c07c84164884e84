"""The peer's account of its mails, without those that both sides have alike.

Where all mails are compared, both sides have nearly all of them under the same UIDs, with the same flags. Of such a
mail nothing is kept, so a comparison takes memory for what differs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, Self

from replicator.dsync.rules.mails.ascending import AscendingTexts
from replicator.dsync.rules.mails.common_uid import CommonUid
from replicator.dsync.rules.mails.copies import named_here, with_free_guids
from replicator.dsync.rules.mails.peer_changes import PeerChanges
from replicator.dsync.wire.items import ChangeType, MailChange
from replicator.mail.compact_uids import CompactUids
from replicator.mail.dovecot_guids import guid_of, is_copy
from replicator.mail.listing import ListedMessage, Listing
from replicator.mail.scratch import Scratch


@dataclass(slots=True)
class Told:
    r"""The peer's account.

    `common_uid`: up to it, both sides have had the same mails. `lacking`: own mails that the peer does not have, where
    all are compared. `recent`: mails that are `\Recent` there. `names`: GUIDs of own mails as the peer writes them,
    where that is in another way; those of equal mails are in `equal_names`, by UID. `sources`: GUIDs of mails, by those
    that their copies have here.
    """

    changes: PeerChanges = field(default_factory=PeerChanges)
    common_uid: int = 0
    lacking: CompactUids = field(default_factory=CompactUids)
    recent: CompactUids = field(default_factory=CompactUids)
    names: dict[bytes, str] = field(default_factory=dict)
    equal_names: AscendingTexts = field(default_factory=AscendingTexts)
    sources: dict[bytes, bytes] = field(default_factory=dict)

    @classmethod
    def kept_in(cls, scratch: Scratch | None) -> Self:
        """Return an empty account that goes on in a scratch file as it becomes long."""
        return cls(PeerChanges(scratch), equal_names=AscendingTexts(scratch))

    def name_of(self, mail: ListedMessage) -> str:
        """Return the GUID of a mail of this side as the peer writes it, if it has told."""
        return self.equal_names.find(mail.uid) or self.names.get(mail.guid) or mail.guid.hex()

    def name_of_expunged(self, guid: bytes) -> str:
        """Return the GUID of an expunged mail of this side as the peer writes it."""
        return self.sources.get(guid, guid).hex()

    def name_of_peers(self, uid: int, guid: bytes) -> str:
        """Return the GUID of the mail of a change as the peer writes it."""
        source = self.sources.get(guid, guid)
        return self.changes.names.find(uid) or self.names.get(source) or source.hex()

    def note_name(self, guid: bytes, name: str) -> None:
        """Note how the peer writes a GUID."""
        if name != guid.hex():
            self.names[guid] = name

    def named(self) -> tuple[CompactUids, set[bytes]]:
        """Return the UIDs of all changes, and the GUIDs of mails that are there: own mails with these are concerned."""
        return CompactUids.ascending(self.changes.uids()), {*self.changes.saved_guids()}

    def identify(self, mails: Listing, expunged: Mapping[int, bytes]) -> None:
        """Give copies of a mail GUIDs of their own, beside those of `mails`, and note what the peer calls these."""
        self._separate_copies(mails, expunged)
        are_named_otherwise = self.changes.names or self.sources
        own = {mail.guid for mail in mails} if are_named_otherwise else frozenset[bytes]()
        for change in self.changes if own else ():
            for guid in own.intersection((change.guid, self.sources.get(change.guid, change.guid))):
                self.note_name(guid, self.name_of_peers(change.uid, change.guid))

    def _separate_copies(self, mails: Listing, expunged: Mapping[int, bytes]) -> None:
        def is_told(uid: int) -> bool:
            change = self.changes.find(uid)
            return change is not None and change.type is not ChangeType.FLAGS

        old = (mail for mail in mails if mail.uid <= self.common_uid and mail.uid not in self.lacking)
        kept = [mail.guid for mail in old if not is_told(mail.uid)]

        def here(uid: int) -> bytes:
            mail = mails.find(uid)
            return mail.guid if mail is not None else expunged.get(uid, b"")

        with_free_guids(self.changes, here, kept, self.sources)


class ChangesSince:
    """The peer's changes since a state, up to whose last common UID both sides were equal."""

    def __init__(self, common_uid: int, scratch: Scratch | None = None) -> None:
        self.told = Told.kept_in(scratch)
        self.told.common_uid = common_uid

    def take(self, change: MailChange) -> None:
        """Take the next change."""
        self.told.changes.add(change, _guid_of(change))
        if change.recent:
            self.told.recent.add(change.uid)

    def take_all(self, changes: Iterable[MailChange]) -> None:
        """Take the next changes."""
        for change in changes:
            self.take(change)

    def finish(self) -> Told:
        """Return what the peer has told, after the last change."""
        return self.told


def _guid_of(change: MailChange) -> bytes:
    """Return the GUID of a change; nothing if it has none."""
    return guid_of(change.guid) if change.guid else b""


class Comparison:
    """The peer's changes, taken one after another beside the mails of this side, both ascending by UID."""

    def __init__(self, mails: Listing, expunged: Mapping[int, bytes], unfinished: int | None = None) -> None:
        """`mails`: all of this side. `expunged`: GUIDs of those that were expunged, by UID.

        `unfinished`: as in `plan.Known`. What is told is kept in the scratch file of `mails`.
        """
        self._mails = mails
        self._at = 0  # of the first one that was not passed yet
        self._rest = iter(mails)  # to look a mail up takes several times as long as to come to it
        self._next = next(self._rest, None)
        self._lacking = CompactUids()  # positions of those that the peer does not have
        self._expunged = expunged
        self._common = CommonUid(expunged, mails[-1].uid if mails else 0, unfinished)
        self.told = Told.kept_in(mails.scratch)

    def take(self, change: MailChange) -> None:
        """Take the next change, with its GUID as the peer writes it."""
        mail = self._own(change.uid)
        if mail is not None and not change.recent and not self._common.is_found and _are_alike(change, mail):
            self._common.uid = change.uid
            return
        guid = self._guid_here(change, mail)
        self._common.note(change, guid, mail)
        if change.recent:
            self.told.recent.add(change.uid)
        if mail is not None and change.type is ChangeType.EXPUNGE:
            self._lacking.extend(self._at - 1, self._at - 1)
        if mail is None or self._common.is_found or not _is_equal(change, guid, mail):
            self.told.changes.add(change, guid)
        elif guid.hex() != change.guid:
            self.told.equal_names.add(change.uid, change.guid)

    def take_all(self, changes: Iterable[MailChange]) -> None:
        """Take the next changes."""
        for change in changes:
            self.take(change)

    def finish(self) -> Told:
        """Return what the peer has told, after the last change."""
        if self._next is not None:
            self._lacking.extend(self._at, len(self._mails) - 1)
        self.told.common_uid = self._common.uid
        self.told.lacking = CompactUids.ascending(self._mails[at].uid for at in self._lacking)
        return self.told

    def _guid_here(self, change: MailChange, mail: ListedMessage | None) -> bytes:
        """Return the GUID that a change's mail has here; nothing if it has none. `mail`: the own one with its UID."""
        here = mail.guid if mail is not None else self._expunged.get(change.uid)
        if here is None:
            return _guid_of(change)
        if change.guid == here.hex():  # nearly always, and a look is quick
            return here
        guid = _guid_of(change)
        if not is_copy(here):
            return guid
        self.told.note_name(guid, change.guid)
        return named_here(guid, here, self.told.sources)

    def _own(self, uid: int) -> ListedMessage | None:
        """Return the own mail with this UID, and note those below it that the peer has not told of."""
        if self._next is not None and self._next.uid < uid:
            at = self._mails.first_above(uid - 1)
            self._lacking.extend(self._at, at - 1)
            self._at, self._rest = at, iter(self._mails[at:])
            self._next = next(self._rest, None)
        mail = self._next
        if mail is None or mail.uid != uid:
            return None
        self._at += 1
        self._next = next(self._rest, None)
        return mail


def _are_alike(change: MailChange, mail: ListedMessage) -> bool:
    """Return True if both sides have a mail alike, and write its GUID alike. So nearly all are, and this is quick."""
    return change.guid == mail.guid.hex() and change.flags == mail.flags and change.type is ChangeType.SAVE


def _is_equal(change: MailChange, guid: bytes, mail: ListedMessage) -> bool:
    return guid == mail.guid and change.flags == mail.flags and change.type is ChangeType.SAVE


def concerned(mails: Listing, told: Told) -> Listing:
    """Return those of all mails of this side that the peer's changes may concern, ascending by UID."""
    guids = shared_guids(mails, told.changes)
    uids = CompactUids.ascending(told.changes.uids()).union(told.lacking)
    found = (
        mail
        for mail in mails
        if mail.uid > told.common_uid or mail.guid in guids or mail.uid in uids or is_copy(mail.guid)
    )
    return Listing.of(found, mails.scratch)


def disputed(mails: Listing, told: Told) -> Sequence[int]:
    """Return the UIDs of those of these mails that the peer has, too, by UID or GUID."""
    guids = shared_guids(mails, told.changes)
    return array("I", (mail.uid for mail in mails if mail.uid not in told.lacking or mail.guid in guids))


def shared_guids(mails: Listing, changes: PeerChanges) -> set[bytes]:
    """Return the GUIDs that own mails and the peer's have."""
    theirs = Guids(lambda: (one.guid for one in changes if one.type is not ChangeType.EXPUNGE), len(changes))
    return in_both(Guids(lambda: (mail.guid for mail in mails), len(mails)), theirs)


class Guids(NamedTuple):
    """GUIDs of mails: `each` yields them, as often as it is called; they are so many at most."""

    each: Callable[[], Iterable[bytes]]
    most: int


def in_both(one: Guids, other: Guids) -> set[bytes]:
    """Return the GUIDs that are in both, in memory for the fewer ones."""
    few, many = sorted((one, other), key=attrgetter("most"))
    found = {*few.each()} if few.most else set[bytes]()
    return found.intersection(many.each()) if found else found
