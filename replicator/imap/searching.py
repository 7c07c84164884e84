"""SEARCH (RFC 3501 section 6.4.4)."""

from __future__ import annotations

from replicator.imap import commands as c
from replicator.imap.refusals import CommandFailedError
from replicator.imap.session import Completion, Session


async def search(_session: Session, _command: c.Search) -> Completion:
    """SEARCH and UID SEARCH."""
    raise CommandFailedError("There is no index to search yet", "CANNOT")
