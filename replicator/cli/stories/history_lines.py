"""`replicator log show` for people: a line for each entry, with the history drawn beside it."""

from __future__ import annotations

from collections.abc import Iterator

from replicator.cli.stories.graph import drawn
from replicator.cli.stories.words import deeds
from replicator.cli.times import local
from replicator.stories import AbsentEntry, LoggedEntry, LoggedHistory

UNSHOWN = {"waiting": " (waits)", "abandoned": " (abandoned)"}
ABSENT_SHOWN = 3


def lines(history: LoggedHistory) -> Iterator[str]:
    """Yield the lines, the newest entry first, and then what the log does not tell."""
    entries = {one.entry: one for one in history.entries}
    graph = list(drawn((one.entry, [dot for dot in one.predecessors if dot in entries]) for one in history.entries))
    width = max((len(line.prefix) for line in graph), default=0)
    node_width = max((len(one.node) for one in history.entries), default=0)
    for line in graph:
        if line.name is None:
            yield line.prefix.rstrip()
        else:
            one = entries[line.name]
            yield f"{line.prefix:<{width}}{local(one.time_ms)}  {one.node:<{node_width}}  {_told(one)}  [{one.entry}]"
    yield from _missing(history)


def _told(one: LoggedEntry) -> str:
    return deeds(one.deeds) + UNSHOWN.get(one.state, "")


def _missing(history: LoggedHistory) -> Iterator[str]:
    if history.head is None and not history.entries:
        yield "nothing has happened here yet"
    oldest = min((one.time_ms for one in history.entries), default=None)
    left = [one for one in history.absent if one.why == "left"]
    if history.is_cut:
        yield "there are older entries: ask for them by --last or --since"
    elif left:
        when = "all entries" if oldest is None else f"entries before {local(oldest)}"
        yield f"{when} have left the log of {history.node}: they are in checkpoints, which tell no history"
    for one in [one for one in history.absent if one.why != "left"][:ABSENT_SHOWN]:
        yield _absent(one, history)


def _absent(one: AbsentEntry, history: LoggedHistory) -> str:
    if one.why == "unreadable":
        return f"the entry {one.entry} cannot be read at {history.node}: run `replicator check --repair` there"
    if one.entry == history.head:
        return f"{history.node} shows the entry {one.entry} without having it: it took the state over from another node"
    return f"the entry {one.entry}, on which others stand, is not in the log of {history.node}: it may still arrive"
