"""Search texts read while another process writes, deletes and begins anew their file: the right text, or none."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from replicator.errors import DatabaseFailedError
from replicator.runtime.environment import open_database
from replicator.store.search_texts.form import SearchFileDamagedError
from replicator.store.search_texts.reader import SearchTextReader
from replicator.store.search_texts.writer import SearchTextWriter, remove_file
from tests.effort import examples
from tests.store.search_text_writer import HASHES, VERSION, text_of

ONE = HASHES[0]


@contextmanager
def written(path: Path, texts: dict[bytes, bytes]) -> Iterator[SearchTextWriter]:
    with closing(SearchTextWriter(path, VERSION, open_database)) as writer:
        writer.write(texts)
        yield writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "search.db"


@pytest.fixture
def reader(path: Path) -> Iterator[SearchTextReader]:
    with closing(SearchTextReader(path, VERSION)) as reader:
        yield reader


def deleted_files() -> list[str]:
    """Return the deleted files of search texts that this process has open."""
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [name for name in links if "search.db" in name and name.endswith("(deleted)")]


def test_reader_sees_each_commit(path: Path, reader: SearchTextReader) -> None:
    with written(path, {ONE: b"first"}) as writer:
        assert reader.texts([ONE]).texts == {ONE: b"first"}
        writer.write({ONE: b"second"})
        assert reader.texts([ONE]).texts == {ONE: b"second"}
        writer.remove([ONE])
        assert reader.texts([ONE]) == ({}, 1)


def test_without_a_file_there_are_none(path: Path, reader: SearchTextReader) -> None:
    assert reader.texts(HASHES) == ({}, len(HASHES))
    assert not path.exists()
    path.touch()
    assert reader.texts(HASHES) == ({}, len(HASHES))
    assert path.stat().st_size == 0


def test_file_of_another_version_has_none_and_is_not_damaged(path: Path, reader: SearchTextReader) -> None:
    with written(path, {ONE: b"text"}), closing(SearchTextReader(path, VERSION + 1)) as other:
        assert other.texts([ONE]) == ({}, 1)
        assert reader.texts([ONE]).texts == {ONE: b"text"}


def test_file_that_its_writer_has_closed_cannot_be_read_now(path: Path, reader: SearchTextReader) -> None:
    with written(path, {ONE: b"text"}):
        pass
    with pytest.raises(DatabaseFailedError):
        reader.texts([ONE])
    with written(path, {}):
        assert reader.texts([ONE]).texts == {ONE: b"text"}


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_file_that_is_begun_anew_is_opened_anew(path: Path, reader: SearchTextReader) -> None:
    with written(path, {ONE: b"old"}):
        assert reader.texts([ONE]).texts == {ONE: b"old"}
    remove_file(path)
    assert deleted_files()
    assert reader.texts([ONE]) == ({}, 1)
    assert not deleted_files()
    with written(path, {ONE: b"new"}):
        assert reader.texts([ONE]).texts == {ONE: b"new"}
    remove_file(path)
    reader.close_if_deleted()
    assert not deleted_files()


def test_closing_a_deleted_file_leaves_the_new_one_alone(path: Path, reader: SearchTextReader) -> None:
    with written(path, {ONE: b"old"}):
        reader.texts([ONE])
    remove_file(path)
    with written(path, {ONE: b"new"}):
        beside = {file.name: file.stat().st_ino for file in path.parent.iterdir()}
        assert len(beside) == 3
        reader.close_if_deleted()
        assert {file.name: file.stat().st_ino for file in path.parent.iterdir()} == beside
        assert reader.texts([ONE]).texts == {ONE: b"new"}


def test_text_of_another_body_is_damage(path: Path, reader: SearchTextReader) -> None:
    with written(path, {ONE: b"one", HASHES[1]: b"two"}):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE search_text SET packed = (SELECT packed FROM search_text WHERE id = 1)")
        with pytest.raises(SearchFileDamagedError, match=r"search\.db: a row has the text of another body"):
            reader.texts([HASHES[1]])
        assert reader.texts([ONE]).texts == {ONE: b"one"}


def test_file_that_another_process_begins_anew_all_the_time(path: Path, reader: SearchTextReader) -> None:
    """The reader tells no wrong text, takes no such file for damaged, and does no harm to the writer."""
    command = [sys.executable, "-m", "tests.store.search_text_writer", str(path)]
    found = set[int]()
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            tries = examples(2000, 5000)
            for number in range(20 * tries):  # a busy machine takes longer to meet both
                if number >= tries and {0, len(HASHES)} <= found:
                    break
                try:
                    texts = reader.texts(HASHES).texts
                except DatabaseFailedError:  # the files beside it are gone already, or are not there yet
                    continue
                assert all(text == text_of(one) for one, text in texts.items())
                found.add(len(texts))
            assert process.poll() is None, "the writer goes on"
        finally:
            process.kill()
    assert {0, len(HASHES)} <= found
    reader.close()
    assert not deleted_files(), "an error keeps files open"
