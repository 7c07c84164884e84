"""Replay a path through the history of a mailbox or a tree, from its first entry on."""

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
