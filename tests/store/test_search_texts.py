"""The file of search texts: whatever happens to it, it tells the right text, none, or that it is damaged."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from protocol.units import GIB
from replicator.errors import DatabaseFailedError, DiskFullError
from replicator.mail.mailstore import SearchTextSlice
from replicator.runtime.environment import open_database
from replicator.store.db.schema import PAGE_BYTES
from replicator.store.search_texts.form import TEXT_MAX_BYTES, SearchFileDamagedError
from replicator.store.search_texts.reader import SLICE_BYTES, SearchTextReader
from replicator.store.search_texts.writer import SearchTextWriter, remove_file
from tests.effort import examples
from tests.store.damaging import damage, overwrite

VERSION = 1


def text_of(number: int) -> bytes:
    return random.Random(number).randbytes(300 + 50 * number)


def hash_of(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


MADE = {hash_of(number): text_of(number) for number in range(60)} | {hash_of(60): b""}
TOLD = {key: text for key, text in MADE.items() if text}
MEMORY = Path("/dev/shm")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """Return a directory in memory if possible: a test that begins thousands of files would wait for the disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY) as directory:
        yield Path(directory)


@contextmanager
def opened(directory: Path, version: int = VERSION) -> Iterator[SearchTextWriter]:
    with closing(SearchTextWriter(directory / "search.db", version, open_database)) as file:
        yield file


def told(directory: Path, hashes: Collection[bytes] = MADE.keys()) -> SearchTextSlice:
    with closing(SearchTextReader(directory / "search.db", VERSION)) as reader:
        return reader.texts([*hashes])


def fill(directory: Path) -> Path:
    """Make a file with some rows, all of them in the file itself. Return its path."""
    path = directory / "search.db"
    with opened(directory) as file:
        file.write(MADE)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def check_told(directory: Path) -> int:
    """Check that whatever the file tells is right, and that it says so if it is damaged. Return how much it tells."""
    try:
        with opened(directory) as file:
            texts = told(directory).texts
            file.hashes(b"", None)
            file.write({hash_of(100): b"new"})
            file.remove([hash_of(1)])
    except SearchFileDamagedError:
        remove_file(directory / "search.db")
        with opened(directory) as file:
            file.write(MADE)
            assert told(directory).texts == TOLD
        return 0
    assert texts.items() <= TOLD.items()
    return len(texts)


def test_file_tells_what_was_written(tmp_path: Path) -> None:
    fill(tmp_path)
    with opened(tmp_path) as file:
        assert told(tmp_path, [*MADE, hash_of(99)]) == (TOLD, len(MADE) + 1)
        assert file.hashes(b"", None) == MADE.keys()
        in_order = sorted(MADE)
        assert file.hashes(in_order[3], in_order[9]) == {*in_order[4:10]}
        file.remove(in_order[:5])
        assert told(tmp_path, in_order).texts == {key: TOLD[key] for key in in_order[5:] if key in TOLD}
        file.write({in_order[7]: b"other"})
        assert told(tmp_path, in_order[7:8]).texts == {in_order[7]: b"other"}
    assert (tmp_path / "search.db").stat().st_mode & 0o777 == 0o600


def test_only_some_texts_are_in_memory_at_once(tmp_path: Path) -> None:
    texts = {hash_of(number): b"%d" % number * (SLICE_BYTES // 4) for number in range(8)}
    with opened(tmp_path) as file:
        file.write({**texts, hash_of(9): b"last"})
        found, looked_at = told(tmp_path, [*texts, hash_of(9)])
        assert list(found) == [*texts][:4]
        assert looked_at == 4
        assert told(tmp_path, [*texts][looked_at:]) == ({key: texts[key] for key in [*texts][looked_at:]}, 4)


@pytest.mark.parametrize("content", [bytes(PAGE_BYTES), b"\xff" * PAGE_BYTES, random.Random(1).randbytes(PAGE_BYTES)])
def test_damaged_page_is_found_and_never_believed(tmp_path: Path, content: bytes) -> None:
    path = fill(tmp_path)
    sound = path.read_bytes()
    for page in range(1, len(sound) // PAGE_BYTES + 1):
        path.write_bytes(sound)
        overwrite(path, page, content)
        check_told(tmp_path)
        remove_file(path)


def test_damaged_octet_is_found_and_never_believed(memory: Path) -> None:
    path, rng = fill(memory), random.Random(1)
    sound = path.read_bytes()
    for _ in range(examples(200, 5000)):
        at = rng.randrange(len(sound))
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << rng.randrange(8)]) + sound[at + 1 :])
        check_told(memory)
        remove_file(path)


@pytest.mark.parametrize("size_bytes", [1, 100, PAGE_BYTES, 3 * PAGE_BYTES, 5 * PAGE_BYTES + 7])
def test_short_file_is_found_and_never_believed(tmp_path: Path, size_bytes: int) -> None:
    os.truncate(fill(tmp_path), size_bytes)
    assert not check_told(tmp_path)


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE search_text SET packed = (SELECT packed FROM search_text WHERE hash = x'{hash_of(2).hex()}')",
        "UPDATE search_text SET packed = x'00'",
        "UPDATE search_text SET packed = 'text'",
        "UPDATE search_text SET packed = 1",
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE TABLE search_text (id)'",
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = CAST(x'c3' AS TEXT)",
        "DROP TABLE search_text",
        "PRAGMA user_version = 7",
    ],
)
def test_what_is_no_search_text_is_found(tmp_path: Path, statement: str) -> None:
    path = fill(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statement)
    assert not check_told(tmp_path)


def test_file_that_is_no_database_is_found(tmp_path: Path) -> None:
    (tmp_path / "search.db").write_bytes(b"no database" * 1000)
    assert not check_told(tmp_path)


def test_file_of_another_version_is_to_be_begun_anew(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(SearchFileDamagedError, match="of another version"), opened(tmp_path, VERSION + 1):
        pass


def test_row_without_its_index_counts_as_missing(tmp_path: Path) -> None:
    damage(fill(tmp_path), f"DELETE FROM search_text WHERE hash = x'{hash_of(2).hex()}'")
    with opened(tmp_path):
        assert told(tmp_path).texts == {key: text for key, text in TOLD.items() if key != hash_of(2)}


def test_power_cut_takes_the_last_rows_at_most(tmp_path: Path) -> None:
    rng, source = random.Random(1), tmp_path / "source"
    source.mkdir()
    with opened(source) as file:
        for key, text in MADE.items():
            file.write({key: text})
        shutil.copytree(source, tmp_path / "cut")
    path = tmp_path / "cut" / "search.db"
    base, wal = path.read_bytes(), path.with_name("search.db-wal").read_bytes()
    kept = []
    for _ in range(examples(40, 400)):
        cut = rng.randrange(len(wal))
        path.write_bytes(base)
        torn = rng.choice([b"", rng.randbytes(10_000), bytes(10_000), wal[cut + PAGE_BYTES :]])
        path.with_name("search.db-wal").write_bytes(wal[:cut] + torn)
        kept.append((cut, check_told(tmp_path / "cut")))
        remove_file(path)
    assert [count for _, count in sorted(kept)] == sorted(count for _, count in kept)
    assert max(count for _, count in kept) > len(TOLD) / 2


def test_killed_process_leaves_whole_rows(tmp_path: Path) -> None:
    """Each round, a process writes rows until it is killed while it does."""
    code = (
        "import sys; from pathlib import Path; from tests.store.test_search_texts import *\n"
        "with opened(Path(sys.argv[1])) as file:\n"
        "    for number in range(60): file.write({hash_of(number): text_of(number)}); print(number, flush=True)\n"
        "    while True: file.write(MADE); file.remove([hash_of(60)])\n"
    )
    for until in range(0, 60, 60 // examples(5, 20)):
        command = [sys.executable, "-c", code, str(tmp_path)]
        with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while int(process.stdout.readline()) < until:
                pass
            process.kill()
        with opened(tmp_path):
            texts = told(tmp_path).texts
        assert texts.items() <= TOLD.items()
        assert {hash_of(number) for number in range(until + 1)} <= texts.keys()


def test_full_disk_keeps_what_was_written(tmp_path: Path) -> None:
    def small(path: Path) -> sqlite3.Connection:
        connection = open_database(path)
        connection.execute(f"PRAGMA max_page_count = {10}")
        return connection

    with closing(SearchTextWriter(tmp_path / "search.db", VERSION, small)) as file:
        file.write({hash_of(1): text_of(1)})
        with pytest.raises(DiskFullError):
            file.write(MADE)
        assert told(tmp_path).texts == {hash_of(1): text_of(1)}
        file.write({hash_of(2): text_of(2)})


def test_room_is_left_for_mail(tmp_path: Path) -> None:
    blocks = 10 * GIB

    def look_at(_: Path) -> os.statvfs_result:
        return os.statvfs_result((1, 1, blocks, blocks, blocks, 0, 0, 0, 0, 255))

    with closing(SearchTextWriter(tmp_path / "search.db", VERSION, open_database, look_at)) as file:
        file.write({hash_of(1): b"a"})
        blocks = GIB - 1
        with pytest.raises(DiskFullError, match=r"only 1\.00 GiB free, of 1\.00 GiB, and search texts leave 1\.00 GiB"):
            file.write({hash_of(2): b"b"})
        file.remove([hash_of(1)])
        assert file.hashes(b"", None) == set()


@pytest.mark.parametrize("obstacle", ["directory", "missing directory"])
def test_file_that_cannot_be_opened_is_told(tmp_path: Path, obstacle: str) -> None:
    path = tmp_path / "search.db" if obstacle == "directory" else tmp_path / "none" / "search.db"
    if obstacle == "directory":
        path.mkdir()
    with pytest.raises(DatabaseFailedError, match=r"search\.db: "):
        SearchTextWriter(path, VERSION, open_database)


def test_too_large_a_text_leaves_an_empty_row(tmp_path: Path) -> None:
    made = {hash_of(1): bytes(TEXT_MAX_BYTES), hash_of(2): bytes(TEXT_MAX_BYTES + 1)}
    with opened(tmp_path) as file:
        file.write(made)
        assert told(tmp_path, made).texts == {hash_of(1): made[hash_of(1)]}
        assert file.hashes(b"", None) == made.keys()
