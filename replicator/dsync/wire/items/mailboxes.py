"""Records of one mailbox: its numbers, its annotations, and up to where two sides are equal."""

from __future__ import annotations

from dataclasses import dataclass, replace

from replicator.dsync.wire.fields import UID_MAX, Fields, Values, decimal, present


@dataclass(frozen=True, slots=True)
class MailboxState:
    """S: up to where two sides are equal in a mailbox."""

    mailbox_id: bytes
    uidvalidity: int
    last_common_uid: int
    last_common_modseq: int
    messages: int = 0
    changes_during_sync: bool = False

    @classmethod
    def of(cls, fields: Fields) -> MailboxState:
        """Return what a record says. Raises DsyncError."""
        return cls(
            fields.box_id("mailbox_guid"),
            fields.number("last_uidvalidity", most=UID_MAX + 1),
            fields.number("last_common_uid", most=UID_MAX),
            fields.number("last_common_modseq"),
            fields.number("last_messages_count", 0),
            fields.is_set("changes_during_sync"),
        )

    def values(self) -> Values:
        """Return the values to send."""
        return {
            "mailbox_guid": self.mailbox_id.hex(),
            "last_uidvalidity": str(self.uidvalidity),
            "last_common_uid": str(self.last_common_uid),
            "last_common_modseq": str(self.last_common_modseq),
            "last_common_pvt_modseq": "0",
            "last_messages_count": str(self.messages),
            "changes_during_sync": present(self.changes_during_sync),
        }


@dataclass(frozen=True, slots=True)
class Mailbox:
    """B: a mailbox's numbers. `lost`: this side lacks it, or has an older state of it than the peer remembers.

    `ignored`: it is to be passed over.
    """

    mailbox_id: bytes
    uidvalidity: int
    uidnext: int
    messages: int
    first_recent_uid: int
    highestmodseq: int
    highest_private_modseq: int = 0
    lost: bool = False
    ignored: bool = False
    have_guids: bool = True
    have_save_guids: bool = True
    have_only_guid128: bool = True

    @classmethod
    def of(cls, fields: Fields) -> Mailbox:
        """Return what a record says. Raises DsyncError."""
        return cls(
            fields.box_id("mailbox_guid"),
            fields.number("uid_validity", most=UID_MAX + 1),
            fields.number("uid_next", most=UID_MAX + 1),
            fields.number("messages_count", most=UID_MAX),
            fields.number("first_recent_uid", most=UID_MAX + 1),
            fields.number("highest_modseq"),
            fields.number("highest_pvt_modseq"),
            fields.is_set("mailbox_lost"),
            fields.is_set("mailbox_ignore"),
            fields.is_set("have_guids"),
            fields.is_set("have_save_guids"),
            fields.is_set("have_only_guid128"),
        )

    @classmethod
    def lacking(cls, mailbox_id: bytes) -> Mailbox:
        """Return the numbers of a mailbox that is lost."""
        return cls(mailbox_id, 0, 0, 0, 0, 0, 0, lost=True, have_guids=False, have_save_guids=False)

    @classmethod
    def passed_over(cls, mailbox_id: bytes) -> Mailbox:
        """Return the numbers of a mailbox that is not to be synced now."""
        return replace(cls.lacking(mailbox_id), lost=False, ignored=True)

    def values(self) -> Values:
        """Return the values to send."""
        return {
            "mailbox_guid": self.mailbox_id.hex(),
            "uid_validity": str(self.uidvalidity),
            "uid_next": str(self.uidnext),
            "messages_count": str(self.messages),
            "first_recent_uid": str(self.first_recent_uid),
            "highest_modseq": str(self.highestmodseq),
            "highest_pvt_modseq": "0",
            "mailbox_lost": present(self.lost),
            "mailbox_ignore": present(self.ignored),
            "cache_fields": "",
            "have_guids": present(self.have_guids),
            "have_save_guids": present(self.have_save_guids),
            "have_only_guid128": present(self.have_guids and self.have_only_guid128),
        }

    def equals(self, other: Mailbox) -> bool:
        """Return True if the numbers show no difference: there is nothing to sync then."""
        return self._numbers() == other._numbers()

    def _numbers(self) -> tuple[int, ...]:
        return (
            self.uidvalidity,
            self.uidnext,
            self.messages,
            self.first_recent_uid,
            self.highestmodseq,
            self.highest_private_modseq,
        )


@dataclass(frozen=True, slots=True)
class Attribute:
    """A: an annotation of a mailbox (RFC 5464). `streams`: its value follows in pieces."""

    shared: bool
    key: str
    value: str | None = None
    streams: bool = False
    changed_s: int = 0
    modseq: int = 0

    @classmethod
    def of(cls, fields: Fields) -> Attribute:
        """Return what a record says. Raises DsyncError."""
        return cls(
            fields.text("type") == "s",
            fields.text("key"),
            None if fields.is_set("deleted") else fields.find("value"),
            fields.is_set("stream"),
            fields.number("last_change", 0),
            fields.number("modseq", 0),
        )

    def values(self) -> Values:
        """Return the values to send."""
        return {
            "type": "s" if self.shared else "p",
            "key": self.key,
            "value": self.value,
            "deleted": present(self.value is None),
            "last_change": decimal(self.changed_s or None),
            "modseq": str(self.modseq),
        }
