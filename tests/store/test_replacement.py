from pathlib import Path

import pytest

from replicator.errors import DataError
from replicator.store.replacement import check_none, replacement_of, take_place


def lay(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).write_text(name)
    return directory / "node.db"


def files(directory: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in directory.iterdir()}


def test_the_old_one_is_set_aside_with_its_log_and_the_new_one_takes_its_name(tmp_path: Path) -> None:
    old = ("node.db", "node.db-wal", "node.db-shm", "node.db.lock")
    path = lay(tmp_path, *old, "node.db.rebuild", "node.db.rebuild.lock")
    assert take_place(path, "NOW") == tmp_path / "node.db.NOW.damaged"
    assert files(tmp_path) == {
        "node.db": "node.db.rebuild",
        "node.db.lock": "node.db.lock",
        "node.db.NOW.damaged": "node.db",
        "node.db.NOW.damaged-wal": "node.db-wal",
    }
    check_none(path)


def test_where_there_was_none_nothing_is_set_aside(tmp_path: Path) -> None:
    path = lay(tmp_path, "node.db-wal", "node.db.rebuild", "node.db.rebuild-wal", "node.db.rebuild-shm")
    assert take_place(path, "NOW") is None
    assert files(tmp_path) == {"node.db": "node.db.rebuild", "node.db-wal": "node.db.rebuild-wal"}


def test_while_one_is_being_built_the_node_does_not_run(tmp_path: Path) -> None:
    path = lay(tmp_path, "node.db", "node.db.rebuild")
    assert replacement_of(path).read_text() == "node.db.rebuild"
    with pytest.raises(DataError, match="a rebuild of this database was begun"):
        check_none(path)
