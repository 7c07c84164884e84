"""Lines of the log, at level debug, about what this node does with each entry.

An entry has one name at all nodes, `ORIGIN:SEQ`, which the line about a delivery has, too. So an operator can follow a
change from the node that took it to those that show it, by one word.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from replicator.runtime.logs.fields import LogFields
from replicator.store.db.transaction import Commit
from resync.entry import Entry

log = logging.getLogger(__name__)


def tell(commit: Commit, own: str) -> None:
    """Log what a commit has written and applied; `own` is the origin of this run."""
    if log.isEnabledFor(logging.DEBUG):
        for event, entry in _events(commit, own):
            log.debug("%s %s", event, LogFields(_fields(entry)))
        for dot in commit.absorbed:
            log.debug("%s %s", "abandoned" if dot in commit.abandoned else "merged", LogFields({"entry": dot.name}))


def _events(commit: Commit, own: str) -> Iterator[tuple[str, Entry]]:
    applied = {entry.dot for entry in commit.applied}
    logged = {item.entry.dot for item in commit.logged}
    for item in commit.logged:
        what = "numbered" if item.entry.dot.origin == own else "took in"
        yield what if item.entry.dot in applied else f"{what} to wait", item.entry
    for entry in commit.applied:
        if entry.dot not in logged:
            yield "took over" if entry.dot in commit.adopted else "applied", entry


def _fields(entry: Entry) -> dict[str, object]:
    return {
        "entry": entry.dot.name,
        "user": entry.user,
        "mailbox": None if entry.is_tree else entry.mailbox_id.hex(),
        "modseq": entry.modseq,
        "changes": len(entry.changes),
    }
