"""Databases in which one node has another text of a message than the others, under one GUID: how that is put right.

Such came of nodes that took in what a connection had changed. They do not any more, but in these tests.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import MockClock

from protocol.commands import EntryCommand, Save, Text
from protocol.values import Dot
from replicator.replication.wire import Arrived, EntryAssembler
from replicator.tasks import ResyncOptions
from resync.entry import Entry, MailAdd
from tests.replication.cluster import USER, Cluster, Node, cluster, until
from tests.replication.stranger import text_of
from tests.replication.test_resyncing import check, run

RIGHT, WRONG = "please pay 100 EUR", "please pay 200 EUR"


@contextmanager
def takes_what_comes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nodes that look at no digest, and hash what came instead of comparing it."""
    add = EntryAssembler.add

    def adding(self: EntryAssembler, command: EntryCommand) -> Arrived | None:
        if isinstance(command, Save) and isinstance(command.message, Text):
            command = replace(command, message=text_of(command.message.octets))
        return add(self, command)

    with monkeypatch.context() as patched:
        patched.setattr(Entry, "digest", lambda _: bytes(16))
        patched.setattr(EntryAssembler, "add", adding)
        yield


async def plant(nodes: Cluster, monkeypatch: pytest.MonkeyPatch, *, author: str = "dc1", wrong: str = "dc3") -> None:
    """The author saves three messages; of the second one another node gets another text."""
    await nodes[author].save("first")
    await nodes.converged()
    with takes_what_comes(monkeypatch):
        nodes.network.road(author, wrong).spoil(b"pay 1")
        await nodes[author].save(RIGHT)
        await nodes[author].save("last")
        await until(lambda: have_the_same(nodes))
    texts = {sid: await nodes[sid].text_of(2) for sid in nodes.nodes}
    assert texts == dict.fromkeys(nodes.nodes, RIGHT) | {wrong: WRONG}


def have_the_same(nodes: Cluster) -> bool:
    return all(node.store.context == nodes["dc1"].store.context for node in nodes.all())


async def hashes_in_log(node: Node, uid: int) -> list[bytes]:
    rows = await node.store.read(lambda reader: reader.execute("SELECT origin, seq, body FROM log").fetchall())
    entries = [Entry.unpack(Dot(origin, seq), body) for origin, seq, body in rows]
    changes = [change for entry in entries for change in entry.changes]
    return [change.content_hash for change in changes if isinstance(change, MailAdd) and change.uid == uid]


async def assert_put_right(nodes: Cluster, text: str = RIGHT) -> None:
    """At all nodes, in what they show, in their logs, and for their checks."""
    await nodes.converged()
    for node in nodes.all():
        assert await node.texts() == {1: "first", 2: text, 3: "last"}
        assert await hashes_in_log(node, 2) == [text_of(text.encode()).content_hash]
        checked = await check(node)
        assert (checked.damage, checked.unproven) == ({}, 0)
        assert (await run(node, ResyncOptions(USER, "INBOX"))).differences == []


@pytest.mark.parametrize("at", ["dc1", "dc2", "dc3"])
async def test_a_text_that_is_another_is_put_right_from_whichever_node(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await plant(nodes, monkeypatch)
        looked = await run(nodes[at], ResyncOptions(USER, "INBOX", dry_run=True))
        assert {one.done for one in looked.differences} == {None}
        assert "different texts under one GUID" in str(looked.differences[0].why_not)
        status = await run(nodes[at], ResyncOptions(USER, "INBOX"))
        assert status.unmended == 0
        assert status.differed["damage"] >= 1
        await assert_put_right(nodes)
