"""Checks and scrubs find exactly the damage that was planted in a database, and repair it."""

import sqlite3
from contextlib import closing, suppress
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.values import UidSet
from replicator.replication.tasks import inspection
from replicator.store.bodies.body_rows import StoredBody
from replicator.store.db.tally import Tally
from replicator.store.db.transaction import Transaction
from replicator.store.repair import mailbox_check, table_check
from replicator.tasks import CheckOptions, CheckStatus, ScrubOptions
from tests.effort import spread
from tests.replication.cluster import USER, Node, cluster
from tests.replication.tasks.planted_damage import BODY_HASH, DAMAGES, INBOX, ROW, WORK, Planted, fill
from tests.replication.tasks.running import check_at, run_to_end, tasks_at


async def rows(node: Node) -> dict[str, set[tuple[object, ...]]]:
    """Return all rows that a node shows. Only the length of flags counts: they are a map, without an order."""
    columns = {"by_uid": f"mailbox, {ROW.replace('flags', 'length(flags)')}"}
    tables = ("by_uid", "by_guid", "folder", "subscription", "annotation")
    return {
        table: set(await node.store.read(partial(_selected, table=table, columns=columns.get(table, "*"))))
        for table in tables
    }


def _selected(connection: sqlite3.Connection, table: str, columns: str) -> list[tuple[object, ...]]:
    return connection.execute(f"SELECT {columns} FROM {table}").fetchall()


@pytest.mark.parametrize("planted", spread(20, DAMAGES), ids=lambda planted: planted.name)
async def test_planted_damage_is_found_and_repaired(
    tmp_path: Path, autojump_clock: MockClock, planted: Planted
) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fill(nodes)
        assert (await check_at(nodes["dc2"])).damage == {}
        nodes["dc2"].damage(*planted.statements)
        found = await check_at(nodes["dc2"])
        assert (found.damage, found.repaired) == (planted.found, 0)
        mended = await check_at(nodes["dc2"], repair=True)
        assert (mended.damage, mended.unrepaired) == (planted.found, 0)
        assert (await check_at(nodes["dc2"])).damage == {}
        await nodes.converged()
        assert await rows(nodes["dc2"]) == await rows(nodes["dc1"]), (
            "digests follow from counters, which the check has repaired"
        )
        await nodes["dc2"].save("afterwards")
        await nodes.converged()
        assert await nodes["dc2"].bodies() == await nodes["dc1"].bodies()
        assert await nodes["dc2"].bodies("Work") == {1: "at work"}


ANYTHING = ["7", "-1", "9223372036854775807", "1.5", "''", "'text'", "x''", "x'ff'", "randomblob(5000)"]
COLUMNS = {
    "by_uid": [*ROW.split(", "), "mailbox"],
    "by_guid": ["guid", "mailbox", "uid", "origin", "seq", "change"],
    "chain": [
        "id", "user", "uidnext", "highestmodseq", "head_origin", "head_seq", "context", "messages", "unseen",
        "size_bytes", "fingerprint", "risen",
    ],
    "folder": ["mailbox_id", "user", "name", "uidvalidity", "deleted", "time", "sid"],
    "subscription": ["user", "name", "subscribed", "time", "sid"],
    "annotation": ["user", "mailbox_id", "name", "value", "time", "sid"],
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("table", COLUMNS)
async def test_any_value_in_any_column_is_repaired(tmp_path: Path, autojump_clock: MockClock, table: str) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fill(nodes)
        path = nodes["dc2"].config.node.data / "node.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            whole = connection.execute(f"SELECT * FROM {table}").fetchall()
            places = ",".join("?" * len(whole[0]))
            for column, value in product(COLUMNS[table], ANYTHING):
                one = f"(SELECT {column} FROM {table} LIMIT 1)"
                with suppress(sqlite3.IntegrityError):
                    connection.execute(f"UPDATE {table} SET {column} = {value} WHERE {column} = {one}")
                await check_at(nodes["dc2"])
                await check_at(nodes["dc2"], repair=True)
                await check_at(nodes["dc2"], "scrub")
                found = connection.execute(f"SELECT * FROM {table}").fetchall()
                assert sorted(map(repr, found)) == sorted(map(repr, whole)), (column, value)
                connection.execute(f"DELETE FROM {table}")
                connection.executemany(f"INSERT INTO {table} VALUES ({places})", whole)


@pytest.mark.parametrize("column", ["hash", "body"])
async def test_scrub_replaces_any_damaged_body(tmp_path: Path, autojump_clock: MockClock, column: str) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fill(nodes)
        with closing(sqlite3.connect(nodes["dc2"].config.node.data / "node.db", isolation_level=None)) as connection:
            for value in ANYTHING:
                changed = connection.execute(f"UPDATE content SET {column} = {value} WHERE hash = {BODY_HASH}").rowcount
                healed = await check_at(nodes["dc2"], "scrub")
                assert changed == 1
                assert healed.repaired == 1
                assert healed.unrepaired == (column == "hash"), "a body under a hash that no message names stays"
                connection.execute("DELETE FROM content WHERE hash NOT IN (SELECT content_hash FROM by_uid) AND id > 1")
        assert await nodes["dc2"].bodies() == await nodes["dc1"].bodies()


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_check_finds_damage_at_the_edges_of_slices(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(mailbox_check, "SLICE_ROWS", size)
    monkeypatch.setattr(table_check, "SLICE_ROWS", size)
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fill(nodes)
        for number in range(5):
            await nodes["dc1"].save(f"more {number}")
        await nodes.converged()
        assert (await check_at(nodes["dc2"])).damage == {}
        assert (await check_at(nodes["dc2"], "scrub")).damage == {}
        nodes["dc2"].damage(
            f"DELETE FROM by_uid WHERE uid IN (3, 6, 9) AND mailbox = {INBOX}",
            f"UPDATE by_uid SET uid = 'x' WHERE uid = 5 AND mailbox = {INBOX}",
            f"DELETE FROM by_guid WHERE uid = 7 AND mailbox = {INBOX}",
            f"INSERT INTO by_guid VALUES (randomblob(16), {WORK}, 1, 'a', 1, 0)",
            f"DELETE FROM content WHERE hash = {BODY_HASH}",
        )
        found = {"by_uid": 5, "by_guid": 2, "content": 1}
        assert (await check_at(nodes["dc2"])).damage == found
        mended = await check_at(nodes["dc2"], repair=True)
        assert (mended.damage, mended.unrepaired) == (found, 0)
        assert (await check_at(nodes["dc2"])).damage == {}


async def test_finding_names_the_message(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        await nodes["dc1"].save("text")
        (message,) = await nodes["dc1"].messages()
        nodes["dc1"].damage("DELETE FROM by_uid")
        (finding,) = (await check_at(nodes["dc1"], repair=True)).findings
        assert (finding.user, finding.folder, finding.uid, finding.guid) == (USER, "INBOX", 1, message.guid.hex())
        assert (finding.what, finding.done) == ("is missing", "rebuilt from the log")


A_BIT_FLIPPED = "CAST(substr(body, 1, length(body) - 2) || CAST(x'00' AS TEXT) || substr(body, -1) AS BLOB)"


@pytest.mark.parametrize(
    "body",
    [
        "x'28b52ffd00'",
        "substr(body, 1, length(body) - 1)",
        "zeroblob(length(body))",
        "7",
        A_BIT_FLIPPED,
        "(SELECT body FROM content WHERE hash <> " + BODY_HASH + ")",
    ],
    ids=["cut short", "its end gone", "zeros", "no body", "a byte altered", "another body"],
)
async def test_scrub_replaces_a_damaged_body(tmp_path: Path, autojump_clock: MockClock, body: str) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fill(nodes)
        nodes["dc2"].damage(f"UPDATE content SET body = {body} WHERE hash = {BODY_HASH}")
        assert (await check_at(nodes["dc2"])).damage == {}, "a check does not read bodies"
        healed = await check_at(nodes["dc2"], "scrub")
        assert (healed.damage, healed.repaired, healed.contents) == ({"content": 1}, 1, 5)
        assert (await check_at(nodes["dc2"], "scrub")).damage == {}


async def test_scrub_reports_and_keeps_a_damaged_orphan(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fill(nodes)
        values = "(randomblob(32), 1, 0, randomblob(100))"
        nodes["dc2"].damage(f"INSERT INTO content (hash, size_bytes, parted, body) VALUES {values}")
        assert (await check_at(nodes["dc2"], repair=True)).damage == {}
        found = await check_at(nodes["dc2"], "scrub")
        assert (found.damage, found.unrepaired) == ({"content": 1}, 1)
        assert "no message refers to it" in found.findings[0].what
        nodes["dc2"].damage("DELETE FROM content WHERE length(body) = 100")
        await nodes.converged()


async def test_body_that_no_node_has_is_reported_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fill(nodes)
        view = await nodes["dc1"].view()
        await nodes["dc1"].mail.copy(view, UidSet.of([2]), await nodes["dc1"].mail.folder(USER, "Work"))
        await nodes.converged()
        for node in nodes.all():
            node.damage(f"UPDATE content SET body = x'00' WHERE hash = {BODY_HASH}")
        lost = await check_at(nodes["dc1"], "scrub")
        assert (lost.damage, lost.unrepaired) == ({"content": 1}, 1)
        assert "no reachable node has it" in lost.findings[0].what
        for node in nodes.all():  # makes the databases pass the check when the nodes stop
            body = StoredBody.of(b"text 1").packed
            node.damage(f"UPDATE content SET body = x'{body.hex()}' WHERE hash = {BODY_HASH}")


async def test_check_changes_nothing_by_a_log_with_lost_entries(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fill(nodes)
        path = nodes["dc2"].config.node.data / "node.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            lost = connection.execute("SELECT * FROM log ORDER BY position DESC LIMIT 1").fetchall()
            before = connection.execute("SELECT * FROM by_uid").fetchall()
            connection.execute("DELETE FROM log WHERE position = (SELECT MAX(position) FROM log)")
            report = await check_at(nodes["dc2"], repair=True)
            assert set(report.damage) == {"log"}
            assert report.repaired == 0
            assert connection.execute("SELECT * FROM by_uid").fetchall() == before
            connection.executemany("INSERT INTO log VALUES (?,?,?,?,?,?,?,?)", lost)


async def test_repair_of_a_mailbox_ends_its_sessions(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fill(nodes)
        view, other = await nodes["dc2"].view(), await nodes["dc2"].view("Work")
        nodes["dc2"].damage(f"DELETE FROM by_uid WHERE uid = 2 AND mailbox = {INBOX}")
        await check_at(nodes["dc2"])
        assert not view.deleted
        await check_at(nodes["dc2"], repair=True)
        assert (view.deleted, other.deleted) == (True, False)
        assert 2 in (await nodes["dc2"].view()).messages


async def test_damage_done_while_a_node_is_stopped_is_repaired(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fill(nodes)
        node = nodes["dc2"]
        await nodes.stop("dc2")
        node.damage(f"DELETE FROM by_uid WHERE uid = 2 AND mailbox = {INBOX}", "UPDATE chain SET uidnext = uidnext + 7")
        await nodes.start("dc2")
        await nodes.linked()
        mended = await check_at(nodes["dc2"], repair=True)
        assert (mended.damage, mended.unrepaired) == ({"by_uid": 1, "chain": 3}, 0)
        await nodes.converged()


async def test_wrong_digest_of_everything_is_found_and_counted_anew(tmp_path: Path, autojump_clock: MockClock) -> None:
    def spoil(tx: Transaction) -> None:
        tx._tally = Tally(7, 7)

    async with cluster(tmp_path, autojump_clock, 2) as nodes:
        await fill(nodes)
        await nodes["dc2"].store.write(spoil)
        wrong, right = [(await node.report.node_status()).digest for node in (nodes["dc2"], nodes["dc1"])]
        assert wrong != right
        assert (await check_at(nodes["dc2"])).damage == {"tally": 1}
        assert (await nodes["dc2"].report.node_status()).digest == right
        assert (await check_at(nodes["dc2"])).damage == {}


async def test_database_failure_ends_only_the_check(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        await nodes["dc1"].save("text")
        with closing(sqlite3.connect(nodes["dc1"].config.node.data / "node.db")) as connection:
            connection.execute("ALTER TABLE content RENAME TO elsewhere")
            async with tasks_at(nodes["dc1"]) as tasks:
                status = await run_to_end(tasks, CheckOptions(), CheckStatus)
                assert status.state == "failed"
                assert "no such table: content" in str(status.error)
                connection.execute("ALTER TABLE elsewhere RENAME TO content")
                assert (await run_to_end(tasks, CheckOptions(), CheckStatus)).state == "done"


async def test_findings_above_the_limit_are_counted(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "FINDINGS_MAX", 2)
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        for number in range(5):
            await nodes["dc1"].save(f"text {number}")
        nodes["dc1"].damage("DELETE FROM by_uid")
        async with tasks_at(nodes["dc1"]) as tasks:
            status = await run_to_end(tasks, CheckOptions(repair=True), CheckStatus)
        assert (len(status.findings), status.left_out, status.repaired) == (2, 3, 5)


async def test_one_task_runs_at_a_time_and_can_be_cancelled(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        await nodes["dc1"].save("text")
        async with tasks_at(nodes["dc1"]) as tasks:
            assert tasks.start(CheckOptions(rate=1))
            assert (tasks.start(ScrubOptions()), tasks.running()) == (None, "check")
            await trio.sleep(1)
            tasks.cancel("check")
            await tasks.wait("check")
            status = tasks.status("check")
            assert status is not None
            assert (status.state, tasks.running()) == ("cancelled", None)
            assert (await run_to_end(tasks, ScrubOptions(), CheckStatus)).state == "done"


async def test_check_keeps_its_rate(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with cluster(tmp_path, autojump_clock, 1) as nodes:
        for number in range(10):
            await nodes["dc1"].save(f"text {number}")
        before = trio.current_time()
        status = await check_at(nodes["dc1"], rate=10)
        assert trio.current_time() - before == pytest.approx(status.done / 10, abs=0.5)


@pytest.mark.long
async def test_concurrent_writes_are_not_reported_as_damage(tmp_path: Path) -> None:
    async with cluster(tmp_path, None, 2) as nodes, trio.open_nursery() as nursery:
        await fill(nodes)
        done = trio.Event()

        async def keep_writing(node: Node) -> None:
            for number in range(40):
                uid = await node.save(f"{node.sid} {number}")
                await node.flag(uid)
                if number % 4 == 0:
                    await node.expunge(uid)
            done.set()

        for node in nodes.all():
            nursery.start_soon(keep_writing, node)
        while not done.is_set():
            reports = [await check_at(node, repair=True) for node in nodes.all()]
            assert [report.damage for report in reports] == [{}, {}]
            nodes["dc2"].damage(f"DELETE FROM by_uid WHERE uid = 2 AND mailbox = {INBOX}")
            assert (await check_at(nodes["dc2"], repair=True)).damage == {"by_uid": 1}
    # lost entries would make the databases fail the check that runs when the nodes stop
