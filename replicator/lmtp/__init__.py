"""LMTP (RFC 2033): the door through which mail servers deliver.

`machine` is the protocol without I/O, on top of `syntax` (what clients may write) and `replies` (what we answer);
`trace` makes the headers that delivery adds, `delivery` gives messages to the mail store, `server` moves the bytes.
A message with several recipients is stored once for each *user*: two of its addresses that mean the same user make
one message in that INBOX, and both get its reply.
"""

from replicator.lmtp.server import LmtpServer
from replicator.lmtp.services import LmtpServices

__all__ = ["LmtpServer", "LmtpServices"]
