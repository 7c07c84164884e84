"""Mail in other formats: Maildir and mbox, read as folders of messages.

Messages are returned byte for byte, except that line ends become CRLF (RFC 5322 section 2.1). Nothing is written.
"""

from replicator.cli.sources.message import MailSource, SourceError, SourceMessage
from replicator.cli.sources.source import read_source

__all__ = ["MailSource", "SourceError", "SourceMessage", "read_source"]
