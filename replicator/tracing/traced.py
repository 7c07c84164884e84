"""The events of a trace, as the JSON API has them.

Neither mail nor secrets are among them: literals are told by their size and a mark, see `descriptions`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TracedPlace:
    """A mailbox, or a user's folder tree (`is_tree`). `mailbox` None: it is a tree, or has no name at this node.

    `mailbox_id` is hexadecimal, and empty if the command does not tell it.
    """

    user: str
    mailbox: str | None
    mailbox_id: str
    is_tree: bool


@dataclass(frozen=True, slots=True)
class TracedCommand:
    """A command or a reply. `time_ms`: when this node sent or received it; `size_bytes`: before compression.

    `entries` are those that it brings, acknowledges or tells, as `origin seq`. `answers`: the request to which it is
    the reply, and `took_ms` the time in between; None: it is no reply, or its request came before the trace. `detail`
    has the other values, for people.
    """

    time_ms: int
    peer: str
    sent: bool
    command: str
    tag: str | None
    answers: str | None
    took_ms: float | None
    places: tuple[TracedPlace, ...]
    entries: tuple[str, ...]
    size_bytes: int
    detail: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """So many commands are not told, because the listener was too slow."""

    commands: int


@dataclass(frozen=True, slots=True)
class LinkEnded:
    """The link to a peer has ended."""

    time_ms: int
    peer: str


@dataclass(frozen=True, slots=True)
class TraceEnded:
    """The end of the trace, and why."""

    why: str


TraceEvent: TypeAlias = TracedCommand | LeftOut | LinkEnded | TraceEnded


def document_of(event: TraceEvent | TracedPlace) -> dict[str, object]:
    """Return an event as JSON has it. `asdict` copies every value, and takes several times as long."""
    document = {each.name: getattr(event, each.name) for each in fields(event)}
    if isinstance(event, TracedCommand):
        document["places"] = [document_of(place) for place in event.places]
    return document


EVENTS: dict[str, type[TraceEvent]] = {
    "command": TracedCommand,
    "left_out": LeftOut,
    "link_ended": LinkEnded,
    "end": TraceEnded,
}
"""The events by their names in the stream."""
