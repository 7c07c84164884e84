"""Output of `replicator status` for people: tables, and below them the problems in words.

Ages are counted up to the time of each node's own answer, so that neither the reader's clock nor a slow node distorts
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from rich.console import Console, RenderableType
from rich.table import Table

from replicator.cli.output import ago, echo, own_name, plain, size, table
from replicator.cli.target import NodeUrl
from replicator.status import LinkStatus, MailboxStatus, NodeStatus

REASONS_SHOWN = 3
CERTIFICATE_DAYS = 30  # before a certificate expires, `status` says so
DIGEST_SHOWN = 8  # hexadecimal digits: enough to tell states apart by eye
UNKNOWN = "-"

# \b tells click to keep the line breaks.
LEGEND = """
\b
Nodes
  node        the node's id
  up for      time since the node started
  reaches     other nodes that it reaches now, directly or through others
  root        the node that knows the masters of all mailboxes
  term        rises whenever a node or link comes or goes; masters are then
              chosen again
  masters     how many of its mailboxes the node is master of, so that it
              numbers their changes
  log         entries in its log: one for each change, until a checkpoint
              takes its place
  waiting     log entries that the node does not show yet: an earlier entry
              is missing, or they belong to a branch still to be merged
  state       first digits of a digest of everything that the node shows;
              equal digests mean equal mail

\b
Links: what one node (from) has sent another (to)
  link        up or down and for how long, or never up since the node started
  round trip  of the last heartbeat
  entries, size, seconds
              the lag: log entries that "from" has and that "to" has not
              confirmed to have on disk, their bytes, and the age of the
              oldest; - if "from" has not heard from "to" since it started

\b
Mailboxes, with --user
  master      the node that numbers the mailbox's changes, if any node
              asked knows it; several, if not all nodes have heard of a
              move, or if nodes do not reach each other
  state       as above; one for each node if they differ

\b
  -           none, or not known
"""


@dataclass(slots=True)
class NodeAnswer:
    """A node's answer, or the error if it gave none."""

    url: NodeUrl
    status: NodeStatus | None = None
    mailboxes: tuple[MailboxStatus, ...] = ()
    error: str | None = None


def agreement(answers: Sequence[NodeAnswer]) -> bool | None:
    """Return True if the answering nodes show the same state and reach each other; None for fewer than two."""
    digests = [answer.status.digest for answer in answers if answer.status]
    if len(digests) < 2:
        return None
    return len(set(digests)) == 1 and not parted(answers)


def parted(answers: Sequence[NodeAnswer]) -> list[tuple[str, str]]:
    """Return pairs of answering nodes of which at least one does not reach the other."""
    known = [answer.status for answer in answers if answer.status]
    return [
        (one.sid, other.sid)
        for one, other in combinations(known, 2)
        if one.sid not in other.component or other.sid not in one.component
    ]


def show(out: Console, answers: Sequence[NodeAnswer]) -> None:
    """Print all tables and problems."""
    known = [answer.status for answer in answers if answer.status]
    parts: list[RenderableType] = [_node_table(answers)]
    if any(node.links for node in known):
        parts += [_link_table(known), *_links_down(known)]
    if any(answer.mailboxes for answer in answers):
        parts.append(_mailbox_table(answers))
    echo(out, *parts, *_verdict(answers, known))


def _verdict(answers: Sequence[NodeAnswer], known: Sequence[NodeStatus]) -> Iterator[str]:
    if pairs := parted(answers):
        named = plain("; ".join(f"{one} and {other}" for one, other in pairs))
        advice = "Until a link is back, neither gets the other's changes."
        yield f"[red]Nodes that do not reach each other: {named}.[/] {advice}"
    elif agreement(answers):
        which = "" if len(known) == len(answers) else " that answered"
        yield f"[green]The {len(known)} nodes{which} show the same state.[/]"
    elif len(known) > 1:
        yield "[yellow]The nodes' states differ[/], as is normal while changes are on their way between them."
    for node in known:
        yield from _troubles(node)
        yield from _expiring(node)
        yield from _outdated(node)
        yield from (f"[yellow]{plain(node.sid)} and its Dovecots[/]: {plain(text)}." for text in node.dovecots)


def _outdated(node: NodeStatus) -> Iterator[str]:
    """Yield what a node runs with although its configuration says something else."""
    if node.restart_for:
        keys = plain(", ".join(node.restart_for))
        yield f"[yellow]{plain(node.sid)} runs with a former configuration[/]: a restart puts {keys} in force."


def _troubles(node: NodeStatus) -> Iterator[str]:
    """Yield the problems that keep a node from being equal to the others."""
    for reason in node.not_serving:
        yield f"[red]{plain(node.sid)} turns clients away[/]: {plain(reason)}"
    for lack in node.no_room[:1]:
        more = "" if len(node.no_room) == 1 else f" (and {len(node.no_room) - 1} more)"
        yield f"[red]{plain(node.sid)} is behind and cannot continue[/]: {plain(str(lack))}{more}."
    if node.transfer_total:
        how_far = f"{node.transfer_done} of {node.transfer_total} mailboxes and folder trees"
        what = "lacks entries that have left its peers' logs"
        yield f"[yellow]{plain(node.sid)} {what}[/]: it has taken over {how_far} so far."
    for link in node.links:
        if link.needs_sync:
            what = f"{plain(link.peer)} lacks entries that have left the log of {plain(node.sid)}"
            who = "it" if link.up else "once linked, it"
            how = "fetches them from another node's log, or compares its mailboxes and takes over what differs"
            yield f"[yellow]{what}[/]: {who} {how}."
    if node.postponed:
        count = "1 mailbox or folder tree" if node.postponed == 1 else f"{node.postponed} mailboxes or folder trees"
        how = "It compares again every minute; its log messages name what differs, and what to do."
        yield f"[red]{plain(node.sid)} still shows {count} differently from a peer after a state transfer[/]. {how}"
    if node.overdue:
        overdue = sum(node.overdue.values())
        what = "1 entry has waited" if overdue == 1 else f"{overdue} entries have waited"
        why = plain("; ".join(sorted(node.overdue)[:REASONS_SHOWN]))
        how = "The node keeps asking all others while they are all linked."
        yield f"[red]At {plain(node.sid)} {what} for too long with all nodes linked[/]: {why}. {how}"
    if node.texts_lacking:
        count = "1 body" if node.texts_lacking == 1 else f"{node.texts_lacking} bodies"
        how = "It fetches them from other nodes, newest first, and at once if a client reads the message."
        yield f"[yellow]{plain(node.sid)} lacks {count} of messages that it shows[/]. {how}"
    if node.search_texts is not None and node.search_texts.waiting:
        kept = f"it keeps that of {node.search_texts.bodies} ({size(node.search_texts.size_bytes)})"
        waiting = "1 body" if node.search_texts.waiting == 1 else f"{node.search_texts.waiting} bodies"
        what = f"is yet to keep the text of {waiting} for SEARCH"
        yield f"[yellow]{plain(node.sid)} {what}[/], which reads them until then; {kept}."
    if node.checkpoint.error is not None:
        why = plain(node.checkpoint.error)
        yield f"[yellow]{plain(node.sid)} cannot write checkpoints, so it keeps its whole log[/]: {why}"
    if node.copies_reachable < node.copies:
        short = f"{plain(node.sid)} can make {node.copies_reachable} of {node.copies} copies"
        what = "refuses changes until more nodes are reachable"
        if node.when_short != "refuse":
            what = "accepts changes with fewer copies"
        yield f"[yellow]{short}[/]: it {what}, as `durability.when_short` says."


def _expiring(node: NodeStatus) -> Iterator[str]:
    """Yield the certificates that the operator has to renew."""
    for certificate in node.certificates:
        days = certificate.days_left(node.clock_ms)
        if days < CERTIFICATE_DAYS:
            when = f"expires in {days} days" if days >= 0 else "has expired"
            how = f"renew it, and run `{own_name()} reload`"
            yield f"[yellow]A certificate of {plain(node.sid)} {when}[/]: {plain(certificate.file)}; {how}."


def _node_table(answers: Sequence[NodeAnswer]) -> Table:
    columns = ("node…", "up for", "reaches…", "root…", ">term", ">masters…", ">log", ">waiting", "state")
    rows = table("Nodes", *columns)
    for answer in answers:
        node = answer.status
        if node is None:
            rows.add_row(f"[red]{plain(answer.url.name)}[/]", "[red]no answer[/]")
            continue
        rows.add_row(
            plain(node.sid),
            ago(node.started_ms, node.clock_ms),
            plain(", ".join(sid for sid in node.component if sid != node.sid) or UNKNOWN),
            plain(node.root or UNKNOWN),
            str(node.term),
            f"{node.mastered} of {node.mailboxes}",
            str(node.log_entries),
            str(node.waiting_entries),
            plain(node.digest[:DIGEST_SHOWN]),
        )
    return rows


def _link_table(nodes: Sequence[NodeStatus]) -> Table:
    title = "Links, and how far the peer is behind"
    rows = table(title, "from…", "to…", "link", ">round trip", ">entries", ">size", ">seconds")
    for node in nodes:
        for link in node.links:
            rows.add_row(
                plain(node.sid),
                plain(link.peer),
                _state(link, node.clock_ms),
                UNKNOWN if link.round_trip_us is None else f"{link.round_trip_us / 1000:.2f} ms",
                UNKNOWN if link.lag_entries is None else str(link.lag_entries),
                UNKNOWN if link.lag_bytes is None else size(link.lag_bytes),
                UNKNOWN if link.lag_s is None else f"{link.lag_s:.1f}",
            )
    return rows


def _state(link: LinkStatus, now_ms: int) -> str:
    if link.since_ms is None:
        return "[red]never up[/]"
    return f"{'[green]up[/]' if link.up else '[red]down[/]'} {ago(link.since_ms, now_ms)}"


def _links_down(nodes: Sequence[NodeStatus]) -> Iterator[str]:
    """Yield a line for each link that is down, and an empty one."""
    down = [(node.sid, link) for node in nodes for link in node.links if not link.up]
    for sid, link in down:
        reason = plain(link.error or "not tried yet")
        yield f"{plain(sid)} has no link to {plain(link.peer)} ({plain(link.address)}): {reason}"
    if down:
        yield ""


def _mailbox_table(answers: Sequence[NodeAnswer]) -> Table:
    """Return a table with a row per mailbox: its master, the first node's counts, and the state at all nodes."""
    rows = table("Mailboxes", "mailbox…", "master…", ">messages", ">unseen", ">size", "state…")
    nodes = {answer.status.sid: {box.name: box for box in answer.mailboxes} for answer in answers if answer.status}
    for name in sorted({name for boxes in nodes.values() for name in boxes}):
        at = {sid: boxes[name] for sid, boxes in nodes.items() if name in boxes}
        first = next(iter(at.values()))
        masters = ", ".join(sorted({box.master for box in at.values() if box.master})) or UNKNOWN
        counts = (str(first.messages), str(first.unseen), size(first.size_bytes))
        digests = {sid: at[sid].digest if sid in at else "none" for sid in nodes}
        rows.add_row(plain(name), plain(masters), *counts, _compared(digests))
    return rows


def _compared(digests: Mapping[str, str]) -> str:
    if len(set(digests.values())) == 1:
        return plain(next(iter(digests.values()))[:DIGEST_SHOWN])
    return f"[yellow]{plain(', '.join(f'{sid}: {digest[:DIGEST_SHOWN]}' for sid, digest in digests.items()))}[/]"
