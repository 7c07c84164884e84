"""Pushes beside Dovecot's own replicator, with Maildirs: to be run by name, as it does not always pass.

A mail to which Dovecot gives another UID may be told under both for a moment, and then has the GUID of a copy at the
node (`replicator.dsync.rules.mails.copies`). UIDs, texts and flags are the same.
"""

from __future__ import annotations

from pathlib import Path

from tests.dsync.beside_replicator import play
from tests.dsync.dovecot import MAILDIR, needs_dovecot


@needs_dovecot
async def test_both_sides_become_equal(tmp_path: Path) -> None:
    await play(tmp_path, MAILDIR)
