"""Lines of mail changes, which are most of a sync: what many mails have alike is read and written once for all.

That is all but UID, GUID and MODSEQ: the kind of change, and flags. The general way is in `items` and `writer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from replicator.dsync.wire.fields import GUID_MAX, NUMBER_DIGITS, NUMBER_MAX, UID_MAX, Fields
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
    if change.type is ChangeType.EXPUNGE or not change.modseq or not _is_plain(change.guid):
        return None
    alike = _rest_of_line(change.type, change.flags, change.added, change.removed, change.recent)
    line = f"{LETTER}{change.type.value}\t{change.uid}\t{change.guid}\t{ABSENT}\t{change.modseq}\t{alike}\n"
    return line.encode(errors="surrogateescape")


@lru_cache(maxsize=ALIKE_MAX)
def _rest_of_line(
    kind: ChangeType,
    flags: frozenset[str],
    added: frozenset[str],
    removed: frozenset[str],
    recent: bool,  # noqa: FBT001 - part of what is remembered
) -> str:
    values = MailChange(kind, 1, "0", 1, flags, added, removed, recent).values()
    return encode_record(values.get(name) for name in _AFTER_MODSEQ)


class QuickReader:
    """The reading of the changes of a peer that has announced these names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        places = [names.index(name) if name in names else -1 for name in ("uid", "guid", "modseq")]
        self._uid, self._guid, self._modseq = places
        self._fewest, self._most = max(places) + 1, len(names) if min(places) >= 0 else 0
        self._alike = lru_cache(maxsize=ALIKE_MAX)(self._read)

    def read(self, record: str) -> MailChange | None:
        """Return the change that a record tells; None if it is to be read in the general way. Raises DsyncError."""
        values = record.split(TAB)
        if len(record) > RECORD_MAX or not self._fewest <= len(values) <= self._most:
            return None
        uid, guid, modseq = values[self._uid], values[self._guid], values[self._modseq]
        if not (_is_plain(guid) and _is_number(uid, UID_MAX) and _is_number(modseq, NUMBER_MAX)):
            return None
        values[self._uid], values[self._guid], values[self._modseq] = "1", ABSENT, ABSENT
        alike = self._alike(TAB.join(values))
        return MailChange(
            alike.type, int(uid), guid, int(modseq), alike.flags, alike.added, alike.removed, alike.recent
        )

    def _read(self, record: str) -> MailChange:
        return MailChange.of(Fields(LETTER, dict(zip(self._names, decode_record(record), strict=False))))


def _is_plain(guid: str) -> bool:
    """Return True if a GUID is written without escapes."""
    return guid.isprintable() and 0 < len(guid) <= GUID_MAX


def _is_number(value: str, most: int) -> bool:
    return value.isascii() and value.isdecimal() and len(value) <= NUMBER_DIGITS and int(value) <= most
