"""Mailboxes whose syncs break off at a mail that cannot be read: passed over for a while, so that others are synced."""

from __future__ import annotations

import math

import trio

PASSED_OVER_S = 600.0
"""From a sync that has broken off in a mailbox to the next one that tries it."""


class HeldUp:
    """The mailboxes of all users of a node. Kept in memory: after a restart, one sync of each breaks off again."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, bytes], tuple[float, str]] = {}  # when, and why

    def note(self, user: str, mailbox_id: bytes, why: str) -> None:
        """Note that a sync has broken off in a mailbox."""
        self._noted = {one: noted for one, noted in self._noted.items() if _counts(noted[0])}
        self._noted[user, mailbox_id] = trio.current_time(), why

    def why(self, user: str, mailbox_id: bytes) -> str | None:
        """Return why a mailbox is to be passed over now; None if it is to be synced."""
        at, why = self._noted.get((user, mailbox_id), (-math.inf, ""))
        return why if _counts(at) else None


def _counts(at: float) -> bool:
    return trio.current_time() < at + PASSED_OVER_S
