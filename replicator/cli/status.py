"""`replicator status`: how nodes are, side by side, and whether they show the same mail."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from replicator.cli.client import NodeClient, UnreachableError
from replicator.cli.output import ago, console, echo_json, size, table
from replicator.cli.target import NodeUrl, parse_url, url_of_config
from replicator.status import LinkStatus, MailboxStatus, NodeStatus

DIGEST_SHOWN = 8  # hexadecimal digits: enough to tell states apart by eye
UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What a node said of itself, or why it said nothing."""

    url: NodeUrl
    status: NodeStatus | None = None
    mailboxes: tuple[MailboxStatus, ...] = ()
    error: str | None = None


@click.command()
@click.option("--config", "configs", multiple=True, type=click.Path(path_type=Path), help="A node's configuration.")
@click.option("--url", "urls", multiple=True, help="A node's address, http://127.0.0.1:1080.")
@click.option("--user", help="Also show this user's mailboxes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(configs: Sequence[Path], urls: Sequence[str], user: str | None, *, as_json: bool) -> None:
    """Show how nodes are: links, lag, masters, and whether their states agree.

    Name one or more nodes by --config or --url. Exit code 1 if any of them does not answer.
    """
    nodes = [url_of_config(file) for file in configs] + [parse_url(url) for url in urls]
    if not nodes:
        raise click.UsageError("name at least one node by --config FILE or --url URL")
    answers = [ask(node, user) for node in nodes]
    if as_json:
        echo_json(to_document(answers))
    else:
        show(console(), answers, time.time_ns() // 1_000_000)
    for answer in answers:
        if answer.error is not None:
            click.echo(f"Error: {answer.error}", err=True)
    if any(answer.error for answer in answers):
        raise click.exceptions.Exit(1)


def ask(url: NodeUrl, user: str | None) -> NodeAnswer:
    """Ask one node."""
    try:
        with NodeClient(url) as client:
            mailboxes = tuple(client.mailboxes(user)) if user is not None else ()
            return NodeAnswer(url, client.status(), mailboxes)
    except UnreachableError as error:
        return NodeAnswer(url, error=error.message)


def agreement(answers: Sequence[NodeAnswer]) -> bool | None:
    """Whether all nodes that answered show the same state; None for fewer than two."""
    digests = [answer.status.digest for answer in answers if answer.status]
    return None if len(digests) < 2 else len(set(digests)) == 1


def to_document(answers: Sequence[NodeAnswer]) -> dict[str, object]:
    """What `--json` prints."""
    return {
        "agree": agreement(answers),
        "nodes": [
            {
                "url": str(answer.url),
                "error": answer.error,
                "status": asdict(answer.status) if answer.status else None,
                "mailboxes": [asdict(mailbox) for mailbox in answer.mailboxes],
            }
            for answer in answers
        ],
    }


def show(out: Console, answers: Sequence[NodeAnswer], now_ms: int) -> None:
    """What people read."""
    known = [answer.status for answer in answers if answer.status]
    out.print(_node_table(answers, now_ms))
    if any(node.links for node in known):
        out.print(_link_table(known, now_ms))
    if any(answer.mailboxes for answer in answers):
        out.print(_mailbox_table(answers))
    match agreement(answers):
        case True:
            out.print(f"[green]The {len(known)} nodes show the same state.[/]")
        case False:
            out.print("[yellow]The nodes' states differ[/]; while mail is on its way between them they do.")


def _node_table(answers: Sequence[NodeAnswer], now_ms: int) -> Table:
    rows = table("Nodes", "node", "up for", "reaches", "root (term)", ">masters", ">log", ">waiting", "state")
    for answer in answers:
        node = answer.status
        if node is None:
            rows.add_row(f"[red]{answer.url}[/]", "[red]no answer[/]")
            continue
        rows.add_row(
            escape(node.sid),
            ago(node.started_ms, now_ms),
            escape(", ".join(sid for sid in node.component if sid != node.sid) or UNKNOWN),
            escape(f"{node.root or UNKNOWN} ({node.term})"),
            f"{node.mastered} of {node.mailboxes}",
            str(node.log_entries),
            str(node.waiting_entries),
            escape(node.digest[:DIGEST_SHOWN]),
        )
    return rows


def _link_table(nodes: Sequence[NodeStatus], now_ms: int) -> Table:
    title = "Links, and how far the peer is behind"
    rows = table(title, "from", "to", "link", ">round trip", ">entries", ">size", ">seconds", "why")
    for node in nodes:
        for link in node.links:
            rows.add_row(
                escape(node.sid),
                escape(link.peer),
                _link_state(link, now_ms),
                UNKNOWN if link.round_trip_us is None else f"{link.round_trip_us / 1000:.2f} ms",
                str(link.lag_entries),
                size(link.lag_bytes),
                f"{link.lag_s:.1f}",
                "" if link.up else escape(f"{link.address}: {link.error or UNKNOWN}"),
            )
    return rows


def _link_state(link: LinkStatus, now_ms: int) -> str:
    state = "[green]up[/]" if link.up else "[red]down[/]"
    return f"{state} {'never up' if link.since_ms is None else ago(link.since_ms, now_ms)}"


def _mailbox_table(answers: Sequence[NodeAnswer]) -> Table:
    """A mailbox a row, with its master, the first node's counts, and whether all nodes show the same."""
    rows = table("Mailboxes", "mailbox", "master", ">messages", ">unseen", ">size", "state")
    nodes = {answer.status.sid: {box.name: box for box in answer.mailboxes} for answer in answers if answer.status}
    for name in sorted({name for boxes in nodes.values() for name in boxes}):
        at = {sid: boxes[name] for sid, boxes in nodes.items() if name in boxes}
        first = next(iter(at.values()))
        master = next((box.master for box in at.values() if box.master), UNKNOWN)
        counts = (str(first.messages), str(first.unseen), size(first.size_bytes))
        digests = {sid: at[sid].digest[:DIGEST_SHOWN] if sid in at else "none" for sid in nodes}
        rows.add_row(escape(name), escape(master), *counts, _compared(digests))
    return rows


def _compared(digests: Mapping[str, str]) -> str:
    if len(set(digests.values())) == 1:
        return escape(next(iter(digests.values())))
    return f"[yellow]{escape(', '.join(f'{sid}: {digest}' for sid, digest in digests.items()))}[/]"
