"""The check (CHECK in the grammar) of frames that tell who a node is, what a mailbox's number means, or a whole state.

What is believed of these cannot be doubted later: a mailbox that is compared under another one's number is joined with
it, and a log begins after what nobody has compared. Entries and texts have digests of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from protocol import commands as c

CHECK_BYTES = 16
CHECKED = (c.Hello, c.Mbox, c.SyncNode, c.SyncMailbox, c.Snapshot)
"""The commands and replies that carry one."""


def check_of(text: bytes, literals: Iterable[bytes]) -> bytes:
    """`CHECK_BYTES` over a frame's text, its tag included, up to the SP before the check; then over its literals."""
    digest = blake2b(text, digest_size=CHECK_BYTES)
    for literal in literals:
        digest.update(literal)
    return digest.digest()
