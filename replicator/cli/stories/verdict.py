"""One or two plain sentences that answer why a mail is there twice, gone, or back.

They say what the nodes that were asked know, and no more. A node that is named with a change is the one that numbered
it: the mailbox's master at that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from replicator.cli.output import listed
from replicator.cli.stories.mail_story import JoinedLife, JoinedStory
from replicator.cli.times import local
from replicator.stories import Arrivals, MailLife
from resync.story.lives import Event

TOLD_MAX = 5  # mails of which a sentence tells
CLEARING_MS = 60_000  # within which a client that deletes a folder has expunged its mail


class Arrival(NamedTuple):
    """The arrival of a mail in a folder. `entry` is None if no log tells of it any more."""

    node: str
    time_ms: int | None = None
    is_copy: bool = False
    entry: str | None = None

    def __str__(self) -> str:
        """Return it in words."""
        when = "at a time that is not known" if self.time_ms is None else f"at {local(self.time_ms)}"
        return f"by {self.node} {when}"


def sentences(story: JoinedStory) -> list[str]:
    """Return the answer."""
    asked = [life for life in story.lives if life.same == "asked"]
    if not asked:
        return list(_unknown(story))
    groups = _alike(asked)
    if len(groups) == 1:
        return _answer(asked, story)
    found = [*_namesakes(asked)] or [f"{len(groups)} different mails have or had this UID."]
    for group in groups:
        theirs = tuple(life for life in story.lives if any(_are_alike(life, one) for one in group))
        found += [f"{_name(group[0].any)}:", *_answer(group, replace(story, lives=theirs))]
    return found


def _name(life: MailLife) -> str:
    return f"GUID {life.guid}" if life.message_id is None else f"Message-ID <{life.message_id}>"


def _alike(asked: Iterable[JoinedLife]) -> list[list[JoinedLife]]:
    """Return the lives in groups: each of one mail, and of others with its body or Message-ID.

    One UID may name several mails: of branches, or of folders of one name.
    """
    groups: list[list[JoinedLife]] = []
    for life in asked:
        found = next((group for group in groups if any(_are_alike(life, one) for one in group)), None)
        if found is None:
            groups.append([life])
        else:
            found.append(life)
    return groups


def _are_alike(one: JoinedLife, other: JoinedLife) -> bool:
    mine, others = one.any, other.any
    return mine.guid == others.guid or any(
        known is not None and known == like
        for known, like in ((mine.sha256, others.sha256), (mine.message_id, others.message_id))
    )


def _answer(asked: Sequence[JoinedLife], story: JoinedStory) -> list[str]:
    """Return the answer for lives that are alike. The story has no others."""
    here = [life for life in story.lives if life.any.folder == story.mailbox and life.shown_at]
    first = max(asked, key=lambda life: (bool(life.shown_at), bool(life.coming_at)))
    if not first.shown_at:
        why = _coming(first) if first.coming_at else _gone(first, story)
        return [*why, *_others(first, here, story)]
    found = [*_namesakes(asked)] or [*_disagreement(first, story)]
    if len(here) > 1:
        found += _several(here, story)
    else:
        found += _back(first, "It") or _once(first, story)
    return [*found, *_elsewhere(story)]


def _unknown(story: JoinedStory) -> Iterator[str]:
    elsewhere = dict.fromkeys(life.any.folder for life in story.lives if life.shown_at)
    if elsewhere:
        yield f"It is not in {story.mailbox}, as far as the nodes asked know, but in {listed(elsewhere)}."
    else:
        yield (
            f"No node that was asked knows of such a mail in {story.mailbox}: what has left their logs, and is not kept"
            " for `undelete` any more, cannot be told."
        )


# ---- there


def arrivals_of(life: JoinedLife) -> list[Arrival]:
    """Return how the mail came into the folder, as logs tell it, or else its row."""
    found = [
        Arrival(one.event.node, one.event.time_ms, one.event.kind == "copied", one.event.entry)
        for one in life.events
        if one.event.kind in {"arrived", "copied"}
    ]
    shown = life.any.shown
    if found or shown is None:
        return found
    first, *others = shown.placed_at
    return [Arrival(first, shown.saved_ms), *map(Arrival, others)]


def _several(here: Sequence[JoinedLife], story: JoinedStory) -> Iterator[str]:
    told = [(life, arrival) for life in here for arrival in arrivals_of(life)[:1]]
    told.sort(key=lambda one: one[1].time_ms or 0)
    if len(told) < len(here):
        yield f"It is here {_times(len(here))}; how that came about has left the logs."
        return
    what = "the same body" if len({life.any.sha256 for life in here}) == 1 else "the same Message-ID"
    copies = sum(arrival.is_copy for _, arrival in told)
    verb = "were copied here" if copies == len(told) else "were delivered or saved by clients"
    ways = [f"{arrival} as {_uids(life)}" for life, arrival in told[:TOLD_MAX]]
    text = f"It is here {_times(len(here))} because {len(here)} messages with {what} {verb}: {listed(ways)}"
    entries = [arrival.entry for _, arrival in told]
    yield text + _apart(entries, story.arrivals)
    if 0 < copies < len(told):
        yield f"{copies} of them came by a client's COPY or MOVE."
    for life in here:
        yield from _back(life, _uids(life))
    if all(any(node not in life.shown_at for life in here) for node in story.answered):
        yield "No node that was asked has all of them: the nodes have yet to become equal."


def _apart(entries: Sequence[str | None], arrivals: Sequence[Arrivals]) -> str:
    """Return the end of the sentence: whether the branches of these arrivals were apart, and what joined them."""
    pairs = [one for one in arrivals if one.one in entries and one.other in entries]
    apart = [one for one in pairs if one.are_apart]
    if not apart:
        return ", one after the other." if len(pairs) == len(entries) * (len(entries) - 1) // 2 else "."
    joined = next((one for one in apart if one.joined_ms is not None), None)
    text = ", while neither node had the other's change"
    if joined is None or joined.joined_by is None or joined.joined_ms is None:
        return f"{text}; their branches are still to be joined."
    return f"{text}; {node_of(joined.joined_by)} joined their branches at {local(joined.joined_ms)}."


def _back(life: JoinedLife, name: str) -> list[str]:
    """Return why a mail is there that was expunged before, by the name given; nothing if it never was."""
    events = [one.event for one in life.events]
    gone = [at for at, event in enumerate(events) if event.kind in {"expunged", "removed"}]
    if not gone:
        return []
    before = events[gone[-1]]
    after = next((event for event in events[gone[-1] + 1 :] if event.kind in {"arrived", "copied"}), None)
    if after is not None:
        way = "copied here again" if after.kind == "copied" else "saved again under its old GUID, as `undelete` does"
        return [f"{name} is back because it was {way}, {_by(after)}; it had been expunged {_by(before)}."]
    came = [one.event for one in life.events if one.event.kind in {"arrived", "copied"}]
    if len(came) > 1 or len(life.any.shown.placements if life.any.shown else ()) > 1:
        ways = f" ({listed(map(_by, came))})" if came else ""
        why = f"it had been saved more than once{ways}, and the expunge removed only what its author saw"
        return [f"{name} is still here although it was expunged {_by(before)}, because {why}."]
    return [f"{name} is here although it was expunged {_by(before)}: that was on a branch that is still to be joined."]


def _once(life: JoinedLife, story: JoinedStory) -> list[str]:
    found = arrivals_of(life)
    came = f", put there {found[-1]}" if found else ""
    text = f"It is in {story.mailbox} once, as {_uids(life)}{came}."
    moved = [one.event for one in life.events if one.event.kind == "renumbered"]
    if not moved:
        return [text]
    was = f"UID {listed(moved[-1].was)}" if moved[-1].was else "another UID"
    return [text, f"It had {was} until a merge of two branches gave it UID {moved[-1].uid}, {_by(moved[-1])}."]


def _elsewhere(story: JoinedStory) -> Iterator[str]:
    others = [one for one in story.lives if one.shown_at and one.any.folder != story.mailbox]
    if others:
        yield f"There are copies of it in other folders: {listed(dict.fromkeys(one.any.folder for one in others))}."


def _namesakes(asked: Sequence[JoinedLife]) -> Iterator[str]:
    """Tell of mails that have one UID, at different nodes."""
    for one, other in combinations(asked, 2):
        for uid in {*one.shown_at.values()} & {*other.shown_at.values()}:
            here, there = (listed(node for node, at in life.shown_at.items() if at == uid) for life in (one, other))
            if one.any.mailbox_id == other.any.mailbox_id:
                yield f"UID {uid} is one mail at {here}, and another at {there}, until their branches are joined."


def _disagreement(life: JoinedLife, story: JoinedStory) -> Iterator[str]:
    if away := [node for node in story.answered if node not in life.shown_at]:
        there, gone = listed(life.shown_at), listed(away)
        yield f"It is shown at {there}, and not at {gone}: the nodes have yet to become equal."
    elif len(set(life.shown_at.values())) > 1:
        uids = listed([f"{uid} at {node}" for node, uid in life.shown_at.items()])
        yield f"It has UID {uids}: the nodes have yet to become equal."


# ---- not there


def _coming(life: JoinedLife) -> Iterator[str]:
    nodes = life.coming_at
    way = listed(arrivals_of(life)[:1])
    yield (
        f"It was put there {way}, and {listed(nodes)} does not show it yet: the change is on a branch that is still to"
        f" be joined, or one before it is missing; `replicator mailbox show` at {nodes[0]} says which."
    )


def _gone(life: JoinedLife, story: JoinedStory) -> Iterator[str]:
    gone = [one.event for one in life.events if one.event.kind in {"expunged", "removed"}]
    moved = next(
        (one for one in story.lives if one.same == "guid" and one.shown_at and one.any.folder != story.mailbox), None
    )
    why = _why_gone(life, gone)
    if moved is not None:
        came = arrivals_of(moved)
        how = f", where it was put {came[-1]}" if came else ""
        yield f"It is not in {story.mailbox} any more, but in {moved.any.folder} as {_uids(moved)}{how}: {why}."
        return
    deleted = [one for one in story.folders if one.mailbox_id == life.any.mailbox_id and one.kind == "deleted"]
    if deleted and gone and 0 <= gone[-1].time_ms - deleted[-1].time_ms < CLEARING_MS:
        why = f"the folder was deleted with its mail, by {deleted[-1].node} at {local(deleted[-1].time_ms)}"
    yield f"It is gone because {why}."
    yield _undelete(life, story)


def _why_gone(life: JoinedLife, gone: Sequence[Event]) -> str:
    kept = next((one.kept for one in life.lives.values() if one.kept is not None), None)
    if not gone:
        when = "" if kept is None else f" at {local(kept.expunged_ms)}"
        return f"it was expunged{when}, by a change that has left the logs"
    last = next((event for event in reversed(gone) if event.kind == "expunged"), None)
    if last is None:
        return f"one of the branches that a merge joined had expunged it; the merge was made {_by(gone[-1])}"
    return f"it was expunged (UID {last.uid}), {_by(last)}"


def _undelete(life: JoinedLife, story: JoinedStory) -> str:
    kept = {node: one.kept for node, one in life.lives.items() if one.kept is not None}
    if not kept:
        return "No node that was asked keeps it any more, so `replicator undelete` cannot bring it back from them."
    node = max(kept, key=lambda name: (kept[name].has_body, kept[name].until_ms))
    text = f"`replicator undelete {story.user} {story.mailbox}` at {node} can bring it back"
    until = f" until {local(kept[node].until_ms, 'minutes')}"
    if not kept[node].has_body:
        return f"{text}{until}, if another node has its body: {node} does not."
    return f"{text}{until}."


def _others(life: JoinedLife, here: Sequence[JoinedLife], story: JoinedStory) -> Iterator[str]:
    alike = [one for one in here if one is not life]
    if alike:
        uids = listed([_uids(one) for one in alike])
        yield f"{story.mailbox} still has {uids} with the same body or Message-ID."


# ---- words


def node_of(entry: str) -> str:
    """Return the node that has numbered an entry, by the entry's name."""
    return entry.partition(" ")[0].rpartition(".")[0]


def _by(event: Event) -> str:
    return f"by {event.node} at {local(event.time_ms)}"


def _uids(life: JoinedLife) -> str:
    uids = dict.fromkeys(life.shown_at.values())
    return f"UID {' or '.join(map(str, uids))}"


def _times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"
