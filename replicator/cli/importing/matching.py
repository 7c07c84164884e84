"""Mail that is here already, found by its content: after an import whose memory is lost, or that has come by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from replicator.cli.api.client import HashedMail
from replicator.cli.sources import ReadMessage


class Matching:
    """Mail of a folder here by content, each of which is at most one mail of the source.

    `mails`: all that the folder has. `taken`: UIDs that are mails of earlier imports, and so no other's. `named`: UIDs
    that name other mails at the source.
    """

    def __init__(self, mails: Sequence[HashedMail], taken: Collection[int], named: Collection[int]) -> None:
        self.uids_here = frozenset(mail.uid for mail in mails)
        self._free: dict[str, list[HashedMail]] = {}
        for mail in mails:
            if mail.uid not in taken:
                self._free.setdefault(mail.sha256, []).append(mail)
        self._named = named

    def uid_of(self, read: ReadMessage) -> int | None:
        """Return the UID of a copy of this message here, and that never again."""
        if not self._free:
            return None
        for text in (read.text, read.former):
            mails = [] if text is None else self._free.get(hashlib.sha256(text).hexdigest(), [])
            for at, mail in enumerate(mails):
                if mail.uid == read.message.uid or mail.uid not in self._named or mail.guid == read.message.guid:
                    return mails.pop(at).uid
        return None
