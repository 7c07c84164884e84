"""A node's log has lost entries that another node lacks."""

import logging
from functools import partial
from pathlib import Path

import msgpack
import pytest
import trio
from trio.testing import MockClock

from protocol.values import Dot, sid_of
from replicator.replication import timing
from replicator.replication.log.gap_recovery import GapRecovery
from replicator.store import store as store_module
from replicator.store.db import queries
from replicator.store.log import gaps as gaps_module
from replicator.store.repair.head_evidence import log_lacks
from replicator.tasks import CheckOptions, CheckStatus
from resync.entry import MailAdd
from tests.effort import first
from tests.replication.cluster import Cluster, Node, cluster, until, virtual_environment
from tests.replication.tasks.running import run_task
from tests.store.harness import open_store, save

DELETE = "DELETE FROM log WHERE origin = ? AND seq = ?"
GARBLE = "UPDATE log SET body = x'00' WHERE origin = ? AND seq = ?"
APPLY = "UPDATE log SET applied = ? WHERE origin = ? AND seq = ?"


@pytest.fixture(autouse=True)
def short_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make nodes read entries from the disk."""
    monkeypatch.setattr(store_module, "TAIL_BYTES", 2000)


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass gaps over early, which is safe because no test saves large messages."""
    monkeypatch.setattr(timing, "GAPS_PATIENCE_S", timing.REQUEST_TIMEOUT_S)


async def execute(node: Node, statement: str, *parameters: object) -> None:
    await node.store.write(lambda tx: tx.connection.execute(statement, parameters).rowcount)


async def cut_off_dc3(nodes: Cluster) -> None:
    """Put the nodes in a line, and cut dc3 off from dc2 while dc1 and dc2 take mail."""
    await nodes.make_line()
    for sid in ("dc1", "dc2"):
        await nodes[sid].save("before", user=sid)
    await nodes.converged()
    nodes.network.cut(("dc2", "dc3"))
    await nodes.linked(["dc1", "dc2"], ["dc3"])
    for number in range(20):
        for sid in ("dc1", "dc2"):
            await nodes[sid].save(f"{number}", user=sid)
    await until(lambda: nodes["dc1"].store.context == nodes["dc2"].store.context)


async def rejoin_dc3(nodes: Cluster) -> None:
    nodes.network.mend(("dc2", "dc3"))
    await nodes.linked()


async def all_converged(nodes: Cluster) -> None:
    await until(lambda: all(node.store.context == nodes["dc1"].store.context for node in nodes.all()))
    await nodes.converged()
    await until(lambda: not any(node.coordinator.state_transfer.is_running for node in nodes.all()))


def last_dot_of(node: Node) -> tuple[str, int]:
    return node.store.origin, node.store.context[node.store.origin]


@pytest.mark.parametrize("lose", first(1, [DELETE, GARBLE]))
@pytest.mark.parametrize("author", first(1, ["dc2", "dc1"]))
async def test_peer_adopts_lost_entries_and_gets_the_later_ones(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, author: str, lose: str
) -> None:
    """dc2's log has lost entries of dc1 or of dc2 itself, under an origin that is still in use."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await cut_off_dc3(nodes)
        other = "dc2" if author == "dc1" else "dc1"
        with_gap, back = nodes["dc2"], nodes["dc3"]
        origin, last = last_dot_of(nodes[author])
        for seq in (last - 9, last - 8, last - 3):
            await execute(with_gap, lose, origin, seq)
        await rejoin_dc3(nodes)
        link = with_gap.coordinator.connections.link("dc3")
        with trio.fail_after(timing.REQUEST_TIMEOUT_S / 2):
            await nodes[author].save("meanwhile", user=author)
            await nodes[other].save("meanwhile", user=other)
            others, upto = last_dot_of(nodes[other])
            await until(lambda: back.store.context.get(others) == upto)
            assert len(await back.bodies(user=other)) == 22
            assert 1 < len(await back.bodies(user=author)) < 21
        await all_converged(nodes)
        assert len(await back.bodies(user=author)) == 22
        assert with_gap.store.collected == {origin: last - 3}
        assert back.store.collected == {origin: last - 3}
        assert not nodes["dc1"].store.collected
        await nodes[author].save("after", user=author)
        await nodes[other].save("after", user=other)
        await all_converged(nodes)
        assert await back.save("mine", user=author) == 24
        await all_converged(nodes)
        assert with_gap.coordinator.connections.link("dc3") is link is not None
        line, _ = (record for record in caplog.records if record.levelno == logging.ERROR)
        assert f"entries {last - 9} to {last - 8} of {origin}" in line.getMessage()
        assert any(
            "3 entries that had arrived" in finding.what
            for finding in (await run_task(with_gap, CheckOptions(), CheckStatus)).findings
        )
        await execute(with_gap, "DELETE FROM log WHERE body = x'00'")


async def test_entry_that_the_disk_has_altered_reaches_no_peer(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The log of dc2 has another date for a message of dc1, in an entry that can still be read."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await cut_off_dc3(nodes)
        with_gap, back = nodes["dc2"], nodes["dc3"]
        origin, last = last_dot_of(nodes["dc1"])
        dot = Dot(origin, last - 3)
        entry = await with_gap.store.read(partial(queries.entry_at, dot=dot))
        assert entry is not None
        (add,) = entry.changes
        assert isinstance(add, MailAdd)
        sound = msgpack.packb(add.received_ms)
        altered = entry.pack().replace(sound, msgpack.packb(add.received_ms + 1))
        await execute(with_gap, "UPDATE log SET body = ? WHERE origin = ? AND seq = ?", altered, *dot)
        await rejoin_dc3(nodes)
        await all_converged(nodes)
        assert with_gap.store.collected == back.store.collected == {origin: last - 3}
        assert add.received_ms in {message.received_ms for message in (await back.view(user="dc1")).messages.values()}
        await execute(with_gap, DELETE, *dot)


@pytest.mark.long
async def test_gap_stays_while_a_client_may_wait_for_its_entries(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that adopts the state acknowledges the lost entries, although it may lack their bodies."""
    monkeypatch.setattr(timing, "GAPS_PATIENCE_S", timing.LONGEST_WAIT_S)
    async with cluster(tmp_path, autojump_clock) as nodes:
        await cut_off_dc3(nodes)
        origin, last = last_dot_of(nodes["dc1"])
        await execute(nodes["dc2"], DELETE, origin, last)
        await nodes["dc1"].save("after", user="dc1")
        await until(lambda: nodes["dc2"].store.context[origin] == last + 1)
        await rejoin_dc3(nodes)
        await trio.sleep(timing.LONGEST_WAIT_S - 10)
        assert nodes["dc3"].store.context[origin] == last - 1
        await trio.sleep(20)
        assert nodes["dc3"].store.context[origin] == last + 1
        await all_converged(nodes)


async def test_gap_at_the_end_of_a_past_run_is_adopted(tmp_path: Path, autojump_clock: MockClock) -> None:
    """No later entry of that origin shows that there is a gap."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await cut_off_dc3(nodes)
        await nodes.stop("dc1")
        await nodes.linked(["dc2"], ["dc3"])
        ((origin, last),) = (item for item in nodes["dc2"].store.context.items() if sid_of(item[0]) == "dc1")
        await execute(nodes["dc2"], DELETE, origin, last)
        nodes.network.mend(("dc2", "dc3"))
        await nodes.linked()
        await nodes_converged(nodes, "dc2", "dc3")
        assert len(await nodes["dc3"].bodies(user="dc1")) == 21
        assert await nodes["dc2"].store.read(log_lacks) == 1


async def nodes_converged(nodes: Cluster, *sids: str) -> None:
    await until(lambda: all(nodes[sid].store.context == nodes[sids[0]].store.context for sid in sids))
    await nodes.converged()


@pytest.mark.long
@pytest.mark.parametrize("lost", [False, True])
async def test_gap_with_waiting_entries_holds_back_only_its_origin(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, *, lost: bool
) -> None:
    """The waiting entry is one that the log has, or one that it has lost."""
    async with cluster(tmp_path, autojump_clock) as nodes:
        await cut_off_dc3(nodes)
        with_gap, back = nodes["dc2"], nodes["dc3"]
        origin, last = last_dot_of(nodes["dc1"])
        if lost:
            query = "INSERT INTO waiting SELECT x'01', 'dc9.a', 1, origin, seq FROM log WHERE origin = ? AND seq = ?"
            await execute(with_gap, query, origin, last - 9)
        else:
            await execute(with_gap, APPLY, 0, origin, last - 15)
        await execute(with_gap, DELETE, origin, last - 9)
        await rejoin_dc3(nodes)
        link = with_gap.coordinator.connections.link("dc3")
        await trio.sleep(5 * timing.REQUEST_TIMEOUT_S)
        await nodes["dc2"].save("meanwhile", user="dc2")
        await until(lambda: back.store.context[last_dot_of(with_gap)[0]] == last_dot_of(with_gap)[1])
        assert back.store.context[origin] == last - 10
        assert with_gap.coordinator.connections.link("dc3") is link is not None
        assert len([record for record in caplog.records if "cannot begin after its gap yet" in record.message]) == 1
        await execute(with_gap, "DELETE FROM waiting")
        await execute(with_gap, APPLY, 1, origin, last - 15)
        await all_converged(nodes)
        assert with_gap.coordinator.connections.link("dc3") is link


async def test_each_peer_is_held_back_by_the_next_gap_of_its_own(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A gap that has been filled holds back nobody."""
    restarts = 0

    def start_again() -> None:
        nonlocal restarts
        restarts += 1

    async with open_store(tmp_path, environment=virtual_environment(autojump_clock, "a")) as store:
        for number in range(8):
            await save(store, number)
        lost = "FROM log WHERE seq IN (2, 5)"
        kept = await store.read(lambda reader: reader.execute(f"SELECT * {lost}").fetchall())
        await store.write(lambda tx: tx.connection.execute(f"DELETE {lost}").rowcount)
        gaps = GapRecovery(store, start_again)
        assert not await gaps.look({}), "the peer lacks entries before the gap"
        assert not await gaps.look({store.origin: 5})
        assert await gaps.look({store.origin: 1})
        assert await gaps.look({store.origin: 1}), "another peer's cursor may have come to the gap before"
        assert gaps.hold_back(Dot(store.origin, 3), 1)
        assert not gaps.hold_back(Dot(store.origin, 1), 0)
        assert not gaps.hold_back(Dot(store.origin, 6), 3), "no cursor has come to the second gap"
        assert not await gaps.look({store.origin: 3})
        assert gaps.hold_back(Dot(store.origin, 6), 3)
        assert not gaps.hold_back(Dot(store.origin, 6), 5)
        insert = f"INSERT INTO log VALUES ({','.join('?' * len(kept[0]))})"
        await store.write(lambda tx: tx.connection.executemany(insert, kept).rowcount)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gaps.run)
            await trio.sleep(2 * timing.REQUEST_TIMEOUT_S)
            nursery.cancel_scope.cancel()
        assert restarts == 2
        assert not store.collected
        assert not gaps.hold_back(Dot(store.origin, 6), 0)


async def test_search_for_gaps_ends_without_the_row_of_the_origin(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_store(tmp_path, environment=virtual_environment(autojump_clock, "a")) as store:
        for number in range(4):
            await save(store, number)
        kept = await store.read(lambda reader: reader.execute("SELECT * FROM origin").fetchone())
        await store.write(lambda tx: tx.connection.execute("DELETE FROM origin").rowcount)
        with trio.fail_after(timing.REQUEST_TIMEOUT_S):
            assert not await GapRecovery(store, lambda: None).look({})
        insert = f"INSERT INTO origin VALUES ({','.join('?' * len(kept))})"
        await store.write(lambda tx: tx.connection.execute(insert, kept).rowcount)


async def test_long_gap_is_reported_as_one(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaps_module, "SLICE_ENTRIES", 3)
    async with open_store(tmp_path, environment=virtual_environment(autojump_clock, "a")) as store:
        for number in range(14):
            await save(store, number)
        await store.write(lambda tx: tx.connection.execute("DELETE FROM log WHERE seq BETWEEN 2 AND 9").rowcount)
        await store.write(lambda tx: tx.connection.execute("DELETE FROM log WHERE seq = 11").rowcount)
        gaps = GapRecovery(store, lambda: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gaps.run)
            assert await gaps.look({store.origin: 1})
            await trio.sleep(1.5 * timing.REQUEST_TIMEOUT_S)
            nursery.cancel_scope.cancel()
        (line,) = (record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)
        assert line.startswith("entries 2 to 9 of")
        assert store.collected == {store.origin: 9}
        await store.write(partial(gaps_module.begin_after_gap, gap=gaps_module.LogGap(store.origin, 11, 11)))


async def test_peers_behind_one_or_two_gaps_get_everything_else(tmp_path: Path, autojump_clock: MockClock) -> None:
    """dc2's log has two gaps in dc1's entries. dc4 lacks both; dc3 lacks the later one, which dc4 has not reached."""
    async with cluster(tmp_path, autojump_clock, 4) as nodes:
        nodes.network.cut(("dc1", "dc3"), ("dc1", "dc4"), ("dc3", "dc4"))
        await nodes.linked()
        for sid in ("dc1", "dc2"):
            await nodes[sid].save("before", user=sid)
        await nodes.converged()
        nodes.network.cut(("dc2", "dc4"))
        await nodes.linked(["dc1", "dc2", "dc3"], ["dc4"])
        early = await save_many(nodes, "dc3")
        nodes.network.cut(("dc2", "dc3"))
        await nodes.linked(["dc1", "dc2"], ["dc3"], ["dc4"])
        late = await save_many(nodes, "dc2")
        for dot in (early, late):
            await execute(nodes["dc2"], DELETE, dot.origin, dot.seq - 3)
        nodes.network.mend(("dc2", "dc4"))
        await nodes.linked(["dc1", "dc2", "dc4"], ["dc3"])
        with trio.fail_after(timing.REQUEST_TIMEOUT_S / 2):
            await until(lambda: nodes["dc4"].store.context.get(early.origin) == early.seq - 4)
            nodes.network.mend(("dc2", "dc3"))
            await nodes.linked()
            await nodes["dc2"].save("meanwhile", user="dc2")
            mine, upto = last_dot_of(nodes["dc2"])
            await until(lambda: all(nodes[sid].store.context.get(mine) == upto for sid in ("dc3", "dc4")))
        assert nodes["dc3"].store.context[late.origin] == late.seq - 4
        assert nodes["dc4"].store.context[early.origin] == early.seq - 4
        await all_converged(nodes)
        assert nodes["dc2"].store.collected == {late.origin: late.seq - 3}


async def save_many(nodes: Cluster, target: str) -> Dot:
    """Save mail at dc1, and wait until it reaches a node; return the dot of the last entry."""
    for number in range(10):
        await nodes["dc1"].save(f"{number}", user="dc1")
    last = Dot(*last_dot_of(nodes["dc1"]))
    await nodes[target].store.wait_logged(last)
    return last
