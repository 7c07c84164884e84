"""The check (CHECK in the grammar) of frames that tell of nodes, masters, a mailbox's number, or a whole state.

What is believed of these cannot be doubted later, or not for long enough to do no harm:

- HELLO, LINKS and SETTLED tell of nodes. A SID that nobody has would be known for good, and entries kept for it; a
  sequence number that is far too high is told on to every node.
- ROOT, DROPPED, WHO, MASTER-MOVE and their replies tell of terms and masters. A WHO or its answer that names another
  node gives a mailbox two masters until the term ends, and a DROPPED of another node ends its root's waiting too soon.
  A changed ROOT costs an election and no more; it has a check so that the rule has no exception.
- MBOX, SYNC and SNAPSHOT: a mailbox that is compared under another one's number is joined with it, and a log begins
  after what nobody has compared.

A check is of one frame on one link: whoever passes a statement on makes a new one. Entries and texts have digests of
their own, from their authors.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from protocol import commands as c

CHECK_BYTES = 16
CHECKED = (
    *(c.Hello, c.Links, c.Settled),
    *(c.Root, c.Dropped, c.Who, c.MasterMove, c.Master, c.Moved),
    *(c.Mbox, c.SyncNode, c.SyncMailbox, c.Snapshot),
)
"""The commands and replies that carry one."""


def check_of(text: bytes, literals: Iterable[bytes]) -> bytes:
    """`CHECK_BYTES` over a frame's text, its tag included, up to the SP before the check; then over its literals."""
    digest = blake2b(text, digest_size=CHECK_BYTES)
    for literal in literals:
        digest.update(literal)
    return digest.digest()
