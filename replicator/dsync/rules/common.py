"""The last common UID: up to it, both sides have had the same mails under the same UIDs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from replicator.dsync.wire.items import ChangeType, MailChange


def last_common_uid(changes: Iterable[MailChange], own: Mapping[int, str], expunged: Mapping[int, str]) -> int:
    """Return it, by the peer's changes (ascending by UID) and the GUIDs of the own mails, and of expunged ones, by UID.

    A mail of which nobody knows anything any more ends the search, because a new one may have been given its UID.
    """
    common, highest = 0, max(own, default=0)
    for change in changes:
        guid = own.get(change.uid)
        if guid is not None:
            if change.guid == guid:
                common = change.uid
            elif change.guid:
                break
            continue
        known = expunged.get(change.uid)
        if known is not None and known == change.guid:
            common = change.uid
        elif change.type is ChangeType.SAVE and (known is not None or change.uid > highest):
            break
    return common
