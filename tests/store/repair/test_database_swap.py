import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from replicator.errors import DataError
from replicator.store.db import schema
from replicator.store.repair.database_swap import check_none, give_up, replacement_of, take_place


def write_files(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).write_text(name)
    return directory / "node.db"


def contents(directory: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in directory.iterdir()}


def test_new_database_replaces_the_old_one_which_is_set_aside(tmp_path: Path) -> None:
    old = ("node.db", "node.db-wal", "node.db-shm", "node.db.lock")
    path = write_files(tmp_path, *old, "node.db.rebuild", "node.db.rebuild.lock")
    assert take_place(path, "NOW") == tmp_path / "node.db.NOW.damaged"
    assert contents(tmp_path) == {
        "node.db": "node.db.rebuild",
        "node.db.lock": "node.db.lock",
        "node.db.NOW.damaged": "node.db",
        "node.db.NOW.damaged-wal": "node.db-wal",
    }
    check_none(path)


def test_nothing_is_set_aside_without_an_old_database(tmp_path: Path) -> None:
    path = write_files(tmp_path, "node.db-wal", "node.db.rebuild", "node.db.rebuild-wal", "node.db.rebuild-shm")
    assert take_place(path, "NOW") is None
    assert contents(tmp_path) == {"node.db": "node.db.rebuild", "node.db-wal": "node.db.rebuild-wal"}


def test_unfinished_rebuild_keeps_the_node_from_starting(tmp_path: Path) -> None:
    path = write_files(tmp_path, "node.db", "node.db.rebuild")
    assert replacement_of(path).read_text() == "node.db.rebuild"
    with pytest.raises(DataError, match="a rebuild of this database was started"):
        check_none(path)


def test_empty_replacement_is_given_up(tmp_path: Path) -> None:
    path = write_files(tmp_path, "node.db", "node.db-wal", "node.db.rebuild.lock")
    schema.open_writer(replacement_of(path)).close()
    assert give_up(path)
    assert contents(tmp_path) == {"node.db": "node.db", "node.db-wal": "node.db-wal"}
    assert give_up(path)
    check_none(path)


@pytest.mark.parametrize(
    "what",
    [
        "INSERT INTO origin VALUES ('dc1.a', 1, 0, 1, 0)",
        "INSERT INTO chain VALUES (x'01', 'alice', 1, 1, 1, NULL, NULL, x'80', 0, 0, 0, x'00', 0, x'')",
        "INSERT INTO content (hash, size_bytes, parted, body) VALUES (x'01', 1, 0, x'02')",
    ],
)
def test_replacement_with_data_is_not_given_up(tmp_path: Path, what: str) -> None:
    path = write_files(tmp_path, "node.db")
    with closing(schema.open_writer(replacement_of(path))) as connection:
        connection.execute(what)
    assert not give_up(path)
    with closing(sqlite3.connect(replacement_of(path))) as connection:
        assert sum(
            connection.execute(f"SELECT COUNT(*) FROM {t}").fetchone()[0] for t in ("origin", "chain", "content")
        )


def test_unreadable_replacement_is_not_given_up(tmp_path: Path) -> None:
    path = write_files(tmp_path, "node.db", "node.db.rebuild")
    assert not give_up(path)
    assert replacement_of(path).exists()
