"""`replicator explain` for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from replicator.cli.output import counted, listed, size
from replicator.cli.stories.mail_story import Heard, JoinedEvent, JoinedLife, JoinedStory, NodeTold
from replicator.cli.stories.verdict import sentences
from replicator.cli.stories.words import event
from replicator.cli.times import local
from replicator.stories import LookedAt, MailLife, MailStory, Sameness

SAMENESS: Mapping[Sameness, str] = {
    "asked": "",
    "guid": "the same mail, ",
    "body": "another mail with the same body, ",
    "message_id": "another mail with the same Message-ID, ",
}
HEARD: Mapping[Heard, str] = {"waits": "it waits", "absent": "not there yet"}


def lines(told: Sequence[NodeTold], joined: JoinedStory) -> Iterator[str]:
    """Yield the lines."""
    for number, life in enumerate(joined.lives, 1):
        yield from _life(number, life)
        yield ""
    notes = [*_folders(joined), *_limits(told), *_silent(told, joined)]
    yield from notes
    if notes:
        yield ""
    yield " ".join(sentences(joined))


def _life(number: int, life: JoinedLife) -> Iterator[str]:
    one = life.any
    gone = " (deleted)" if one.is_deleted else ""
    yield f"{number}. {SAMENESS[life.same]}in {one.folder}{gone}: {', '.join(_names(one))}"
    yield f"   now: {'; '.join(_now(life))}"
    for flag in one.shown.flags if one.shown is not None else ():
        yield f"   {flag.flag} {'set' if flag.is_set else 'cleared'} by {flag.node} at {local(flag.time_ms)}"
    for happened in life.events:
        yield f"   {_event(happened)}"
    for node, told in life.lives.items():
        if told.events_left:
            more = counted(told.events_left, "more change")
            yield f"   {node} knows of {more}, of flags or older ones: see `replicator log show`"
        if not told.is_whole:
            since = "" if told.log_since_ms is None else f" before {local(told.log_since_ms)}"
            yield f"   the log of {node} does not tell what was{since or ' in this folder'}"


def _names(one: MailLife) -> Iterator[str]:
    if one.message_id is not None:
        yield f"Message-ID <{one.message_id}>"
    if one.size_bytes is not None:
        yield size(one.size_bytes)
    if one.received_ms is not None:
        yield f"received {local(one.received_ms)}"
    yield f"GUID {one.guid}"


def _now(life: JoinedLife) -> Iterator[str]:
    at: dict[int, list[str]] = {}
    for node, uid in life.shown_at.items():
        at.setdefault(uid, []).append(node)
    for uid, nodes in at.items():
        yield f"UID {uid} at {listed(nodes)}"
    if life.coming_at:
        yield f"not shown yet at {listed(life.coming_at)}"
    gone: dict[str | None, list[str]] = {}
    for node in life.gone_at:
        kept = life.lives[node].kept
        gone.setdefault(None if kept is None else local(kept.until_ms, "minutes"), []).append(node)
    for until, nodes in gone.items():
        kept_until = "" if until is None else f", kept until {until}"
        yield f"gone at {listed(nodes)}{kept_until}"


def _event(happened: JoinedEvent) -> str:
    one = happened.event
    others = [f"{HEARD[heard]} at {node}" for node, heard in happened.heard.items() if heard in HEARD]
    apart = f" ({', '.join(others)})" if others else ""
    return f"{local(one.time_ms)}  {one.node}  {event(one)}{apart}  [{one.entry}]"


def _folders(joined: JoinedStory) -> Iterator[str]:
    for one in joined.folders:
        if one.kind in {"renamed", "deleted"}:
            what = "deleted" if one.kind == "deleted" else f"renamed to {one.name or '?'}"
            folder = next((life.any.folder for life in joined.lives if life.any.mailbox_id == one.mailbox_id), "?")
            yield f"folder {folder}: {what} by {one.node} at {local(one.time_ms)}  [{one.entry}]"


def _silent(told: Iterable[NodeTold], joined: JoinedStory) -> Iterator[str]:
    if joined.not_asked:
        yield f"not asked: {listed(joined.not_asked)}; name them by --config or --url to hear what they know"
    for one in told:
        if one.error is not None:
            yield f"no answer from {one.name}: {one.error}"


def _limits(told: Iterable[NodeTold]) -> Iterator[str]:
    for one in told:
        if one.story is not None and (limits := list(_limits_of(one.story, one.story.looked_at))):
            yield f"{one.name} has not looked at everything: {listed(limits)}"


def _limits_of(story: MailStory, looked_at: LookedAt) -> Iterator[str]:
    if looked_at.entries_left:
        yield f"its log has more than {counted(looked_at.entries, 'entry', 'entries')}"
    if looked_at.messages_left:
        yield f"{counted(looked_at.messages_left, 'mail')} may have the same body"
    if looked_at.headers_left + looked_at.headers_unread:
        yield f"{counted(looked_at.headers_left + looked_at.headers_unread, 'mail')} may have the same Message-ID"
    if story.lives_left:
        yield f"{counted(story.lives_left, 'mail')} like it are not listed"
