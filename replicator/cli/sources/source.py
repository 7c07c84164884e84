"""Detection of the kind of source at a path."""

from __future__ import annotations

from pathlib import Path

from replicator.cli.sources.maildir import read_maildir
from replicator.cli.sources.maildir_folders import is_maildir
from replicator.cli.sources.mbox import is_mbox, read_mbox
from replicator.cli.sources.message import MailSource, SourceError
from replicator.cli.sources.own_files import check_links


def read_source(path: Path, folder: str) -> MailSource:
    """Return the mail at `path`, a Maildir or an mbox, for `folder` and folders below it. Raises SourceError."""
    try:
        check_links(path)
        if is_maildir(path):
            return read_maildir(path, folder)
        if is_mbox(path):
            return read_mbox(path, folder)
    except OSError as error:
        raise SourceError(f"{error.filename or path}: {error.strerror}") from error
    raise SourceError(
        f"{path}: neither a Maildir (a directory with cur/ and new/) nor an mbox (a file whose first line is"
        " 'From ', an address and a date, such as 'From alice@example.org Thu Jan  1 12:00:00 2026');"
        " import mail in other formats by IMAP"
    )
