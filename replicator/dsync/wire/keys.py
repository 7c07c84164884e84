"""Kinds of records, and the names of their values, in the order in which this side sends them.

Each side announces its own names at the beginning, and the other reads its records by them: versions of Dovecot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAJOR, MINOR = 3, 5
VERSION = f"VERSION\tdsync\t{MAJOR}\t{MINOR}"
CLOSING = "X"
"""The line of a side that ends the conversation before its time."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Names of a record's values: those without which the peer's records have no meaning, and the others."""

    required: tuple[str, ...]
    optional: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in our order."""
        return self.required + self.optional


def _kind(required: str, optional: str = "") -> Kind:
    return Kind(tuple(required.split()), tuple(optional.split()))


KINDS: Mapping[str, Kind] = {
    "H": _kind(
        "hostname",
        "sync_ns_prefix sync_box sync_box_guid sync_type debug sync_visible_namespaces exclude_mailboxes"
        " send_mail_requests backup_send backup_recv lock_timeout no_mail_sync no_backup_overwrite purge_remote"
        " no_notify sync_since_timestamp sync_max_size sync_flags sync_until_timestamp virtual_all_box"
        " empty_hdr_workaround import_commit_msgs_interval hashed_headers alt_char",
    ),
    "S": _kind(
        "mailbox_guid last_uidvalidity last_common_uid last_common_modseq last_common_pvt_modseq",
        "last_messages_count changes_during_sync",
    ),
    "N": _kind(
        "name existence",
        "mailbox_guid uid_validity uid_next last_renamed_or_created subscribed last_subscription_change",
    ),
    "D": _kind("hierarchy_sep", "escape_char mailboxes dirs unsubscribes"),
    "B": _kind(
        "mailbox_guid uid_validity uid_next messages_count first_recent_uid highest_modseq highest_pvt_modseq",
        "mailbox_lost mailbox_ignore cache_fields have_guids have_save_guids have_only_guid128",
    ),
    "A": _kind("type key", "value stream deleted last_change modseq"),
    "C": _kind(
        "type uid",
        "guid hdr_hash modseq pvt_modseq add_flags remove_flags final_flags keywords_reset keyword_changes"
        " received_timestamp virtual_size",
    ),
    "R": _kind("", "guid uid"),
    "M": _kind("", "guid uid pop3_uidl pop3_order received_date saved_date stream"),
    "F": _kind("", "error mail_error require_full_resync"),
    "c": _kind("name decision", "last_used"),
}
