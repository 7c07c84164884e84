"""The check (CHECK in the grammar) of frames about nodes, masters, a mailbox's number, or a whole state.

False statements in these frames cannot be detected later, or not before they do harm:

- HELLO, LINKS and SETTLED describe nodes. A SID that no node has would be remembered for good, and entries kept for it;
  a sequence number that is far too high is flooded to every node.
- ROOT, DROPPED, WHO, MASTER-MOVE and their replies describe terms and masters. A WHO or an answer that names another
  node gives a mailbox two masters until the term ends, and a DROPPED of another node ends its root's waiting too soon.
  A changed ROOT costs no more than an election; it has a check so that the rule has no exception.
- MBOX, SYNC and SNAPSHOT describe states. A mailbox that is compared under another one's number is merged with it, and
  a log begins after entries that were never compared.

A check covers one frame on one link: a node that passes a statement on makes a new one. Entries and bodies carry
digests from their authors.
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
"""The commands and replies that carry a check."""


def check_of(text: bytes, literals: Iterable[bytes]) -> bytes:
    """Return `CHECK_BYTES` over a frame's text (with its tag, up to the SP before the check) and then its literals."""
    digest = blake2b(text, digest_size=CHECK_BYTES)
    for literal in literals:
        digest.update(literal)
    return digest.digest()
