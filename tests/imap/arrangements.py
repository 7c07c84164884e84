"""Places of the door that a test talks to: the core's process, or one of its own. Most tests try both in CI."""

from __future__ import annotations

import pytest

from replicator.imap.services import ImapServices
from replicator.store.db.memory.folder_views import FolderViews
from replicator.workers.door.mail import RemoteMail
from tests.effort import first
from tests.one_node import HookedMail

ARRANGEMENTS = first(1, ["in the core", "apart"])

in_the_core = pytest.mark.parametrize("served", ["in the core"], indirect=True)
"""Mark of tests of when the mail store gets which piece of a large message: a door of its own hands on larger ones."""


def folder_views_of(served: ImapServices) -> FolderViews:
    """Return the live folders of the users whom the door watches."""
    if isinstance(served.mail, RemoteMail):
        return served.mail._followed._folder_views
    assert isinstance(served.mail, HookedMail)
    return served.mail.store.folder_views
