"""Ask nodes of a cluster for stories, and put them together as the command line does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from replicator.cli.stories.mail_story import JoinedStory, NodeTold, join
from replicator.cli.stories.verdict import sentences
from replicator.cli.target import NodeUrl
from replicator.imap.rendering.outline import MESSAGE_IDS
from replicator.replication.convergence.fork_merge import ForkMerger
from replicator.replication.stories.stories import Stories
from replicator.store.db.queries import MailboxKey
from replicator.store.log.forks import Branch
from replicator.stories import AskedMail, MailStory
from tests.replication.cluster import USER, Cluster, Node

SIDES = ("dc1",), ("dc2", "dc3")


def stories_at(node: Node) -> Stories:
    return Stories(node.store, node.coordinator, node.environment, MESSAGE_IDS)


def asked(mail: int | str | bytes) -> AskedMail:
    """Name a mail by its UID, its Message-ID or its GUID."""
    match mail:
        case int():
            return AskedMail(uid=mail)
        case str():
            return AskedMail(message_id=mail)
    return AskedMail(guid=mail)


async def story(node: Node, mail: int | str | bytes, name: str = "INBOX") -> MailStory:
    return await stories_at(node).mail(USER, name, asked(mail))


async def joined(nodes: Cluster, mail: int | str | bytes, *sids: str, name: str = "INBOX") -> JoinedStory:
    """Return what these nodes, or all, tell together."""
    asked_nodes: Sequence[Node] = [nodes[sid] for sid in sids] or nodes.all()
    return join([NodeTold(NodeUrl("node", 1, node.sid), await story(node, mail, name)) for node in asked_nodes])


async def answer(nodes: Cluster, mail: int | str | bytes, *sids: str, name: str = "INBOX") -> str:
    return " ".join(sentences(await joined(nodes, mail, *sids, name=name)))


def kinds(told: JoinedStory | MailStory, number: int = 0) -> list[str]:
    """Return what happened to the first mail, or another one."""
    life = told.lives[number]
    return [event.event.kind if hasattr(event, "event") else event.kind for event in life.events]


async def part(nodes: Cluster) -> None:
    """Cut dc1 off, and let a minute pass."""
    nodes.isolate("dc1")
    await nodes.linked(*SIDES)
    await trio.sleep(60)


async def heal(nodes: Cluster) -> None:
    """Let a minute pass, and link all again."""
    await trio.sleep(60)
    nodes.rejoin("dc1")
    await nodes.linked()
    await nodes.converged()


async def link_apart(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Link all nodes again, and wait until each has the other branch, which no node joins."""

    async def join_nothing(_merger: ForkMerger, _key: MailboxKey, _branch: Branch, _term: int) -> bool | None:
        await trio.lowlevel.checkpoint()
        return None

    monkeypatch.setattr(ForkMerger, "_join", join_nothing)
    nodes.rejoin("dc1")
    await nodes.linked()
    with trio.fail_after(60):
        while not all([await node.waiting() for node in nodes.all()]):  # noqa: ASYNC110 - in virtual time
            await trio.sleep(0.1)
