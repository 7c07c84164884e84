"""Lines of mail changes, which are most of a sync: what many mails have alike is read and written once for all.

That is all but UID, GUID and MODSEQ: the kind of change, and flags. The general way is in `items` and `writer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from replicator.dsync.wire.fields import GUID_MAX, NUMBER_MAX, UID_MAX, Fields
from replicator.dsync.wire.items import ChangeType, MailChange
from replicator.dsync.wire.keys import KINDS
from replicator.dsync.wire.values import ABSENT, TAB, decode_record, encode_record

LETTER = "C"
ALIKE_MAX = 100
"""Different kinds of changes, with their flags, that are remembered: with more, others are forgotten."""

RECORD_MAX = 500
"""Characters of a record that is read here: so much at most is remembered of each kind."""

_AFTER_MODSEQ = KINDS[LETTER].names[5:]


def quick_line(change: MailChange) -> bytes | None:
    """Return the line of a change; None if it is to be written in the general way."""
    kind, uid, guid, modseq, flags, added, removed, recent = change
    if kind is ChangeType.EXPUNGE or not modseq or not _is_plain(guid):
        return None
    begin, end = _around(kind, flags, added, removed, recent)
    return f"{begin}{uid}\t{guid}\t{ABSENT}\t{modseq}{end}".encode(errors="surrogateescape")


@lru_cache(maxsize=ALIKE_MAX)
def _around(
    kind: ChangeType,
    flags: frozenset[str],
    added: frozenset[str],
    removed: frozenset[str],
    recent: bool,  # noqa: FBT001 - part of what is remembered
) -> tuple[str, str]:
    """Return what stands before the UID, and after the MODSEQ."""
    values = MailChange(kind, 1, "0", 1, flags, added, removed, recent).values()
    return f"{LETTER}{kind.value}\t", f"\t{encode_record(values.get(name) for name in _AFTER_MODSEQ)}\n"


class QuickReader:
    """The reading of the changes of a peer that has announced these names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._is_of_use = {"uid", "guid", "modseq"} <= {*names}
        places = [names.index(name) if self._is_of_use else 0 for name in ("uid", "guid", "modseq")]
        self._uid, self._guid, self._modseq = places
        self._apart = max(places) + 1  # values that are looked at one by one; what follows them is alike
        self._alike = lru_cache(maxsize=ALIKE_MAX)(self._read)

    def read(self, record: str) -> MailChange | None:
        """Return the change that a record tells; None if it is to be read in the general way. Raises DsyncError."""
        values = record.split(TAB, self._apart)
        if not self._is_of_use or len(values) < self._apart or len(record) > RECORD_MAX or not record.isascii():
            return None
        uid, guid, modseq = values[self._uid], values[self._guid], values[self._modseq]
        if not (uid.isdecimal() and modseq.isdecimal() and _is_plain(guid)):
            return None
        values[self._uid], values[self._guid], values[self._modseq] = "1", ABSENT, ABSENT
        alike = self._alike(TAB.join(values))
        if alike is None:
            return None
        kind, _, _, _, flags, added, removed, recent = alike
        change = MailChange(kind, int(uid), guid, int(modseq), flags, added, removed, recent)
        return change if change.uid <= UID_MAX and change.modseq <= NUMBER_MAX else None

    def _read(self, record: str) -> MailChange | None:
        values = decode_record(record)
        if len(values) > len(self._names):
            return None
        return MailChange.of(Fields(LETTER, dict(zip(self._names, values, strict=False))))


def _is_plain(guid: str) -> bool:
    """Return True if a GUID is written without escapes."""
    return guid.isprintable() and 0 < len(guid) <= GUID_MAX
