"""Records of a whole sync: the handshakes at its beginning, and its end."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.dsync.errors import DsyncError
from replicator.dsync.wire.fields import Fields, Values, decimal, present
from replicator.dsync.wire.values import decode_list, encode_list

HOSTNAME_MAX = 255
"""Characters of a peer's name (RFC 1035 section 2.3.4): it is remembered with each mailbox."""

STATEFUL, CHANGED, FULL = "s", "c", "f"
"""Types of a sync: by states of earlier ones; of mailboxes whose numbers differ; of all mails."""

HASHED_HEADERS = ("Date", "Message-ID")
REPLACEMENT = "_"
"""Values that a master has to tell, needed or not: headers that stand for a mail without a GUID, and what replaces
characters that a folder's name cannot have."""


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
