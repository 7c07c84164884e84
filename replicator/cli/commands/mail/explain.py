"""`replicator explain`: answers why a mail is there twice, gone, or back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import click

from protocol.values import UID_MAX
from replicator.cli.api.client import NodeClient
from replicator.cli.api.connection import RefusedError, UnreachableError
from replicator.cli.output import echo_json, echo_lines, json_option
from replicator.cli.stories import mail_lines
from replicator.cli.stories.mail_story import NodeTold, better, join
from replicator.cli.stories.verdict import sentences
from replicator.cli.target import CommandError, NodeUrl, parse_url, token_option, url_of_config
from replicator.stories import AskedMail, MailLife, MailStory

ASKED_AT_ONCE = 16  # threads
ALIVE_S = 10.0  # for any answer: a story may take a minute, but nobody should wait so long for a node that hangs
GUIDS_MAX = 5  # mails for which nodes are asked again, because they know them under another UID

_UID = re.compile(r"[0-9]{1,10}")
_GUID = re.compile(r"[MmTt]?([0-9A-Fa-f]{32})")
_MESSAGE_ID = re.compile(r"<[^<>]+>|[^<>\s]+@[^<>\s]+")


@click.command()
@click.argument("user")
@click.argument("mailbox")
@click.argument("mail", metavar="UID|GUID|MESSAGE-ID")
@click.option("--config", "configs", multiple=True, type=click.Path(path_type=Path), help="A node's configuration.")
@click.option("--url", "urls", multiple=True, help="A node's address, such as http://127.0.0.1:1080.")
@token_option
@json_option
def explain(user: str, mailbox: str, mail: str, *, configs: Sequence[Path], urls: Sequence[str], as_json: bool) -> None:
    """Tell the life of a mail in USER's MAILBOX: why it is there twice, gone, or back.

    The mail is named by the UID that it has or had, by its GUID (EMAILID), or by its Message-ID. Each node that is
    named by --config or --url tells what its log and its tables have: when and at which node the mail arrived, which
    UIDs it had and what changed them, its flags, where it was expunged, and other mails with the same body or
    Message-ID. Name all nodes of the cluster. The node of a change is the one that numbered it: the mailbox's master at
    that time. Exit code 1 if a node does not answer, or no node knows of the mail.
    """
    if "" in {user, mailbox, mail}:
        raise click.UsageError("USER, MAILBOX and the mail must not be empty")
    asked = asked_mail(mail)
    nodes = [url_of_config(file) for file in configs] + [parse_url(url) for url in urls]
    if not nodes:
        raise click.UsageError("name at least one node by --config FILE or --url URL; better, all of the cluster")
    told = ask_all(nodes, user, mailbox, asked)
    if all(one.story is None for one in told):
        raise CommandError("; ".join(f"{one.name}: {one.error}" for one in told))
    joined = join(told)
    if as_json:
        echo_json(
            {
                "nodes": [
                    {"url": str(one.url), "error": one.error, "story": asdict(one.story) if one.story else None}
                    for one in told
                ],
                "not_asked": joined.not_asked,
                "answer": sentences(joined),
            }
        )
    else:
        echo_lines(mail_lines.lines(told, joined))
    if not joined.lives or any(one.error is not None for one in told):
        raise click.exceptions.Exit(1)


def asked_mail(text: str) -> AskedMail:
    """Return which mail is meant. Raises click.BadParameter."""
    if _UID.fullmatch(text) and 0 < int(text) <= UID_MAX:
        return AskedMail(uid=int(text))
    if guid := _GUID.fullmatch(text):
        return AskedMail(guid=bytes.fromhex(guid[1]))
    if _MESSAGE_ID.fullmatch(text):
        return AskedMail(message_id=text.strip("<>").translate({ord(char): None for char in '"\\'}))
    what = "is neither a UID (17), nor a GUID (32 hexadecimal digits), nor a Message-ID (<id@example.org>)"
    raise click.BadParameter(f"{text!r} {what}", param_hint="UID|GUID|MESSAGE-ID")


def ask_all(nodes: Sequence[NodeUrl], user: str, mailbox: str, asked: AskedMail) -> list[NodeTold]:
    """Ask all nodes at once; then ask each by GUID for mails that others know by that name."""
    with ThreadPoolExecutor(min(len(nodes), ASKED_AT_ONCE)) as pool:
        told = list(pool.map(lambda url: _not_alive(url) or _ask(url, user, mailbox, asked), nodes))
        found = dict.fromkeys(
            life.guid for one in told if one.story is not None for life in one.story.lives if life.same == "asked"
        )
        return list(pool.map(lambda one: _asked_again(one, user, mailbox, list(found)[:GUIDS_MAX]), told))


def _asked_again(told: NodeTold, user: str, mailbox: str, guids: Sequence[str]) -> NodeTold:
    """Return what a node tells, together with what it tells of these mails under their GUIDs."""
    for guid in guids:
        story = told.story
        if story is not None and not any(life.guid == guid and life.same == "asked" for life in story.lives):
            more = _ask(told.url, user, mailbox, AskedMail(guid=bytes.fromhex(guid)))
            told = more if more.story is None else replace(told, story=_together(story, more.story))
    return told


def _together(one: MailStory, other: MailStory) -> MailStory:
    lives: dict[tuple[str, str], MailLife] = {}
    for life in (*one.lives, *other.lives):
        key = life.mailbox_id, life.guid
        lives[key] = better(lives.get(key, life), life)
    return replace(
        one,
        lives=tuple(lives.values()),
        lives_left=one.lives_left + other.lives_left,
        arrivals=tuple(dict.fromkeys((*one.arrivals, *other.arrivals))),
        folders=tuple(dict.fromkeys((*one.folders, *other.folders))),
    )


def _not_alive(url: NodeUrl) -> NodeTold | None:
    """Return the error of a node that gives no answer at all."""
    try:
        with NodeClient(url, timeout_s=ALIVE_S) as client:
            client.check_alive()
    except (UnreachableError, RefusedError) as error:
        return NodeTold(url, error=error.detail)
    return None


def _ask(url: NodeUrl, user: str, mailbox: str, asked: AskedMail) -> NodeTold:
    try:
        with NodeClient(url) as client:
            return NodeTold(url, client.mail(user, mailbox, asked))
    except (UnreachableError, RefusedError) as error:
        return NodeTold(url, error=error.detail)
