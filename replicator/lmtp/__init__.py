"""LMTP (RFC 2033): the door through which mail servers deliver.

`machine` is the protocol without I/O, on top of `syntax` (clients' arguments), `replies` (our replies) and `events`
(what it tells `server`, which moves the bytes); `trace` builds the headers that delivery adds, and `delivery` hands
messages to the mail store. A message with several recipients is stored once for each *user*: two recipient addresses of
the same user result in one message in that INBOX, and both get its reply.
"""

from replicator.lmtp.server import LmtpServer
from replicator.lmtp.services import LmtpServices, places_of

__all__ = ["LmtpServer", "LmtpServices", "places_of"]
