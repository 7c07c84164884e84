"""Texts by UIDs, in little memory, which come in ascending order."""

from __future__ import annotations

from array import array
from bisect import bisect_left


class AscendingTexts:
    """Texts by UIDs that are added in ascending order: each takes its length in UTF-8, and 12 bytes."""

    def __init__(self) -> None:
        self._uids = array("I")
        self._ends = array("Q")
        self._texts = bytearray()

    def add(self, uid: int, text: str) -> None:
        """Add the text of a UID above all others."""
        self._uids.append(uid)
        self._texts += text.encode(errors="surrogateescape")
        self._ends.append(len(self._texts))

    def __len__(self) -> int:
        return len(self._uids)

    def find(self, uid: int) -> str | None:
        """Return the text of a UID."""
        at = bisect_left(self._uids, uid)
        if at == len(self._uids) or self._uids[at] != uid:
            return None
        start = self._ends[at - 1] if at else 0
        return self._texts[start : self._ends[at]].decode(errors="surrogateescape")
