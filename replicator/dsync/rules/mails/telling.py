r"""This side's account of its mails, in the peer's words.

GUIDs are told as the peer writes them: else it would take the mails for others. Mails that are `\Recent` there are
told so: else Dovecot takes them for changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from operator import attrgetter

from replicator.dsync.rules.mails.comparison import Told
from replicator.dsync.rules.mails.plan import NO_CHANGES, Known
from replicator.dsync.rules.mails.stored_mail import StoredMail
from replicator.dsync.wire.items import ChangeType, MailboxState, MailChange


def changes_to_tell(
    known: Known,
    mails: Iterable[StoredMail],
    told: Told,
    state: MailboxState | None,
    moved: Mapping[int, frozenset[str]],
) -> Iterator[MailChange]:
    """Yield this side's changes, ascending by UID: of these mails. With a state, only those since then.

    `moved`: flags that mails are to have, as `flags_of_moved` returns them.
    """
    expunges = (
        MailChange(ChangeType.EXPUNGE, uid, told.name_of_expunged(guid.hex()))
        for uid, guid in sorted(known.expunged.items())
        if state is None or uid <= state.last_common_uid
    )
    return merge(expunges, _mails_to_tell(known, mails, told, state, moved), key=attrgetter("uid"))


def _mails_to_tell(
    known: Known,
    mails: Iterable[StoredMail],
    told: Told,
    state: MailboxState | None,
    moved: Mapping[int, frozenset[str]],
) -> Iterator[MailChange]:
    for mail in mails:
        uid, modseq = mail.uid, mail.modseq
        if state is None or uid > state.last_common_uid:
            kind = ChangeType.SAVE
        elif modseq > state.last_common_modseq:
            kind = ChangeType.FLAGS
        else:
            continue
        flags, changed = moved.get(uid, mail.flags), known.flag_changes.get(uid, NO_CHANGES)
        name, is_recent = told.name_of(mail), uid in told.recent
        yield MailChange(kind, uid, name, modseq, flags, changed.added, changed.removed, is_recent)
