"""The states of names in the directory, and the transitions between them. docs/attachments.md is generated from this.

An S-name belongs to one process. An H-name belongs to all: a process that removes `holders/` makes the attachment dead,
and any process that finds it dead may remove the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum

from replicator.store.attachments import names
from replicator.store.attachments.linking import content_in


class State(StrEnum):
    """The state of an S-name or an H-name."""

    NON_EXISTENT = "non-existent"
    IN_CONSTRUCTION = "in construction"  # S-names only
    COMPLETE = "complete"
    IN_DELETION = "in deletion"


class Event(StrEnum):
    """An event that changes the state of a name."""

    BEGUN = "its directory is made"
    WRITTEN = "its content is whole"
    RENAMED = "it gets its H-name"
    PUBLISHED = "a new attachment gets this name"
    LINKED = "a holder is added"
    UNLINKED = "a holder is removed"
    CLOSED = "the empty `holders/` is removed"
    EMPTIED = "its content is removed"
    REMOVED = "its directory is removed"


S_TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.NON_EXISTENT, Event.BEGUN): State.IN_CONSTRUCTION,
    (State.IN_CONSTRUCTION, Event.WRITTEN): State.COMPLETE,
    (State.IN_CONSTRUCTION, Event.CLOSED): State.IN_DELETION,  # abandoned
    (State.IN_CONSTRUCTION, Event.REMOVED): State.NON_EXISTENT,  # with nothing in it yet
    (State.COMPLETE, Event.RENAMED): State.NON_EXISTENT,
    (State.COMPLETE, Event.UNLINKED): State.COMPLETE,
    (State.COMPLETE, Event.CLOSED): State.IN_DELETION,
    (State.IN_DELETION, Event.EMPTIED): State.IN_DELETION,
    (State.IN_DELETION, Event.REMOVED): State.NON_EXISTENT,
}

H_TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.NON_EXISTENT, Event.PUBLISHED): State.COMPLETE,
    (State.COMPLETE, Event.LINKED): State.COMPLETE,
    (State.COMPLETE, Event.UNLINKED): State.COMPLETE,
    (State.COMPLETE, Event.CLOSED): State.IN_DELETION,
    (State.IN_DELETION, Event.EMPTIED): State.IN_DELETION,
    (State.IN_DELETION, Event.PUBLISHED): State.COMPLETE,  # if empty, where a rename may replace an empty directory
    (State.IN_DELETION, Event.REMOVED): State.NON_EXISTENT,
}
"""Transitions of an H-name. From "in deletion", only another attachment leads back."""


def state_of_h(found: AbstractSet[str] | None) -> State:
    """Return the state that an H-name's directory shows by its content; None: there is no directory."""
    if found is None:
        return State.NON_EXISTENT
    return State.COMPLETE if names.HOLDERS in found else State.IN_DELETION


def states_of_s(found: AbstractSet[str] | None, *, is_whole: bool) -> frozenset[State]:
    """Return the possible states of an S-name's directory. Only its builder knows if the content `is_whole`.

    An empty directory may be about to be filled or about to be removed.
    """
    if found is None:
        return frozenset({State.NON_EXISTENT})
    if names.HOLDERS in found:
        is_complete = is_whole and content_in(found) is not None
        return frozenset({State.COMPLETE if is_complete else State.IN_CONSTRUCTION})
    return frozenset({State.IN_DELETION}) if found else frozenset({State.IN_CONSTRUCTION, State.IN_DELETION})


def may_follow(transitions: Mapping[tuple[State, Event], State], before: State, after: State) -> bool:
    """Return True if one step can lead from one state to the other; remaining in a state is always possible."""
    return before is after or any(old is before and new is after for (old, _), new in transitions.items())
