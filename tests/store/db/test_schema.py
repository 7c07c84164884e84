import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from replicator.errors import ConfigError, DatabaseFailedError, DataError
from replicator.runtime.environment import Environment
from replicator.store.checkpoints import catalog
from replicator.store.db import queries, schema
from replicator.store.log.forks import users_with_strays
from replicator.store.store import Store
from tests.store.harness import ALICE, INBOX, annotating, connection_of, creating, open_store, save, without_histories


async def error_on_opening(path: Path) -> str:
    """Return the message of the error, which names the file."""
    with pytest.raises((ConfigError, DataError)) as caught:
        async with Store.open(path, "dc1.a", Environment()):
            pass
    assert str(path) in str(caught.value)
    return str(caught.value)


async def test_database_of_another_version_is_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    async with open_store(tmp_path) as store:
        await save(store, 1)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    assert "another version" in await error_on_opening(path)
    assert path.read_bytes() == before


async def test_database_of_an_earlier_version_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "node.db"
    async with open_store(tmp_path) as store:
        await store.write(lambda tx: schema.claim(tx.connection, "dc1", "mail"))
        with without_histories(monkeypatch):
            await save(store, 1)
    connection = sqlite3.connect(path)
    connection.executescript(
        "DROP INDEX lacking_hash; DROP INDEX log_abandoned; ALTER TABLE identity DROP COLUMN begun;"
        "ALTER TABLE by_uid DROP COLUMN also; ALTER TABLE by_uid DROP COLUMN saved_ms;"
        "ALTER TABLE chain DROP COLUMN history;"
        "DROP TRIGGER outline_leaves; DROP TABLE outline; DROP TABLE annotation;"
        "DROP INDEX folder_deleted; DROP INDEX folder_uidvalidity; DROP TABLE tally; PRAGMA user_version = 8;"
    )
    connection.close()
    async with open_store(tmp_path) as store:
        assert await store.write(lambda tx: schema.claim(tx.connection, "dc1", "mail")), "the node counts as begun"
        assert await save(store, 2) == 2


async def test_entries_that_an_earlier_version_logged_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node.db"
    async with open_store(tmp_path) as store:
        with without_histories(monkeypatch):
            await save(store, 1)
    connection = sqlite3.connect(path)
    connection.executescript(
        "UPDATE log SET body = substr(body, 18);"  # without checks
        "ALTER TABLE chain DROP COLUMN history; DROP TRIGGER outline_leaves; DROP TABLE outline;"
        "ALTER TABLE by_uid DROP COLUMN saved_ms; DROP TABLE annotation;"
        "DROP INDEX folder_deleted; DROP INDEX folder_uidvalidity; DROP TABLE tally; PRAGMA user_version = 10;"
    )
    connection.close()
    async with Store.open(path, "dc1.b", Environment()) as store:
        await save(store, 2)
        entries = await store.read(lambda reader: queries.log_after(reader, 0, 99, 99, 10**6))
        assert [(one.entry.dot.seq, len(one.bodies)) for one in entries] == [(1, 1), (1, 1)]


async def test_database_from_before_there_were_annotations_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    async with open_store(tmp_path) as store:
        await store.write(creating("Work", b"w" * 16))
    connection = sqlite3.connect(path)
    connection.executescript(
        "DROP TABLE annotation; ALTER TABLE by_uid DROP COLUMN saved_ms;"
        "DROP INDEX folder_deleted; DROP INDEX folder_uidvalidity; DROP TABLE tally; PRAGMA user_version = 12;"
    )
    connection.close()
    async with open_store(tmp_path, "dc1.b") as store:
        await store.write(annotating(b"w" * 16, comment=b"x"))
        known = await store.read(lambda reader: queries.annotations_of(reader, ALICE, b"w" * 16))
        assert known == {"/private/comment": b"x"}


async def test_messages_from_before_there_were_save_dates_stay_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node.db"
    async with open_store(tmp_path) as store:
        with without_histories(monkeypatch):
            await save(store, 1)
        before = await store.read(lambda reader: queries.chain_or_empty(reader, INBOX))
    connection = sqlite3.connect(path)
    connection.executescript(
        "ALTER TABLE by_uid DROP COLUMN saved_ms; DROP INDEX folder_deleted; DROP INDEX folder_uidvalidity;"
        "DROP TABLE tally; PRAGMA user_version = 13;"
    )
    connection.close()
    async with open_store(tmp_path, "dc1.b") as store:
        after = await store.read(lambda reader: queries.chain_or_empty(reader, INBOX))
        assert after.digest() == before.digest()
        await save(store, 2)
        view = await store.view(INBOX)
        assert [message.saved_ms is None for message in view.messages.values()] == [True, False]


@pytest.mark.parametrize("page_bytes", [4096, schema.PAGE_BYTES])
async def test_database_keeps_the_size_of_its_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_bytes: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "PAGE_BYTES", page_bytes)
        async with open_store(tmp_path) as store:
            await save(store, 1)
    async with open_store(tmp_path) as store:
        assert await save(store, 2) == 2
        writer = connection_of(store)
        assert writer.execute("PRAGMA page_size").fetchone() == (page_bytes,)
        assert writer.execute("PRAGMA wal_autocheckpoint").fetchone() == (schema.WAL_BYTES // page_bytes,)


async def test_database_of_another_program_is_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    assert "another program" in await error_on_opening(path)
    assert path.read_bytes() == before


async def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    path.write_bytes(b"From: someone\r\n" * 1000)
    assert "not a database" in await error_on_opening(path)


@pytest.mark.parametrize("kept", [0.2, 0.9])
async def test_truncated_file_is_refused(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "node.db"
    async with open_store(tmp_path) as store:
        for number in range(20):
            await save(store, number)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept) // schema.PAGE_BYTES * schema.PAGE_BYTES])
    assert "malformed" in await error_on_opening(path)


async def test_missing_directory_is_refused(tmp_path: Path) -> None:
    assert "directory" in await error_on_opening(tmp_path / "none" / "node.db")


async def test_only_one_process_at_a_time_opens_a_database(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    async with open_store(tmp_path):
        assert "another process" in await error_on_opening(path)
    async with open_store(tmp_path, "dc1.b"):
        pass


async def test_database_can_be_opened_after_a_failed_attempt(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    path.write_bytes(b"no database" * 1000)
    await error_on_opening(path)
    path.unlink()
    async with open_store(tmp_path) as store:
        assert await save(store, 1) == 1


async def test_every_commit_is_synced_and_readers_cannot_write(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        settings = [
            connection_of(store).execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
        ]
        assert settings == ["wal", 2]
        with pytest.raises(DatabaseFailedError, match="readonly"):
            await store.read(lambda reader: reader.execute("DELETE FROM log"))


async def test_a_database_belongs_to_one_node_of_one_cluster(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        for _ in range(2):
            await store.write(lambda tx: schema.claim(tx.connection, "dc1", "mail"))
        for sid, cluster in (("dc2", "mail"), ("dc1", "post")):
            with pytest.raises(ConfigError, match="belongs to node 'dc1' of cluster 'mail'"):
                await store.write(lambda tx, sid=sid, cluster=cluster: schema.claim(tx.connection, sid, cluster))  # type: ignore[misc]


async def test_begun_state_survives_a_restart(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        assert not await store.write(lambda tx: schema.claim(tx.connection, "dc1", "mail"))
        assert not await store.write(lambda tx: schema.claim(tx.connection, "dc1", "mail"))
        await store.write(lambda tx: schema.begin(tx.connection))
    async with open_store(tmp_path, "dc1.b") as store:
        assert await store.write(lambda tx: schema.claim(tx.connection, "dc1", "mail"))


def _plan(path: Path, ask: Callable[[sqlite3.Connection], object]) -> set[str]:
    """Return the steps by which SQLite answers the one query of `ask`."""
    with closing(schema.open_writer(path)) as connection:
        asked: list[str] = []
        connection.set_trace_callback(asked.append)
        assert not ask(connection)
        connection.set_trace_callback(None)
        (plan,) = (connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall() for sql in asked)
    return {step[-1] for step in plan}


def test_unproven_chains_are_looked_for_among_the_unproven_ones_alone(tmp_path: Path) -> None:
    assert "SCAN chain" not in _plan(tmp_path / "node.db", catalog.is_unproven_unsaved)


def test_stray_mail_is_looked_for_in_deleted_folders_alone(tmp_path: Path) -> None:
    steps = _plan(tmp_path / "node.db", users_with_strays)
    assert steps == {"SCAN f USING INDEX folder_deleted", "SEARCH c USING PRIMARY KEY (id=?)"}
