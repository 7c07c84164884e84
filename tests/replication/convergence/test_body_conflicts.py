"""Body conflicts: nodes have different bodies of one message, under one GUID, and a repair makes them equal.

Nodes without digests of entries accepted bodies that had changed on a connection. The tests let nodes do that again.
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
from tests.replication.cluster import USER, Cluster, Node, cluster, entries_as_commands, until
from tests.replication.idle_parts import leave_forks
from tests.replication.log.truncating import checkpoint, forget_log
from tests.replication.stranger import text_of
from tests.replication.tasks.planning import apply
from tests.replication.tasks.planning import plan as planned_for
from tests.replication.tasks.running import check_at, resync_at
from tests.store.harness import without_histories

RIGHT, WRONG = "please pay 100 EUR", "please pay 200 EUR"


@contextmanager
def without_verification(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nodes number entries without histories, ignore digests, and take a body's hash from the octets that came."""
    add = EntryAssembler.add

    def adding(self: EntryAssembler, command: EntryCommand) -> Arrived | None:
        if isinstance(command, Save) and isinstance(command.message, Text):
            command = replace(command, message=text_of(command.message.octets))
        return add(self, command)

    with monkeypatch.context() as patched, without_histories(monkeypatch):
        patched.setattr(Entry, "digest", lambda _: bytes(16))
        patched.setattr(EntryAssembler, "add", adding)
        yield


async def plant(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch, *, author: str = "dc1", wrong: Sequence[str] = ("dc3",)
) -> None:
    """Save three messages at the author, and change the body of the second one on its way to the nodes in `wrong`."""
    entries_as_commands(monkeypatch)
    with without_verification(monkeypatch):
        await nodes[author].save("first")
        await nodes.converged()
        for sid in wrong:
            nodes.network.road(author, sid).spoil(b"pay 1")
        await nodes[author].save(RIGHT)
        await nodes[author].save("last")
        await until(lambda: have_the_same(nodes))
    bodies = {sid: await nodes[sid].body_of(2) for sid in nodes.nodes}
    assert bodies == dict.fromkeys(nodes.nodes, RIGHT) | dict.fromkeys(wrong, WRONG)


def have_the_same(nodes: Cluster) -> bool:
    return all(node.store.context == nodes["dc1"].store.context for node in nodes.all())


async def hashes_in_log(node: Node, uid: int) -> list[bytes]:
    rows = await node.store.read(lambda reader: reader.execute("SELECT origin, seq, body FROM log").fetchall())
    entries = [Entry.unpack(Dot(origin, seq), body) for origin, seq, body in rows]
    changes = [change for entry in entries for change in entry.changes]
    return [change.content_hash for change in changes if isinstance(change, MailAdd) and change.uid == uid]


async def assert_repaired(nodes: Cluster, body: str = RIGHT, besides: Sequence[str] = ()) -> None:
    """Check that all nodes show and log the same body, find no damage, and differ from no peer but `besides`."""
    await nodes.converged()
    for node in nodes.all():
        assert await node.bodies() == {1: "first", 2: body, 3: "last"}
        assert await hashes_in_log(node, 2) == [text_of(body.encode()).content_hash]
        checked = await check_at(node, repair=True)
        assert (checked.damage, checked.unproven) == ({}, 0)
        status = await resync_at(node, ResyncOptions(USER, "INBOX"))
        assert [one.peer for one in status.differences] == list(besides)


@pytest.mark.parametrize("at", ["dc1", "dc2", "dc3"])
async def test_resync_at_any_node_repairs_a_body_conflict(
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
        await assert_repaired(nodes)


async def test_new_node_gets_the_repaired_body_from_the_node_that_had_the_wrong_one(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await plant(nodes, monkeypatch)
        await resync_at(nodes["dc1"], ResyncOptions(USER, "INBOX"))
        await assert_repaired(nodes)
        await nodes.stop("dc2")
        nodes.erase("dc2")
        nodes.isolate("dc1")
        await nodes.start("dc2")
        await until(lambda: nodes["dc2"].store.context == nodes["dc3"].store.context)
        assert await hashes_in_log(nodes["dc2"], 2) == [text_of(RIGHT.encode()).content_hash]
        nodes.rejoin("dc1")
        await nodes.linked()
        await assert_repaired(nodes)


async def test_body_at_the_author_counts_against_all_others(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await plant(nodes, monkeypatch, author="dc3", wrong=["dc1", "dc2"])
        assert (await resync_at(nodes["dc1"], ResyncOptions(USER, "INBOX"))).unmended == 0
        await assert_repaired(nodes)


@pytest.mark.parametrize(("wrong", "counts"), [(["dc4"], RIGHT), (["dc3", "dc4"], WRONG), (["dc2", "dc3"], WRONG)])
async def test_body_of_the_majority_counts_without_the_author(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, wrong: Sequence[str], counts: str
) -> None:
    async with cluster(tmp_path, autojump_clock, 4) as nodes:
        await plant(nodes, monkeypatch, wrong=wrong)
        await nodes.stop("dc1")
        await nodes.linked()
        status = await resync_at(nodes["dc2"], ResyncOptions(USER, "INBOX"))
        assert {one.peer for one in status.differences if one.done is None} == {"dc1"}, "dc1 cannot be reached"
        await assert_repaired(nodes, counts, besides=["dc1"])
        await nodes.start("dc1")
        await nodes.linked()
        await resync_at(nodes["dc2"], ResyncOptions(USER, "INBOX"))
        await assert_repaired(nodes)


async def test_repair_ends_sessions_and_keeps_the_replaced_body_for_a_while(
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


async def test_body_is_not_replaced_by_an_unavailable_one(
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
        await assert_repaired(nodes)


async def test_repair_voids_the_checkpoint_of_the_mailbox(
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


async def test_repair_merges_other_differences_too(
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


async def test_check_repairs_a_row_that_names_another_body_than_its_entry(
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


some_bodies = st.builds(BodyOf, st.sampled_from([b"a" * 32, b"b" * 32, b"c" * 32]), st.just(4))


@given(st.dictionaries(st.sampled_from(["dc1", "dc2", "dc3", "dc4"]), some_bodies, min_size=1), st.data())
def test_rule_for_the_body_that_counts_is_the_same_at_all_nodes(said: dict[str, BodyOf], data: st.DataObject) -> None:
    counts = that_counts(said, "dc1")
    assert counts == that_counts(dict(data.draw(st.permutations(list(said.items())))), "dc1")
    have = Counter(said.values())
    assert counts == said.get("dc1", counts)
    assert "dc1" in said or all((-have[counts], counts) <= (-have[body], body) for body in said.values())


async def test_plan_with_a_damaged_mailbox_repairs_a_body_conflict(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, autojump_clock) as nodes:
        await plant(nodes, monkeypatch)
        planned = tuple(replace(one, damaged=True) for one in await planned_for(nodes))
        looked = await apply(nodes["dc2"], ApplyOptions(planned, dry_run=True))
        assert looked.outcomes == {"damaged": 1}
        status = await apply(nodes["dc2"], ApplyOptions(planned))
        assert status.outcomes == {"repaired": 1}
        await assert_repaired(nodes)
        again = await apply(nodes["dc2"], ApplyOptions(planned))
        assert again.outcomes == {"damaged": 1}, "the mailbox has changed since the plan"
