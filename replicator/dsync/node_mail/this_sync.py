"""Notes of what the present sync of a mailbox has done at the node. They become a `LastSync` in the end."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from replicator.dsync.node_mail.last_syncs import NO_UIDS, FlagUids, LastSync, annotated
from replicator.mail.compact_uids import CompactUids


@dataclass
class ThisSync:
    """The sync, and its own changes. `beginning`: what is known of it as it begins.

    `taken_away`: UIDs of mails that it has expunged or moved. `gone`: as in a `LastSync`.
    """

    beginning: LastSync
    taken_away: CompactUids = field(default_factory=CompactUids)
    gone: dict[int, bytes] = field(default_factory=dict)
    _expunged: CompactUids = field(default_factory=CompactUids)
    _flags: dict[tuple[str, bool], CompactUids] = field(default_factory=dict)
    _moved_flags: dict[str, CompactUids] = field(default_factory=dict)  # by the mails' new UIDs
    _annotations: set[str] = field(default_factory=set)

    def note_expunged(self, uids: CompactUids) -> None:
        """Note the UIDs that are known to be expunged as it begins."""
        self._expunged = uids

    def note_flags(self, uid: int, added: Iterable[str], removed: Iterable[str] = ()) -> None:
        """Note which flags it sets and clears of a mail."""
        for flags, is_set in ((added, True), (removed, False)):
            for flag in flags:
                self._flags.setdefault((flag, is_set), CompactUids()).add(uid)

    def note_annotation(self, name: str, value: bytes | None, *, of_account: bool) -> None:
        """Note that it sets or removes an annotation."""
        self._annotations.add(annotated(name, value, of_account=of_account))

    def note_moved(self, old: int, new: int, flags: Iterable[str], before: AbstractSet[str]) -> None:
        """Note which of its flags a mail takes along to another UID, that it had `before` the sync or has got by it."""
        for flag in flags:
            if old in self._flags.get((flag, True), NO_UIDS):
                self.note_flags(new, [flag])
            elif flag in before:
                self._moved_flags.setdefault(flag, CompactUids()).add(new)

    def remembered(self, end: LastSync, known: CompactUids, read: CompactUids, came: CompactUids) -> LastSync:
        """Return what is to be remembered of it. Without a common MODSEQ, earlier changes of flags are still news.

        `end`: the beginning, with the numbers as they are in the end. The peer has been told the UIDs that were `known`
        to it before, those of mails that were `read`, and those of mails that `came`.
        """
        moment = replace(end, modseq=0, at_ms=0) if not end.common_modseq else end
        told = known.without(self._expunged).union(read).without(self.taken_away).union(came)
        return replace(
            moment,
            own_flags=self._own_flags(with_moved=end.common_modseq > 0),
            own_annotations=frozenset(self._annotations),
            expunged=self._expunged,
            uids=told.up_to(end.common_uid),
            gone=self.gone,
        )

    def _own_flags(self, *, with_moved: bool) -> FlagUids:
        """Return its own changes. `with_moved`: and the flags that the peer has got with mails that moved."""
        found = {**self._flags}
        for flag, moved in self._moved_flags.items() if with_moved else ():
            found[flag, True] = found.get((flag, True), NO_UIDS).union(moved)
        return found
