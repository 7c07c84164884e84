"""The last common UID: up to it, both sides have had the same mails under the same UIDs."""

from __future__ import annotations

from collections.abc import Mapping

from replicator.dsync.wire.items import ChangeType, MailChange
from replicator.mail.listing import ListedMessage


class CommonUid:
    """The search for it, by the peer's changes, which ascend by UID.

    A mail of which nobody knows anything any more ends the search, because a new one may have been given its UID.
    """

    def __init__(self, expunged: Mapping[int, bytes], highest: int) -> None:
        """`expunged`: GUIDs of expunged mails of this side, by UID. `highest`: the UID of its last mail."""
        self._expunged = expunged
        self._highest = highest
        self.uid = 0
        self.is_found = False  # whatever changes come

    def note(self, change: MailChange, guid: bytes, own: ListedMessage | None) -> None:
        """Note the next change, with its GUID as this side has it, beside this side's mail with that UID."""
        if self.is_found:
            return
        here = own.guid if own is not None else self._expunged.get(change.uid)
        if guid == here:
            self.uid = change.uid
        elif own is not None:
            self.is_found = bool(guid)
        else:
            self.is_found = change.type is ChangeType.SAVE and (here is not None or change.uid > self._highest)
