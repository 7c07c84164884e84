"""LMTP (RFC 2033): the door through which mail servers deliver.

`machine` is the protocol without I/O, on top of `syntax` (clients' arguments) and `replies` (our replies); `trace`
builds the headers that delivery adds, `delivery` hands messages to the mail store, `server` moves the bytes. A message
with several recipients is stored once for each *user*: two recipient addresses of the same user result in one message
in that INBOX, and both get its reply.
"""

from replicator.lmtp.server import LmtpServer
from replicator.lmtp.services import LmtpServices, places_of

__all__ = ["LmtpServer", "LmtpServices", "places_of"]
