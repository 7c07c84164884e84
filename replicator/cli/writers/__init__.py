"""Mail in other formats: Maildir and mbox, written folder by folder into a new directory.

Line ends become LF, as in the files of other programs; no mail is held in memory.
"""

from replicator.cli.writers.destination import DestinationError, FolderWriter, MailWriter, fresh_directory
from replicator.cli.writers.maildir import MaildirWriter
from replicator.cli.writers.mbox import MboxWriter

__all__ = ["DestinationError", "FolderWriter", "MailWriter", "MaildirWriter", "MboxWriter", "fresh_directory"]
