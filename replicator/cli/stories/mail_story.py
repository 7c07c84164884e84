"""The answers of several nodes about one mail, put together: each life of a mail in a folder once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from replicator.cli.target import NodeUrl
from replicator.stories import Arrivals, MailLife, MailStory, Sameness
from resync.story.lives import Event, FolderEvent

Heard: TypeAlias = Literal["shown", "waits", "absent", "unknown"]
"""The part of an event that a node has: its effect, its entry alone, or neither; or this is not told."""

_SAMENESS: Sequence[Sameness] = get_args(Sameness)


@dataclass(frozen=True, slots=True)
class NodeTold:
    """A node's answer, or the error if it gave none."""

    url: NodeUrl
    story: MailStory | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        """The node's id, if it is known, else its address."""
        return self.story.node if self.story is not None else self.url.name


@dataclass(frozen=True, slots=True)
class JoinedEvent:
    """One thing that happened, with what each node that knows of the mail has heard of it."""

    event: Event
    heard: Mapping[str, Heard]


@dataclass(frozen=True, slots=True)
class JoinedLife:
    """The life of one mail in one folder, as nodes tell it; `lives` by node."""

    same: Sameness
    lives: Mapping[str, MailLife]
    events: tuple[JoinedEvent, ...]

    @property
    def any(self) -> MailLife:
        """One node's telling, of those that still show the mail, if any does."""
        return max(self.lives.values(), key=lambda life: (life.shown is not None, life.kept is not None))

    @property
    def shown_at(self) -> dict[str, int]:
        """The mail's UIDs by the nodes that show it."""
        return {node: life.shown.uid for node, life in self.lives.items() if life.shown is not None}

    @property
    def gone_at(self) -> list[str]:
        """The nodes that know of the mail and do not show it any more."""
        return [node for node, life in self.lives.items() if life.shown is None and not _is_coming(life)]

    @property
    def coming_at(self) -> list[str]:
        """The nodes that know of the mail and do not show it yet: the entry that puts it there waits."""
        return [node for node, life in self.lives.items() if _is_coming(life)]


@dataclass(frozen=True, slots=True)
class JoinedStory:
    """The answers of all nodes. `answered`: those that gave one; `not_asked`: nodes of the cluster not named."""

    user: str
    mailbox: str
    lives: tuple[JoinedLife, ...]
    arrivals: tuple[Arrivals, ...]
    folders: tuple[FolderEvent, ...]
    answered: tuple[str, ...]
    not_asked: tuple[str, ...]


def join(told: Iterable[NodeTold]) -> JoinedStory:
    """Put the stories together. At least one node has answered."""
    stories = [one.story for one in told if one.story is not None]
    keys = dict.fromkeys((life.mailbox_id, life.guid) for story in stories for life in story.lives)
    lives = [_joined(stories, *key) for key in keys]
    lives.sort(key=lambda life: _SAMENESS.index(life.same))
    pairs = sorted((one for story in stories for one in story.arrivals), key=lambda one: one.joined_ms or 0)
    arrivals = {(one.one, one.other): one for one in pairs}  # of a pair, the one whose node knows of the merge
    folders = {(one.entry, one.mailbox_id, one.kind): one for story in stories for one in story.folders}
    peers = {peer for story in stories for peer in story.peers}
    return JoinedStory(
        stories[0].user,
        stories[0].mailbox,
        tuple(lives),
        tuple(arrivals.values()),
        tuple(sorted(folders.values(), key=lambda event: event.time_ms)),
        tuple(dict.fromkeys(story.node for story in stories)),
        tuple(sorted(peers - {one.name for one in told})),
    )


def _joined(stories: Sequence[MailStory], mailbox_id: str, guid: str) -> JoinedLife:
    lives = {
        story.node: life
        for story in stories
        for life in story.lives
        if (life.mailbox_id, life.guid) == (mailbox_id, guid)
    }
    best: dict[tuple[str, str], Event] = {}
    for life in lives.values():
        for event in life.events:
            known = best.get((event.entry, event.kind))
            if known is None or len(known.was) < len(event.was):
                best[event.entry, event.kind] = event
    events = sorted(best.values(), key=lambda event: (event.time_ms, event.entry))
    same = min((life.same for life in lives.values()), key=_SAMENESS.index)
    return JoinedLife(
        same,
        lives,
        tuple(JoinedEvent(event, {node: _heard(event, life) for node, life in lives.items()}) for event in events),
    )


def better(one: MailLife, other: MailLife) -> MailLife:
    """Return one of a node's two tellings of one mail: where it has more in common with the mail asked for."""
    return min(one, other, key=lambda life: _SAMENESS.index(life.same))


def _is_coming(life: MailLife) -> bool:
    kinds = {event.kind: event.entry in life.unshown for event in life.events}
    is_gone = life.shown is not None or life.kept is not None or kinds.keys() & {"expunged", "removed"}
    return not is_gone and (kinds.get("arrived", False) or kinds.get("copied", False))


def _heard(event: Event, life: MailLife) -> Heard:
    if any(event.entry == one.entry for one in life.events):
        return "waits" if event.entry in life.unshown else "shown"
    if life.events_left:
        return "unknown"
    is_told = life.is_whole or (life.log_since_ms is not None and life.log_since_ms <= event.time_ms)
    return "absent" if is_told else "unknown"
