"""Records of mails: what has changed, which mail is lacking, and the mail itself.

Bits of flags and lists of keywords are sets of IMAP flags here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from replicator.dsync.errors import DsyncError
from replicator.dsync.wire.fields import UID_MAX, Fields, Values, decimal, present
from replicator.dsync.wire.flags import NO_FLAGS, RECENT_BIT, bits_of, flags_of, joined, keyword_changes, keywords_of
from replicator.dsync.wire.values import decode_list

DATE_MAX_S = 253_402_300_799
"""The last second of the year 9999: IMAP shows no later one."""

NO_SIZE = "ffffffffffffffff"
"""A size that was not asked for."""


class ChangeType(Enum):
    """Kind of a change to a mail: it is there, its flags have changed, or it is expunged."""

    SAVE = "s"
    FLAGS = "f"
    EXPUNGE = "e"

    __hash__ = object.__hash__  # that of Enum is slow


class MailChange(NamedTuple):
    r"""C: a mail, or that it is gone. `added` and `removed`: flags that a user of that side has changed.

    `recent`: the mail is `\Recent` there.
    """

    type: ChangeType
    uid: int
    guid: str = ""
    modseq: int = 0
    flags: frozenset[str] = NO_FLAGS
    added: frozenset[str] = NO_FLAGS
    removed: frozenset[str] = NO_FLAGS
    recent: bool = False

    @classmethod
    def of(cls, fields: Fields) -> MailChange:
        """Return what a record says. Raises DsyncError."""
        try:
            kind = ChangeType(fields.text("type"))
        except ValueError as error:
            raise DsyncError("the peer sent a change of an unknown type") from error
        final, added, removed = keywords_of(decode_list(fields.find("keyword_changes") or ""))
        bits = fields.hexadecimal("final_flags")
        return cls(
            kind,
            fields.number("uid", most=UID_MAX),
            fields.guid("guid"),
            fields.number("modseq", 0),
            joined(final, flags_of(bits)),
            joined(added, flags_of(fields.hexadecimal("add_flags"))),
            joined(removed, flags_of(fields.hexadecimal("remove_flags"))),
            recent=bool(bits & RECENT_BIT),
        )

    def values(self) -> Values:
        """Return the values to send."""
        if self.type is ChangeType.EXPUNGE:
            return {"type": "e", "uid": str(self.uid), "guid": self.guid or None}
        return {
            "type": self.type.value,
            "uid": str(self.uid),
            "guid": self.guid,
            "modseq": decimal(self.modseq or None),
            "add_flags": bits_of(self.added),
            "remove_flags": bits_of(self.removed),
            "final_flags": bits_of(self.flags, RECENT_BIT if self.recent else 0),
            "keyword_changes": keyword_changes(self.flags, self.added, self.removed),
            "virtual_size": NO_SIZE,
        }


@dataclass(frozen=True, slots=True)
class MailRequest:
    """R: a mail that a side lacks."""

    guid: str
    uid: int = 0

    @classmethod
    def of(cls, fields: Fields) -> MailRequest:
        """Return what a record says. Raises DsyncError."""
        return cls(fields.guid("guid"), fields.number("uid", 0, UID_MAX))

    def values(self) -> Values:
        """Return the values to send."""
        return {"guid": self.guid or None, "uid": str(self.uid)}


@dataclass(frozen=True, slots=True)
class Mail:
    """M: a requested mail. Its text follows in pieces if `streams`; it is expunged otherwise."""

    guid: str
    uid: int = 0
    received_s: int = 0
    saved_s: int = 0
    streams: bool = True

    @classmethod
    def of(cls, fields: Fields) -> Mail:
        """Return what a record says. Raises DsyncError."""
        return cls(
            fields.guid("guid"),
            fields.number("uid", 0, UID_MAX),
            min(fields.number("received_date", 0), DATE_MAX_S),
            min(fields.number("saved_date", 0), DATE_MAX_S),
            fields.is_set("stream"),
        )

    def values(self) -> Values:
        """Return the values to send."""
        return {
            "guid": self.guid or None,
            "uid": str(self.uid) if self.uid else None,
            "pop3_uidl": "",
            "received_date": decimal(self.received_s or None),
            "saved_date": decimal(self.saved_s or None),
            "stream": present(self.streams),
        }
