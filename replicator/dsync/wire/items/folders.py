"""Records of a user's tree of folders: its names, and what was deleted of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from replicator.dsync.errors import DsyncError
from replicator.dsync.wire.fields import UID_MAX, Fields, Values, decimal, present, times_of, times_text
from replicator.dsync.wire.values import decode_list, encode_list

ESCAPE = "%"
"""Character that begins a character's code in the levels of a name that Dovecot is told; it sends no codes itself."""


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
            "name": encode_list(level.replace(ESCAPE, f"{ESCAPE}{ord(ESCAPE):02x}") for level in self.name),
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
            "escape_char": ESCAPE,
            "mailboxes": times_text(self.mailboxes),
            "dirs": times_text(self.directories),
            "unsubscribes": times_text(self.unsubscribed),
        }
