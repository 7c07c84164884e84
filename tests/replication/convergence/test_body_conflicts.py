"""Databases in which one node has another text of a message than the others, under one GUID: how that is put right.

Such came of nodes that took in what a connection had changed. They do not any more, but in these tests.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from protocol.commands import EntryCommand, Save, Text
from protocol.values import Dot
from replicator.replication.convergence.body_conflicts import BodyOf, that_counts
from replicator.replication.links.entry_codec import Arrived, EntryAssembler
from replicator.store.bodies.body_rows import StoredBody, read_body, replace_body, write_body
from replicator.tasks import ApplyOptions, ResyncOptions
from resync.entry import Entry, MailAdd
from tests.replication.cluster import USER, Cluster, Node, cluster, until
from tests.replication.idle_parts import leave_forks
from tests.replication.log.truncating import checkpoint, forget_log
from tests.replication.stranger import text_of
from tests.replication.tasks.planning import apply
from tests.replication.tasks.planning import plan as planned_for
from tests.replication.tasks.running import check_at, resync_at

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


async def plant(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch, *, author: str = "dc1", wrong: Sequence[str] = ("dc3",)
) -> None:
    """The author saves three messages; of the second one other nodes get another text."""
    await nodes[author].save("first")
    await nodes.converged()
    with takes_what_comes(monkeypatch):
        for sid in wrong:
            nodes.network.road(author, sid).spoil(b"pay 1")
        await nodes[author].save(RIGHT)
        await nodes[author].save("last")
        await until(lambda: have_the_same(nodes))
    texts = {sid: await nodes[sid].body_of(2) for sid in nodes.nodes}
    assert texts == dict.fromkeys(nodes.nodes, RIGHT) | dict.fromkeys(wrong, WRONG)


def have_the_same(nodes: Cluster) -> bool:
    return all(node.store.context == nodes["dc1"].store.context for node in nodes.all())


async def hashes_in_log(node: Node, uid: int) -> list[bytes]:
    rows = await node.store.read(lambda reader: reader.execute("SELECT origin, seq, body FROM log").fetchall())
    entries = [Entry.unpack(Dot(origin, seq), body) for origin, seq, body in rows]
    changes = [change for entry in entries for change in entry.changes]
    return [change.content_hash for change in changes if isinstance(change, MailAdd) and change.uid == uid]


async def assert_put_right(nodes: Cluster, text: str = RIGHT, besides: Sequence[str] = ()) -> None:
    """At all nodes, in what they show, in their logs, and for their checks."""
    await nodes.converged()
    for node in nodes.all():
        assert await node.bodies() == {1: "first", 2: text, 3: "last"}
        assert await hashes_in_log(node, 2) == [text_of(text.encode()).content_hash]
        checked = await check_at(node, repair=True)
        assert (checked.damage, checked.unproven) == ({}, 0)
        status = await resync_at(node, ResyncOptions(USER, "INBOX"))
        assert [one.peer for one in status.differences] == list(besides)


@pytest.mark.parametrize("at", ["dc1", "dc2", "dc3"])
async def test_a_text_that_is_another_is_put_right_from_whichever_node(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await plant(nodes, monkeypatch)
        looked = await resync_at(nodes[at], ResyncOptions(USER, "INBOX", dry_run=True))
        assert {one.done for one in looked.differences} == {None}
        assert "different bodies for" in str(looked.differences[0].why_not)
        status = await resync_at(nodes[at], ResyncOptions(USER, "INBOX"))
        assert status.unmended == 0
        assert status.differed["damage"] >= 1
        await assert_put_right(nodes)


async def test_its_author_counts_against_all_others(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await plant(nodes, monkeypatch, author="dc3", wrong=["dc1", "dc2"])
        assert (await resync_at(nodes["dc1"], ResyncOptions(USER, "INBOX"))).unmended == 0
        await assert_put_right(nodes)


@pytest.mark.parametrize(("wrong", "counts"), [(["dc4"], RIGHT), (["dc3", "dc4"], WRONG), (["dc2", "dc3"], WRONG)])
async def test_without_its_author_what_most_have_counts(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, wrong: Sequence[str], counts: str
) -> None:
    async with cluster(tmp_path, autojump_clock, 4) as nodes:
        await plant(nodes, monkeypatch, wrong=wrong)
        await nodes.stop("dc1")
        await nodes.linked()
        status = await resync_at(nodes["dc2"], ResyncOptions(USER, "INBOX"))
        assert {one.peer for one in status.differences if one.done is None} == {"dc1"}, "which cannot be reached"
        await assert_put_right(nodes, counts, besides=["dc1"])
        await nodes.start("dc1")
        await nodes.linked()
        await resync_at(nodes["dc2"], ResyncOptions(USER, "INBOX"))
        await assert_put_right(nodes)


async def test_sessions_are_sent_away_and_the_other_text_is_kept_for_a_while(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await plant(nodes, monkeypatch)
        views = {sid: await nodes[sid].view() for sid in nodes.nodes}
        await resync_at(nodes["dc1"], ResyncOptions(USER, "INBOX"))
        assert [sid for sid, view in views.items() if view.deleted] == ["dc3"]
        assert "UID 2" in caplog.text
        node, wrong = nodes["dc3"], text_of(WRONG.encode())
        assert await node.store.read(partial(read_body, content_hash=wrong.content_hash)) == wrong.octets
        kept = "SELECT content_hash FROM expunged WHERE mailbox = x''"
        assert await node.store.read(lambda reader: reader.execute(kept).fetchall()) == [(wrong.content_hash,)]
        assert await node.body_of(2) == RIGHT


async def test_no_text_is_replaced_by_one_that_nobody_has(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await plant(nodes, monkeypatch)
        content_hash = text_of(RIGHT.encode()).content_hash
        for sid in ("dc1", "dc2"):
            nodes[sid].damage(f"UPDATE content SET body = x'00' WHERE hash = x'{content_hash.hex()}'")
        status = await resync_at(nodes["dc3"], ResyncOptions(USER, "INBOX"))
        assert [one.done for one in status.differences] == [None, None]
        assert "unavailable now" in str(status.differences[0].why_not)
        assert await nodes["dc3"].body_of(2) == WRONG
        stored = StoredBody.of(RIGHT.encode())
        for sid in ("dc1", "dc2"):
            await nodes[sid].store.write(lambda tx: replace_body(tx.connection, stored))
        await resync_at(nodes["dc3"], ResyncOptions(USER, "INBOX"))
        await assert_put_right(nodes)


async def test_what_a_checkpoint_holds_of_it_is_void(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await plant(nodes, monkeypatch)
        node = nodes["dc3"]
        await checkpoint(node)
        await forget_log(node)
        assert (await check_at(node, repair=True)).damage == {}
        await resync_at(nodes["dc1"], ResyncOptions(USER, "INBOX"))
        await nodes.converged()
        checked = await check_at(node, repair=True)
        assert (checked.damage, checked.unproven) == ({}, 1)
        await checkpoint(node)
        checked = await check_at(node, repair=True)
        assert (checked.damage, checked.unproven) == ({}, 0)
        assert await node.body_of(2) == RIGHT


async def test_what_else_differs_is_mended_too(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await plant(nodes, monkeypatch)
        nodes.isolate("dc3")
        await nodes.linked(["dc3"], ["dc1", "dc2"])
        await nodes["dc3"].flag(2)
        await nodes["dc1"].flag(2, added=["\\Flagged"])
        leave_forks(monkeypatch)
        nodes.rejoin("dc3")
        await nodes.linked()
        status = await resync_at(nodes["dc3"], ResyncOptions(USER, "INBOX"))
        assert status.unmended == 0, status.differences
        await nodes.converged()
        for node in nodes.all():
            assert await node.body_of(2) == RIGHT
            assert (await check_at(node, repair=True)).damage == {}


async def test_a_row_that_names_another_text_than_its_entry_is_damage_that_a_check_mends(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await nodes["dc1"].save("first")
        await nodes["dc1"].save(RIGHT)
        await nodes.converged()
        node, wrong = nodes["dc3"], StoredBody.of(WRONG.encode())
        await node.store.write(lambda tx: write_body(tx.connection, wrong))
        node.damage(f"UPDATE by_uid SET content_hash = x'{wrong.content_hash.hex()}' WHERE uid = 2")
        checked = await check_at(node, repair=True)
        assert (checked.damage, checked.unrepaired) == ({"by_uid": 1}, 0)
        assert await node.body_of(2) == RIGHT
        await nodes.converged()
        await node.store.write(
            lambda tx: tx.connection.execute("DELETE FROM content WHERE hash = ?", (wrong.content_hash,))
        )


some_texts = st.builds(BodyOf, st.sampled_from([b"a" * 32, b"b" * 32, b"c" * 32]), st.just(4))


@given(st.dictionaries(st.sampled_from(["dc1", "dc2", "dc3", "dc4"]), some_texts, min_size=1), st.data())
def test_what_counts_does_not_depend_on_who_asks(said: dict[str, BodyOf], data: st.DataObject) -> None:
    counts = that_counts(said, "dc1")
    assert counts == that_counts(dict(data.draw(st.permutations(list(said.items())))), "dc1")
    have = Counter(said.values())
    assert counts == said.get("dc1", counts)
    assert "dc1" in said or all((-have[counts], counts) <= (-have[text], text) for text in said.values())


async def test_a_plan_that_calls_it_damaged_has_it_put_right(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await plant(nodes, monkeypatch)
        planned = tuple(replace(one, damaged=True) for one in await planned_for(nodes))
        looked = await apply(nodes["dc2"], ApplyOptions(planned, dry_run=True))
        assert looked.outcomes == {"damaged": 1}
        status = await apply(nodes["dc2"], ApplyOptions(planned))
        assert status.outcomes == {"repaired": 1}
        await assert_put_right(nodes)
        again = await apply(nodes["dc2"], ApplyOptions(planned))
        assert again.outcomes == {"damaged": 1}, "it is to be planned anew"
