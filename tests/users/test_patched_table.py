"""A passwd-file that is read again: what is patched is as if it had been read as a whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from replicator.users.decoys import Decoys
from replicator.users.passwd_file.line import PasswdFileError
from replicator.users.passwd_file.stretch import stretch_between
from replicator.users.passwd_file.table import SECRET, UserTable, read_whole_file
from tests.effort import examples

TEXTS = st.lists(st.sampled_from([b"a", b"b", b"ab", b"", b"\r", b"aa"]), max_size=8).map(
    lambda lines: b"".join(line + b"\n" for line in lines)
)
SCRAM, STRONG_SCRAM = (
    f"{{SCRAM-SHA-256}}{iterations},c2FsdHNhbHRzYWx0c2E=,{'A' * 43}=,{'A' * 43}=" for iterations in (4096, 9999)
)
OF_USERS = [
    ["", "ann:{PLAIN}a", "Ann:{PLAIN}b::::::quota_storage=1GiB", "ann:*:cluster=east"],
    ["", "bob@x:{PLAIN}a::::::nologin cluster=west allow_nets=::1", f"bob@x:{SCRAM}"],
    ["", f"carol@x:{STRONG_SCRAM}", "carol@x:{PLAIN}c"],
    ["", "dave:{PLAIN}d::::::userdb_quota_rule=*:storage=1G", "dave:{PLAIN}e::::::userdb_quota_rule=*:storage=1G"],
    ["", "eve:*::::::user=ann", "eve:*::::::user=BOB@x", "fay:*::::::user=ann"],
    ["", "# comment", SECRET.decode() + "A" * 43 + "="],
]
FINE = st.tuples(*map(st.sampled_from, OF_USERS)).flatmap(st.permutations)
WITH_PROBLEMS = st.lists(
    st.sampled_from(
        [line for lines in OF_USERS for line in lines]
        + ["carol@x:{MD5}x", "fay:*:user=", "eve:*:quota_storage=much", ":"]
    )
)
FILES = (FINE | WITH_PROBLEMS).map(lambda lines: "".join(f"{line}\n" for line in ["# users", *lines]))


@given(TEXTS, TEXTS)
@example(b"a\nb\n", b"a\nxb\n")
@example(b"a\n", b"a\na\n")
@example(b"ab\nb\n", b"b\n")
def test_the_stretch_is_all_that_differs(old: bytes, new: bytes) -> None:
    stretch = stretch_between(old, new)
    removed, added = b"".join(stretch.old), b"".join(stretch.new)
    places = (at for at in range(len(old) + 1) if old.startswith(removed, at))
    assert any(old[:at] + added + old[at + len(removed) :] == new for at in places)
    assert all(line.endswith((b"\n", b"\r")) for line in (*stretch.old, *stretch.new))
    if old == new:
        assert stretch == ([], [])


def test_one_changed_line_is_the_stretch() -> None:
    lines = [b"user%d:hash\n" % number for number in range(1000)]
    changed = [*lines[:400], b"user400:other\n", *lines[401:]]
    assert stretch_between(b"".join(lines), b"".join(changed)) == ([lines[400]], [changed[400]])
    assert stretch_between(b"".join(lines), b"".join([*lines[:7], *lines[8:]])) == ([lines[7]], [])


ENDS = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r"])
PIECES = st.sampled_from(
    [line.encode() for lines in OF_USERS for line in lines] + [b"eve:*", b"EVE@x:*", b"# comment", b" ", b"\xff:*"]
)


@dataclass(frozen=True)
class Edit:
    """A change of a list of lines at `place`, which is counted round and round."""

    what: str
    place: int
    line: bytes
    end: bytes

    def of(self, lines: list[bytes]) -> list[bytes]:
        at = self.place % (len(lines) + 1)
        old = lines[at : at + 1]
        match self.what:
            case "insert":
                new = [self.line + self.end, *old]
            case "replace":
                new = [self.line + self.end]
            case "remove":
                new = []
            case "move":
                return [*old, *lines[:at], *lines[at + 1 :]]
            case "spell":
                new = [line.swapcase() if not line.startswith(b"#") else line for line in old]
            case "end":
                new = [line.rstrip(b"\r\n") + self.end for line in old]
            case _:
                raise AssertionError(self.what)
        return [*lines[:at], *new, *lines[at + 1 :]]


EDITS = st.builds(
    Edit,
    st.sampled_from(["insert", "replace", "replace", "remove", "move", "spell", "end"]),
    st.integers(0, 50),
    PIECES,
    ENDS,
)
PLAIN_FILE = [b"# users\n", *(b"user%d@x:{PLAIN}p\n" % number for number in range(4)), b"ann:*\r\n", b"\n"]


def without_data(table: UserTable) -> UserTable:
    return replace(table, data=b"", users=dict(sorted(table.users.items())), lines={})


class Reader:
    """Reads versions of a file, and checks each reading against one that knows nothing of those before."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._table: UserTable | None = None
        self._decoys = Decoys(UserTable(), b"key")

    def read(self, data: bytes) -> bool | None:
        """Return True if the table was patched; None if the file cannot be used."""
        self._file.write_bytes(data)
        try:
            table, removed, added = read_whole_file(self._file, self._table)
        except PasswdFileError:
            with pytest.raises(PasswdFileError):
                read_whole_file(self._file)
            return None
        whole = read_whole_file(self._file).table
        assert without_data(table) == without_data(whole)
        assert (table.lines, table.data) == (whole.lines, whole.data)
        self._table = table
        if removed is None:
            self._decoys = Decoys(table, b"key")
        for line in removed or ():
            self._decoys.remove(line.user or "", line.password)
        for line in added:
            self._decoys.add(line.user or "", line.password)
        fresh = Decoys(whole, b"key")
        assert (self._decoys.for_some, self._decoys.for_all) == (fresh.for_some, fresh.for_all)
        shown, expected = self._decoys.keys_of("zoe@example.org"), fresh.keys_of("zoe@example.org")
        assert (shown.iterations, shown.salt) == (expected.iterations, expected.salt)
        assert self._decoys.hash_to_check().effort == fresh.hash_to_check().effort
        return removed is not None


@settings(max_examples=examples(100, 300))
@given(st.lists(FILES, min_size=2, max_size=5))
@example(["ann:*\neve:*::::::user=ann\nfay:*::::::user=ann\n", "ann:*\nfay:*::::::user=ann\n", "ann:*\n"])
def test_a_patched_table_is_as_one_that_is_read_as_a_whole(versions: list[str]) -> None:
    with TemporaryDirectory() as directory:
        reader = Reader(Path(directory) / "users.passwd")
        for text in versions:
            reader.read(text.encode())


@settings(max_examples=examples(100, 300))
@given(st.lists(st.lists(EDITS, min_size=1, max_size=2), min_size=1, max_size=12))
def test_a_table_stays_right_through_a_history_of_edits(history: list[list[Edit]]) -> None:
    with TemporaryDirectory() as directory:
        reader, lines = Reader(Path(directory) / "users.passwd"), PLAIN_FILE
        reader.read(b"".join(lines))
        for edits in history:
            for edit in edits:
                lines = edit.of(lines)
            event(f"patched: {reader.read(b''.join(lines))}")


@pytest.mark.parametrize(
    ("before", "after", "is_patched"),
    [
        ("ann:*\nbob:*\n", "ann:{PLAIN}x\nbob:*\n", True),
        ("ann:*\nbob:*\n", "ann:*\n", True),
        ("ann:*\n", "ann:*\nbob:*\n", True),
        ("ann:*\nbob:*\n# end\n", "# begin\nbob:*\nann:*\n", True),
        ("ann:*\n", "ann:*\nANN:{PLAIN}x\n", False),
        ("ann:*\n", "ann:*\nann:*\n", False),
        ("ann:*\n", "ann:{MD5}x\n", False),
        ("ann:{MD5}x\n", "ann:*\n", False),
        ("ann:*::::::allow_real_nets=::1\nbob:*\n", "ann:*::::::allow_real_nets=::1\nbob:{PLAIN}x\n", True),
        ("ann:*::::::allow_real_nets=::1\nbob:*\n", "ann:*::::::allow_real_nets=::1\n", False),
    ],
)
def test_files_are_patched_unless_a_line_has_a_problem(
    tmp_path: Path, before: str, after: str, *, is_patched: bool
) -> None:
    file = tmp_path / "users.passwd"
    file.write_text(before)
    table = read_whole_file(file).table
    file.write_text(after)
    reading = read_whole_file(file, table)
    assert (reading.removed is not None) is is_patched
    assert (reading.table is table) is is_patched
