"""What the present sync of a mailbox has done at the node, of which a `LastSync` is made in the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from protocol.values import UidSet
from replicator.dsync.node_mail.last_syncs import NO_UIDS, LastSync, annotated
from replicator.dsync.rules.mails.ascending import GrowingUids


@dataclass
class ThisSync:
    """The sync, and its own changes. `beginning`: what is known of it as it begins.

    `taken_away`: UIDs of mails that it has expunged or moved. `gone`: as in a `LastSync`.
    """

    beginning: LastSync
    taken_away: GrowingUids = field(default_factory=GrowingUids)
    gone: dict[int, bytes] = field(default_factory=dict)
    _expunged: UidSet = NO_UIDS
    _flags: dict[tuple[str, bool], GrowingUids] = field(default_factory=dict)
    _annotations: set[str] = field(default_factory=set)

    def note_expunged(self, uids: UidSet) -> None:
        """Note the UIDs that are known to be expunged as it begins."""
        self._expunged = uids

    def note_flags(self, uid: int, added: Iterable[str], removed: Iterable[str] = ()) -> None:
        """Note which flags it sets and clears of a mail."""
        for flags, is_set in ((added, True), (removed, False)):
            for flag in flags:
                self._flags.setdefault((flag, is_set), GrowingUids()).add(uid)

    def note_annotation(self, name: str, value: bytes | None, *, of_account: bool) -> None:
        """Note that it sets or removes an annotation."""
        self._annotations.add(annotated(name, value, of_account=of_account))

    def has_set(self, uid: int, flag: str) -> bool:
        """Return True if it has set this flag of a mail."""
        return uid in self._flags.get((flag, True), NO_UIDS)

    def remembered(self, end: LastSync, known: UidSet, read: UidSet, came: UidSet) -> LastSync:
        """Return what is to be remembered of it. Without a common MODSEQ, earlier changes of flags are still news.

        `end`: the beginning, with the numbers as they are in the end. The peer has been told the UIDs that were `known`
        to it before, those of mails that were `read`, and those of mails that `came`.
        """
        moment = replace(end, modseq=0, at_ms=0) if not end.common_modseq else end
        told = known.without(self._expunged).union(read).without(self.taken_away.uids()).union(came)
        return replace(
            moment,
            own_flags={change: own.uids() for change, own in self._flags.items()},
            own_annotations=frozenset(self._annotations),
            expunged=self._expunged,
            uids=told.up_to(end.common_uid),
            gone=self.gone,
        )
