"""Mail elsewhere, read as folders of messages: Maildirs and mboxes on this machine, and accounts of IMAP servers.

Messages are returned byte for byte, except that line ends become CRLF (RFC 5322 section 2.1). Nothing is written.
"""

from replicator.cli.sources.imap.account import read_account
from replicator.cli.sources.message import (
    FolderReader,
    Listing,
    MailSource,
    ReadMessage,
    SourceError,
    SourceFolder,
    SourceMessage,
)
from replicator.cli.sources.source import read_source

__all__ = [
    "FolderReader",
    "Listing",
    "MailSource",
    "ReadMessage",
    "SourceError",
    "SourceFolder",
    "SourceMessage",
    "read_account",
    "read_source",
]
