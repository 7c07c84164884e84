"""Mail that is here already, found by its content: after an import whose memory is lost, or that has come by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from replicator.cli.sources import ReadMessage


class Matching:
    """Mail of a folder here by content, each of which is at most one mail of the source.

    `contents`: UIDs by SHA-256, as the node tells them. `taken`: UIDs that are mails of earlier imports, and so no
    other's. `named`: UIDs that name other mails at the source.
    """

    def __init__(self, contents: Mapping[str, list[int]], taken: Collection[int], named: Collection[int]) -> None:
        self.uids_here = frozenset(uid for uids in contents.values() for uid in uids)
        self._free = {sha256: [uid for uid in uids if uid not in taken] for sha256, uids in contents.items()}
        self._named = named

    def uid_of(self, read: ReadMessage) -> int | None:
        """Return the UID of a copy of this message here, and that never again."""
        if not self._free:
            return None
        for text in (read.text, read.former):
            uids = [] if text is None else self._free.get(hashlib.sha256(text).hexdigest(), [])
            for at, uid in enumerate(uids):
                if uid == read.message.uid or uid not in self._named:
                    return uids.pop(at)
        return None
