r"""This side's account of its mails, in the peer's words.

GUIDs are told as the peer writes them: else it would take the mails for others. Mails that are `\Recent` there are
told so: else Dovecot takes them for changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter

from replicator.dsync.rules.mails.comparison import Told
from replicator.dsync.rules.mails.plan import NO_CHANGES, Known
from replicator.dsync.wire.items import ChangeType, MailboxState, MailChange
from replicator.mail.listing import ListedMessage


@dataclass(frozen=True, slots=True)
class Account:
    """Account that this side gives of the mails that `known` has, or of all.

    `state`: with one, only what has happened since is told. `moved`: flags that mails are to have, as `flags_of_moved`
    returns them.
    """

    known: Known
    told: Told
    state: MailboxState | None
    moved: Mapping[int, frozenset[str]]

    def changes(self, mails: Iterable[ListedMessage]) -> Iterator[MailChange]:
        """Yield this side's changes, ascending by UID: of these mails, and of expunged ones."""
        return merge(self._expunges(), filter(None, map(self._change, mails)), key=attrgetter("uid"))

    def _expunges(self) -> Iterator[MailChange]:
        for uid, guid in self.known.expunged.items():
            if self.state is None or uid <= self.state.last_common_uid:
                yield MailChange(ChangeType.EXPUNGE, uid, self.told.name_of_expunged(guid))

    def _change(self, mail: ListedMessage) -> MailChange | None:
        """Return what is told of a mail; None if that is nothing."""
        uid, modseq, state = mail.uid, mail.modseq, self.state
        if state is None or uid > state.last_common_uid:
            kind = ChangeType.SAVE
        elif modseq > state.last_common_modseq:
            kind = ChangeType.FLAGS
        else:
            return None
        flags, changed = self.moved.get(uid, mail.flags), self.known.flag_changes.get(uid, NO_CHANGES)
        name, is_recent = self.told.name_of(mail), uid in self.told.recent
        return MailChange(kind, uid, name, modseq, flags, changed.added, changed.removed, is_recent)
