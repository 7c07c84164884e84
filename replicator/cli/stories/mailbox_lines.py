"""`replicator mailbox show` for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from replicator.cli.output import ago, counted, size
from replicator.cli.times import local
from replicator.stories import Agreement, MailboxStory, MasterHow, ShownElsewhere, WaitingEntry

NONE = "-"
WAITING_SHOWN = 5

AGREEMENTS: Mapping[Agreement, str] = {
    "same": "the same",
    "behind": "behind: it has yet to get changes that this node shows",
    "ahead": "ahead: it shows changes that this node has yet to get",
    "forked": "forked: both show changes that the other does not; the master joins them once they are linked",
    "differs": "differs, although both show the same changes: run `replicator resync` and `replicator check`",
    "nothing": "nothing: it does not know the mailbox yet",
    "unreachable": "not known",
}

HOW: Mapping[MasterHow, str] = {
    "named": "since {when}, when it asked for a master and no node was it",
    "told": "as the root told {node} at {when}",
    "taken": "since {when}, when it asked the master before it, for its clients or an operator",
    "given": "since {when}, when {node} handed over to it",
}


def lines(story: MailboxStory) -> Iterator[str]:
    """Yield the lines."""
    gone = " (deleted; shown as long as it has mail)" if story.messages else " (deleted)"
    gone = gone if story.is_deleted else ""
    yield f"{story.user}'s {story.mailbox}{gone} at {story.node}"
    facts = {**_numbers(story), **_heads(story), **_troubles(story)}
    width = max(map(len, facts))
    for name, told in facts.items():
        yield f"  {name:<{width}}  {told}"
    for one in story.waiting_entries[:WAITING_SHOWN]:
        yield f"    {_waits(one)}"
    yield "Other nodes"
    for node in story.nodes:
        yield f"  {node.node}  {_agreement(node)}"
    if not story.nodes:
        yield "  none are configured"


def _numbers(story: MailboxStory) -> dict[str, str]:
    risen = f", of which merges added {story.risen}" if story.risen else ""
    return {
        "mailbox id": story.mailbox_id,
        "UIDVALIDITY": f"{story.uidvalidity}{risen}",
        "UIDNEXT": str(story.uidnext),
        "HIGHESTMODSEQ": str(story.highestmodseq),
        "messages": f"{story.messages}, {story.unseen} unseen, {size(story.size_bytes)}",
    }


def _heads(story: MailboxStory) -> dict[str, str]:
    facts = {"head": NONE, "checkpoint": NONE, "master": _master(story)}
    if story.head is not None:
        facts["head"] = f"{story.head}, numbered {_when(story.head_ms)}"
        if not story.is_head_logged:
            facts["head"] += "; its entry is not in the log"
    if story.checkpoint is not None:
        is_newest = " (the head)" if story.checkpoint == story.head else f", numbered {_when(story.checkpoint_ms)}"
        facts["checkpoint"] = f"{story.checkpoint}{is_newest}"
    facts["state"] = story.digest
    return facts


def _master(story: MailboxStory) -> str:
    if story.master is None:
        return f"{NONE} ({story.node} has needed none in this term)"
    if story.master_since_ms is None or story.master_how is None:
        return story.master
    how = HOW[story.master_how].format(node=story.node, when=local(story.master_since_ms))
    return f"{story.master}, {how}"


def _troubles(story: MailboxStory) -> dict[str, str]:
    facts = {"expunged mail": "none kept"}
    if story.kept_messages:
        until = local((story.kept_since_ms or 0) + int(story.keep_expunged_s * 1000), "minutes")
        kept = f"{counted(story.kept_messages, 'message')} kept, {size(story.kept_bytes)}"
        facts["expunged mail"] = f"{kept}, the first until {until}"
    if story.is_unproven:
        facts["unproven"] = "the state was taken over from another node; the next checkpoint proves it"
    if story.is_postponed:
        facts["postponed"] = "the node has more to compare with its peers, and tries again every minute"
    if story.abandoned:
        facts["abandoned"] = f"{counted(story.abandoned, 'entry', 'entries')} that no node can show any more"
    facts["waiting"] = "no entries"
    if story.waiting:
        since = ago(story.waiting_since_ms or story.clock_ms, story.clock_ms)
        ends = counted(story.branches, "branch", "branches")
        facts["waiting"] = f"{counted(story.waiting, 'entry', 'entries')} on {ends}, the first from {since} ago"
    if story.why_apart:
        facts["cannot join"] = story.why_apart
    return facts


def _when(time_ms: int | None) -> str:
    return "at a time that has left the log" if time_ms is None else f"at {local(time_ms)}"


def _waits(one: WaitingEntry) -> str:
    why = f"waits for {one.lacks}, which is not here" if one.lacks else "is on another branch, which the master joins"
    return f"{one.entry}, numbered at {local(one.time_ms)}, {why}"


def _agreement(node: ShownElsewhere) -> str:
    if node.shows == "unreachable":
        return f"cannot be asked: {node.why or 'it gives no reason'}"
    head = "" if node.head is None or node.shows == "same" else f" (head {node.head})"
    return f"shows {AGREEMENTS[node.shows]}{head}" if node.shows == "same" else f"{AGREEMENTS[node.shows]}{head}"
