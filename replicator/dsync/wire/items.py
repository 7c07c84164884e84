"""Typed records: what each kind of line says, and how it is written.

GUIDs of mails are texts, as Dovecot compares them; ids of mailboxes are 16 bytes. Times are in seconds since 1970.
Bits of flags and lists of keywords are sets of IMAP flags here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from replicator.dsync.errors import DsyncError
from replicator.dsync.wire.values import decode_list, encode_list

NO_FLAGS: frozenset[str] = frozenset()
UID_MAX = 2**32 - 2
NUMBER_MAX = 2**63 - 1
GUID_MAX = 255
"""Characters of a mail's GUID: Dovecot's own are 32, or the name of a file in a Maildir."""

NO_SIZE = "ffffffffffffffff"
_BITS = {1: "\\Answered", 2: "\\Flagged", 4: "\\Deleted", 8: "\\Seen", 16: "\\Draft"}
_NUMBER = re.compile("[0-9]{1,20}")
_HEX = re.compile("[0-9a-f]{1,16}")
_ID = re.compile("[0-9a-f]{32}")

Values = Mapping[str, str | None]


class Fields:
    """Values of a record of the peer's, by name. Names that it has not announced are absent."""

    def __init__(self, letter: str, values: Values) -> None:
        self._letter = letter
        self._values = values

    def find(self, name: str) -> str | None:
        """Return a value, or None."""
        return self._values.get(name)

    def text(self, name: str) -> str:
        """Return a value that must be there. Raises DsyncError."""
        value = self.find(name)
        if value is None:
            raise DsyncError(f"the peer sent a record {self._letter} without {name}")
        return value

    def number(self, name: str, default: int | None = None, most: int = NUMBER_MAX) -> int:
        """Return a decimal number. Raises DsyncError."""
        value = self.find(name)
        if value is None and default is not None:
            return default
        value = self.text(name)
        if _NUMBER.fullmatch(value) is None or int(value) > most:
            raise self._wrong(name, value)
        return int(value)

    def hexadecimal(self, name: str) -> int:
        """Return a hexadecimal number; absent is 0. Raises DsyncError."""
        value = self.find(name)
        if value is None:
            return 0
        if _HEX.fullmatch(value) is None:
            raise self._wrong(name, value)
        return int(value, 16)

    def box_id(self, name: str) -> bytes:
        """Return the id of a mailbox. Raises DsyncError."""
        value = self.text(name)
        if _ID.fullmatch(value) is None:
            raise self._wrong(name, value)
        return bytes.fromhex(value)

    def is_set(self, name: str) -> bool:
        """Return True if the value is there."""
        return self.find(name) is not None

    def guid(self, name: str) -> str:
        """Return a mail's GUID; empty if it is unknown. Raises DsyncError."""
        value = self.find(name) or ""
        if len(value) > GUID_MAX or not value.isprintable():
            raise self._wrong(name, value)
        return value

    def _wrong(self, name: str, value: str) -> DsyncError:
        return DsyncError(f"the peer sent {value[:80]!r} as {name} in a record {self._letter}")


def _set(is_set: bool) -> str | None:  # noqa: FBT001
    return "" if is_set else None


def _number(number: int | None) -> str | None:
    return None if number is None else str(number)


@dataclass(frozen=True, slots=True)
class Handshake:
    """H: what the peer is called, and what kind of sync it wants."""

    hostname: str
    sync_type: str = ""
    backup_send: bool = False
    backup_recv: bool = False
    no_backup_overwrite: bool = False
    no_mail_sync: bool = False
    lock_timeout: int = 0
    sync_box: str | None = None
    sync_box_guid: str | None = None
    namespaces: str | None = None
    exclude_mailboxes: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()  # names of the options that leave out messages

    @classmethod
    def of(cls, fields: Fields) -> Handshake:
        """Return what a record says. Raises DsyncError."""
        limiting = ("sync_since_timestamp", "sync_until_timestamp", "sync_max_size", "sync_flags", "virtual_all_box")
        return cls(
            fields.text("hostname"),
            fields.find("sync_type") or "",
            fields.is_set("backup_send"),
            fields.is_set("backup_recv"),
            fields.is_set("no_backup_overwrite"),
            fields.is_set("no_mail_sync"),
            fields.number("lock_timeout", 0),
            fields.find("sync_box"),
            fields.find("sync_box_guid"),
            fields.find("sync_ns_prefix"),
            tuple(decode_list(fields.find("exclude_mailboxes") or "")),
            tuple(name for name in limiting if fields.find(name) not in (None, "0")),
        )

    def values(self) -> Values:
        """Return the values that the remote side tells: nobody reads more."""
        return {"hostname": self.hostname, "hashed_headers": ""}


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
            "changes_during_sync": _set(self.changes_during_sync),
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
            "last_renamed_or_created": _number(self.renamed_s or None),
            "subscribed": _set(self.subscribed),
            "last_subscription_change": _number(self.subscription_s or None),
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
            _times(fields.find("mailboxes") or ""),
            _times(fields.find("dirs") or ""),
            _times(fields.find("unsubscribes") or ""),
        )

    def values(self) -> Values:
        """Return the values to send."""
        return {
            "hierarchy_sep": self.separator,
            "escape_char": "%",
            "mailboxes": _times_text(self.mailboxes),
            "dirs": _times_text(self.directories),
            "unsubscribes": _times_text(self.unsubscribed),
        }


def _times(text: str) -> Mapping[bytes, int]:
    words = text.split(" ") if text else []
    ids, times = words[::2], words[1::2]
    if len(ids) != len(times) or not all(map(_ID.fullmatch, ids)) or not all(map(_NUMBER.fullmatch, times)):
        raise DsyncError("the peer sent a list of deletions that is none")
    return {bytes.fromhex(one): int(time) for one, time in zip(ids, times, strict=True)}


def _times_text(times: Mapping[bytes, int]) -> str | None:
    return " ".join(f"{one.hex()} {time}" for one, time in times.items()) or None


@dataclass(frozen=True, slots=True)
class Mailbox:
    """B: a mailbox's numbers. `lost`: this side lacks it, or has an older state of it than the peer remembers."""

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
            "mailbox_lost": _set(self.lost),
            "cache_fields": "",
            "have_guids": _set(self.have_guids),
            "have_save_guids": _set(self.have_save_guids),
            "have_only_guid128": _set(self.have_guids and self.have_only_guid128),
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
            "deleted": _set(self.value is None),
            "last_change": _number(self.changed_s or None),
            "modseq": str(self.modseq),
        }


class ChangeType(Enum):
    """What a change tells of a mail: it is there, its flags have changed, or it is expunged."""

    SAVE = "s"
    FLAGS = "f"
    EXPUNGE = "e"


@dataclass(frozen=True, slots=True)
class MailChange:
    """C: a mail, or that it is gone. `added` and `removed`: flags that a user of that side has changed."""

    type: ChangeType
    uid: int
    guid: str = ""
    modseq: int = 0
    flags: frozenset[str] = NO_FLAGS
    added: frozenset[str] = NO_FLAGS
    removed: frozenset[str] = NO_FLAGS

    @classmethod
    def of(cls, fields: Fields) -> MailChange:
        """Return what a record says. Raises DsyncError."""
        try:
            kind = ChangeType(fields.text("type"))
        except ValueError as error:
            raise DsyncError("the peer sent a change of an unknown type") from error
        final, added, removed = _keywords(decode_list(fields.find("keyword_changes") or ""))
        return cls(
            kind,
            fields.number("uid", most=UID_MAX),
            fields.guid("guid"),
            fields.number("modseq", 0),
            final | _flags(fields.hexadecimal("final_flags")),
            added | _flags(fields.hexadecimal("add_flags")),
            removed | _flags(fields.hexadecimal("remove_flags")),
        )

    def values(self) -> Values:
        """Return the values to send."""
        if self.type is ChangeType.EXPUNGE:
            return {"type": "e", "uid": str(self.uid), "guid": self.guid or None}
        return {
            "type": self.type.value,
            "uid": str(self.uid),
            "guid": self.guid,
            "modseq": _number(self.modseq or None),
            "add_flags": _bits(self.added),
            "remove_flags": _bits(self.removed),
            "final_flags": _bits(self.flags),
            "keyword_changes": _keyword_changes(self.flags, self.added, self.removed),
            "virtual_size": NO_SIZE,
        }


def _flags(bits: int) -> frozenset[str]:
    return frozenset(flag for bit, flag in _BITS.items() if bits & bit)


def _bits(flags: frozenset[str]) -> str | None:
    bits = sum(bit for bit, flag in _BITS.items() if flag in flags)
    return f"{bits:x}" if bits else None


def _keywords(changes: Sequence[str]) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return the keywords that a mail has, those that it was given, and those that were taken from it."""
    for change in changes:
        if change[:1] not in tuple("+-=&") or len(change) < 2:
            raise DsyncError("the peer sent a change of a keyword that is none")
    return (
        frozenset(change[1:] for change in changes if change[0] in "=&"),
        frozenset(change[1:] for change in changes if change[0] in "+&"),
        frozenset(change[1:] for change in changes if change[0] == "-"),
    )


def _keyword_changes(flags: frozenset[str], added: frozenset[str], removed: frozenset[str]) -> str | None:
    changes = []
    for keyword in sorted(flags | added | removed):
        if keyword.startswith("\\"):
            continue
        if keyword in flags:
            changes.append(("&" if keyword in added else "=") + keyword)
        else:
            changes.append(("+" if keyword in added else "-") + keyword)
    return encode_list(changes) or None


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
            fields.number("received_date", 0),
            fields.number("saved_date", 0),
            fields.is_set("stream"),
        )

    def values(self) -> Values:
        """Return the values to send."""
        return {
            "guid": self.guid or None,
            "uid": str(self.uid) if self.uid else None,
            "pop3_uidl": "",
            "received_date": _number(self.received_s or None),
            "saved_date": _number(self.saved_s or None),
            "stream": _set(self.streams),
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
            "mail_error": _number(self.mail_error),
            "require_full_resync": _set(self.full_resync),
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
