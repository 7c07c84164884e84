"""States at the end of a path through a history that begins with the first entry of a mailbox, or of a tree."""

from collections.abc import Iterable

from resync.entry import Entry
from resync.folder_tree import TreeState
from resync.state import MailboxState


def replay(entries: Iterable[Entry]) -> MailboxState:
    state = MailboxState()
    for entry in entries:
        state.apply(entry)
    return state


def replay_tree(entries: Iterable[Entry]) -> TreeState:
    state = TreeState()
    for entry in entries:
        state.apply(entry)
    return state
