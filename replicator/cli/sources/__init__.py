"""Mail as other software keeps it: Maildir and mbox, read as folders of messages.

Texts are given byte for byte, but for line ends, which become CRLF (RFC 5322 section 2.1). Nothing is written.
"""

from replicator.cli.sources.message import MailSource, SourceError, SourceMessage
from replicator.cli.sources.source import read_source

__all__ = ["MailSource", "SourceError", "SourceMessage", "read_source"]
