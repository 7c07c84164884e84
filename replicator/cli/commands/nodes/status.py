"""`replicator status`: shows the state of nodes side by side, and whether they show the same mail."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import RefusedError, UnreachableError
from replicator.cli.output import begin_screen, console, echo_json, json_option
from replicator.cli.status_tables import LEGEND, NodeAnswer, agreement, parted, show
from replicator.cli.target import NodeUrl, parse_url, token_option, url_of_config

ANSWER_S = 3.0  # the request takes a node milliseconds; an operator of a cluster in trouble does not want to wait
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
def status(
    configs: Sequence[Path], urls: Sequence[str], user: str | None, every_s: float | None, *, as_json: bool
) -> None:
    """Show the state of nodes: links, lag, masters, and whether they show the same mail.

    Name one or more nodes by --config or --url. --json prints more: the age of a node's checkpoints, and the nodes for
    which its log is kept. Exit code 1 if any of the nodes does not answer, or does not know USER. With --watch, the
    terminal shows the latest state, or with --json each state is a line.
    """
    nodes = [url_of_config(file) for file in configs] + [parse_url(url) for url in urls]
    if not nodes:
        raise click.UsageError("name at least one node by --config FILE or --url URL")
    if every_s is not None:
        with suppress(KeyboardInterrupt):
            _watch(nodes, user, every_s, as_json=as_json)
        return
    answers = ask_all(nodes, user)
    if as_json:
        echo_json(to_document(answers))
    else:
        show(console(), answers)
    if _tell_errors(answers):
        raise click.exceptions.Exit(1)


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
