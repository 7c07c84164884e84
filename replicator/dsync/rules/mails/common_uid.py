"""The last common UID: up to it, both sides have had the same mails under the same UIDs."""

from __future__ import annotations

from collections.abc import Mapping

from replicator.dsync.wire.items import ChangeType, MailChange
from replicator.mail.listing import ListedMessage


class CommonUid:
    """The search for it, by the peer's changes, which ascend by UID.

    A mail of which nobody knows anything any more ends the search, because a new one may have been given its UID. So
    does one that the peer may have got below others that both sides have, while a sync placed these and was cut.
    """

    def __init__(self, expunged: Mapping[int, bytes], highest: int, unfinished: int | None = None) -> None:
        """`expunged`: GUIDs of expunged mails of this side, by UID. `highest`: the UID of its last mail.

        `unfinished`: as in `plan.Known`.
        """
        self._expunged = expunged
        self._seen = highest if unfinished is None else min(highest, unfinished)
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
            self.is_found = change.type is ChangeType.SAVE and (here is not None or change.uid > self._seen)
