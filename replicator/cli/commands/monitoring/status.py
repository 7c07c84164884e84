"""`replicator status`: shows the state of nodes side by side, and whether they show the same mail."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import RefusedError, UnreachableError
from replicator.cli.output import begin_screen, console, counted, echo_json, json_option
from replicator.cli.status_tables import LEGEND, NodeAnswer, agreement, parted, show
from replicator.cli.target import CommandError, NodeUrl, parse_url, token_option, url_of_config
from replicator.cli.times import parse_duration
from replicator.cli.waiting import ask_until_good
from replicator.status import NodeStatus

ANSWER_S = 3.0  # the request takes a node milliseconds; an operator of a cluster in trouble does not want to wait
ON_ITS_WAY_S = 5.0  # equal nodes may have yet to confirm entries of this age: busy ones always have some
ASKED_AT_ONCE = 64  # threads; larger clusters take a little longer


@click.command(epilog=LEGEND)
@click.option("--config", "configs", multiple=True, type=click.Path(path_type=Path), help="A node's configuration.")
@click.option("--url", "urls", multiple=True, help="A node's address, such as http://127.0.0.1:1080.")
@token_option
@click.option("--user", help="Also show this user's mailboxes.")
@json_option
@click.option(
    "--watch",
    "every_s",
    type=click.FloatRange(0.5, 3600),
    metavar="SECONDS",
    help="Ask again every so many seconds, until Ctrl-C.",
)
@click.option(
    "--wait-equal",
    "wait_s",
    callback=parse_duration,
    metavar="DURATION",
    help="Ask again until the nodes are equal, for at most this time, such as 10m.",
)
def status(
    configs: Sequence[Path],
    urls: Sequence[str],
    user: str | None,
    every_s: float | None,
    wait_s: float | None,
    *,
    as_json: bool,
) -> None:
    """Show the state of nodes: links, lag, masters, and whether they show the same mail.

    Name one or more nodes by --config or --url. --json prints more: the age of a node's checkpoints, and the nodes for
    which its log is kept. Exit code 1 if any of the nodes does not answer, or does not know USER. With --watch, the
    terminal shows the latest state, or with --json each state is a line.

    With --wait-equal, exit code 0 means that all nodes answer, serve and reach each other, that they show the same
    mail, and that each has all entries and bodies on its own disk; 1 that the time is over.
    """
    if not configs and not urls:
        raise click.UsageError("name at least one node by --config FILE or --url URL")
    if wait_s is not None and (every_s is not None or len(configs) + len(urls) < 2):
        raise click.UsageError("--wait-equal needs at least two nodes, and excludes --watch")

    def nodes() -> list[NodeUrl]:
        return [url_of_config(file) for file in configs] + [parse_url(url) for url in urls]

    if every_s is not None:
        with suppress(KeyboardInterrupt):
            _watch(nodes(), user, every_s, as_json=as_json)
        return
    answers = ask_until_good(lambda: ask_all(nodes(), user), inequalities, wait_s)
    if as_json:
        echo_json(to_document(answers))
    else:
        show(console(), answers)
    if _tell_errors(answers):
        raise click.exceptions.Exit(1)
    if wait_s is not None and (found := inequalities(answers)):
        raise CommandError(f"the nodes are not equal: {'; '.join(found)}")


def _watch(nodes: Sequence[NodeUrl], user: str | None, every_s: float, *, as_json: bool) -> NoReturn:
    """Show the state again and again, until Ctrl-C."""
    while True:
        answers = ask_all(nodes, user)
        if as_json:
            click.echo(json.dumps(to_document(answers)))
        else:
            begin_screen()
            show(console(), answers)
        _tell_errors(answers)
        time.sleep(every_s)


def _tell_errors(answers: Sequence[NodeAnswer]) -> bool:
    """Name the nodes that do not answer; return True if there are any."""
    errors = [answer for answer in answers if answer.error is not None]
    for text in dict.fromkeys(answer.error for answer in errors):
        names = ", ".join(answer.url.name for answer in errors if answer.error == text)
        click.echo(f"Error: {names}: {text}", err=True)
    return bool(errors)


def inequalities(answers: Sequence[NodeAnswer]) -> list[str]:
    """Return why these nodes are not equal, such that any of them could be lost without a loss of older mail."""
    known = [answer.status for answer in answers if answer.status]
    found = [f"{answer.url.name}: {answer.error}" for answer in answers if answer.error is not None]
    found += _named_twice(answers)
    found += [f"{one} and {other} do not reach each other" for one, other in parted(answers)]
    if len({node.digest for node in known}) > 1:
        found.append("the nodes' states differ")
    return found + [lack for node in known for lack in _lacks(node, {other.sid for other in known})]


def _named_twice(answers: Sequence[NodeAnswer]) -> Iterator[str]:
    """Yield which names lead to one node: then another node has not been asked."""
    by_sid: dict[str, list[str]] = {}
    for answer in answers:
        if answer.status:
            by_sid.setdefault(answer.status.sid, []).append(answer.url.name)
    for sid, names in by_sid.items():
        if len(names) > 1:
            yield f"{' and '.join(names)} lead to one node, {sid}: name each node by an address of its own"


def _lacks(node: NodeStatus, sids: Collection[str]) -> Iterator[str]:
    """Yield what a node lacks, and what other nodes lack of its log."""
    yield from (f"{node.sid} turns clients away: {reason}" for reason in node.not_serving)
    if node.waiting_entries:
        yield f"{counted(node.waiting_entries, 'entry', 'entries')} at {node.sid} not shown yet"
    if node.texts_lacking:
        yield f"{node.sid} lacks {counted(node.texts_lacking, 'body', 'bodies')}"
    if node.attachments_to_heal:
        yield f"{node.sid} lacks {counted(node.attachments_to_heal, 'attachment')}"
    for link in node.links:
        if link.up and link.peer in sids and (link.lag_s is None or link.lag_s > ON_ITS_WAY_S):
            lag = "" if link.lag_entries is None else f"{link.lag_entries} "
            yield f"{link.peer} has yet to confirm {lag}entries of {node.sid}"


def ask_all(nodes: Sequence[NodeUrl], user: str | None) -> list[NodeAnswer]:
    """Ask all nodes at once; answers are in the order of `nodes`. A silent node delays no other."""
    with ThreadPoolExecutor(min(len(nodes), ASKED_AT_ONCE)) as pool:
        return list(pool.map(partial(ask, user=user), nodes))


def ask(url: NodeUrl, user: str | None) -> NodeAnswer:
    """Ask one node."""
    answer = NodeAnswer(url)
    try:
        with NodeClient(url, timeout_s=ANSWER_S) as client:
            answer.status = client.status()
            if user is not None:
                answer.mailboxes = tuple(client.mailboxes(user))
    except (UnreachableError, RefusedError) as error:
        answer.error = error.detail
    return answer


def to_document(answers: Sequence[NodeAnswer]) -> dict[str, object]:
    """Return the document for `--json`. `agree`: the answering nodes show the same state and reach each other."""
    return {
        "agree": agreement(answers),
        "parted": parted(answers),
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
