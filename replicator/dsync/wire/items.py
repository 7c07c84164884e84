"""Typed records: what each kind of line says, and how it is written.

GUIDs of mails are texts, as Dovecot compares them; ids of mailboxes are 16 bytes. Times are in seconds since 1970.
Bits of flags and lists of keywords are sets of IMAP flags here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from replicator.dsync.errors import DsyncError
from replicator.dsync.wire.fields import UID_MAX, Fields, Values, decimal, present, times_of, times_text
from replicator.dsync.wire.flags import NO_FLAGS, RECENT_BIT, bits_of, flags_of, joined, keyword_changes, keywords_of
from replicator.dsync.wire.values import decode_list, encode_list

DATE_MAX_S = 253_402_300_799
"""The last second of the year 9999: IMAP shows no later one."""

HOSTNAME_MAX = 255
"""Characters of a peer's name (RFC 1035 section 2.3.4): it is remembered with each mailbox."""

STATEFUL, CHANGED, FULL = "s", "c", "f"
"""Types of a sync: by states of earlier ones; of mailboxes whose numbers differ; of all mails."""

HASHED_HEADERS = ("Date", "Message-ID")
REPLACEMENT = "_"
"""Values that a master has to tell, needed or not: headers that stand for a mail without a GUID, and what replaces
characters that a folder's name cannot have."""

NO_SIZE = "ffffffffffffffff"
"""A size that was not asked for."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """H: what a side is called, and what kind of sync it wants as the master. `lock_s`: how long to wait for locks."""

    hostname: str
    sync_type: str = ""
    backup_send: bool = False
    backup_recv: bool = False
    no_backup_overwrite: bool = False
    sync_box: str | None = None
    sync_box_guid: str | None = None
    namespaces: str | None = None
    exclude_mailboxes: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()  # names of the options that leave out messages
    lock_s: int | None = None

    @classmethod
    def of(cls, fields: Fields) -> Handshake:
        """Return what a record says. Raises DsyncError."""
        hostname = fields.text("hostname")
        if len(hostname) > HOSTNAME_MAX:
            raise DsyncError(f"the peer's name has more than {HOSTNAME_MAX} characters")
        limiting = ("sync_since_timestamp", "sync_until_timestamp", "sync_max_size", "sync_flags", "virtual_all_box")
        return cls(
            hostname,
            fields.find("sync_type") or "",
            fields.is_set("backup_send"),
            fields.is_set("backup_recv"),
            fields.is_set("no_backup_overwrite"),
            fields.find("sync_box"),
            fields.find("sync_box_guid"),
            fields.find("sync_ns_prefix"),
            tuple(decode_list(fields.find("exclude_mailboxes") or "")),
            tuple(name for name in limiting if fields.find(name) not in (None, "0")),
        )

    def values(self) -> Values:
        """Return the values to send. Those of the remote side, which wants nothing, are not read."""
        if not self.sync_type:
            return {"hostname": self.hostname, "hashed_headers": ""}
        return {
            "hostname": self.hostname,
            "sync_type": self.sync_type,
            "send_mail_requests": "",
            "lock_timeout": decimal(self.lock_s),
            "hashed_headers": encode_list(HASHED_HEADERS),
            "alt_char": REPLACEMENT,
        }


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
class TreeNode:
    """N: a name in the tree of folders. Without an id it is a directory, or a name that is only subscribed to."""

    name: tuple[str, ...]
    exists: bool = True
    mailbox_id: bytes | None = None
    uidvalidity: int = 0
    uidnext: int = 1
    renamed_s: int = 0
    subscribed: bool = False
    subscription_s: int = 0

    @classmethod
    def of(cls, fields: Fields) -> TreeNode:
        """Return what a record says. Raises DsyncError."""
        name = tuple(decode_list(fields.text("name")))
        if not all(name) or not name:
            raise DsyncError("the peer sent a folder whose name has an empty level")
        return cls(
            name,
            fields.text("existence") == "y",
            fields.box_id("mailbox_guid") if fields.find("mailbox_guid") else None,
            fields.number("uid_validity", 0, UID_MAX + 1),
            fields.number("uid_next", 1, UID_MAX + 1),
            fields.number("last_renamed_or_created", 0),
            fields.is_set("subscribed"),
            fields.number("last_subscription_change", 0),
        )

    def values(self) -> Values:
        """Return the values to send."""
        is_box = self.mailbox_id is not None
        return {
            "name": encode_list(self.name),
            "existence": "y" if self.exists else "n",
            "mailbox_guid": None if self.mailbox_id is None else self.mailbox_id.hex(),
            "uid_validity": str(self.uidvalidity) if is_box else None,
            "uid_next": str(self.uidnext) if is_box else None,
            "last_renamed_or_created": decimal(self.renamed_s or None),
            "subscribed": present(self.subscribed),
            "last_subscription_change": decimal(self.subscription_s or None),
        }


@dataclass(frozen=True, slots=True)
class Deletions:
    """D: when mailboxes were deleted (by id) and names unsubscribed from or deleted (by hash of the name)."""

    separator: str = "/"
    mailboxes: Mapping[bytes, int] = field(default_factory=dict)
    directories: Mapping[bytes, int] = field(default_factory=dict)
    unsubscribed: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def of(cls, fields: Fields) -> Deletions:
        """Return what a record says. Raises DsyncError."""
        return cls(
            fields.text("hierarchy_sep"),
            times_of(fields.find("mailboxes") or ""),
            times_of(fields.find("dirs") or ""),
            times_of(fields.find("unsubscribes") or ""),
        )

    def values(self) -> Values:
        """Return the values to send."""
        return {
            "hierarchy_sep": self.separator,
            "escape_char": "%",
            "mailboxes": times_text(self.mailboxes),
            "dirs": times_text(self.directories),
            "unsubscribes": times_text(self.unsubscribed),
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


class ChangeType(Enum):
    """Kind of a change to a mail: it is there, its flags have changed, or it is expunged."""

    SAVE = "s"
    FLAGS = "f"
    EXPUNGE = "e"


@dataclass(frozen=True, slots=True)
class MailChange:
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


@dataclass(frozen=True, slots=True)
class Finish:
    """F: the end, and what is wrong. `full_resync`: the peer is to forget what it remembers of this side."""

    error: str | None = None
    mail_error: int | None = None
    full_resync: bool = False

    @classmethod
    def of(cls, fields: Fields) -> Finish:
        """Return what a record says. Raises DsyncError."""
        return cls(fields.find("error"), fields.number("mail_error", 0) or None, fields.is_set("require_full_resync"))

    def values(self) -> Values:
        """Return the values to send."""
        return {
            "error": self.error,
            "mail_error": decimal(self.mail_error),
            "require_full_resync": present(self.full_resync),
        }


Item = Handshake | MailboxState | TreeNode | Deletions | Mailbox | Attribute | MailChange | MailRequest | Mail | Finish

TYPES: Mapping[str, type[Item]] = {
    "H": Handshake,
    "S": MailboxState,
    "N": TreeNode,
    "D": Deletions,
    "B": Mailbox,
    "A": Attribute,
    "C": MailChange,
    "R": MailRequest,
    "M": Mail,
    "F": Finish,
}
LETTERS: Mapping[type[Item], str] = {kind: letter for letter, kind in TYPES.items()}
