"""A passwd-file that is read again: what is patched is as if it had been read as a whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replicator.users.decoys import Decoys
from replicator.users.file_patch import stretch_between
from replicator.users.passwd_file import SECRET, UserTable, read_whole_file

TEXTS = st.lists(st.sampled_from([b"a", b"b", b"ab", b"", b"\r", b"aa"]), max_size=8).map(
    lambda lines: b"".join(line + b"\n" for line in lines)
)
SCRAM = "{SCRAM-SHA-256}4096,c2FsdHNhbHRzYWx0c2E=," + ",".join(["A" * 43 + "="] * 2)
OF_USERS = [
    ["", "ann:{PLAIN}a", "Ann:{PLAIN}b::::::quota_storage=1GiB", "ann:*:cluster=east"],
    ["", "bob@x:{PLAIN}a::::::nologin cluster=west", f"bob@x:{SCRAM}"],
    ["", f"carol@x:{SCRAM}", "carol@x:{PLAIN}c"],
    ["", "dave:{PLAIN}d::::::userdb_quota_rule=*:storage=1G", "dave:{PLAIN}e::::::userdb_quota_rule=*:storage=1G"],
    ["", "# comment", SECRET.decode() + "A" * 43 + "="],
]
FINE = st.tuples(*map(st.sampled_from, OF_USERS)).flatmap(st.permutations)
WITH_PROBLEMS = st.lists(
    st.sampled_from(
        [line for lines in OF_USERS for line in lines] + ["carol@x:{MD5}x", "eve:*:quota_storage=much", ":"]
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


def without_data(table: UserTable) -> UserTable:
    return replace(table, data=b"", users=dict(sorted(table.users.items())), lines={})


@settings(max_examples=300)
@given(st.lists(FILES, min_size=2, max_size=5))
def test_a_patched_table_is_as_one_that_is_read_as_a_whole(versions: list[str]) -> None:
    with TemporaryDirectory() as directory:
        file = Path(directory) / "users.passwd"
        table, decoys = None, Decoys(UserTable(), b"key")
        for text in versions:
            file.write_text(text)
            table, removed, added = read_whole_file(file, table)
            whole = read_whole_file(file).table
            assert without_data(table) == without_data(whole)
            assert table.lines == whole.lines
            if removed is None:
                decoys = Decoys(table, b"key")
            for line in removed or ():
                decoys.remove(line.user or "", line.password)
            for line in added:
                decoys.add(line.user or "", line.password)
            fresh = Decoys(whole, b"key")
            assert (decoys.for_some, decoys.for_all) == (fresh.for_some, fresh.for_all)
            assert decoys.keys_of("zoe@example.org").salt == fresh.keys_of("zoe@example.org").salt
            schemes = {stored.scheme for stored in whole.users.values() if stored is not None}
            assert decoys.hash_to_check().scheme in (schemes or {"ARGON2ID"})


@pytest.mark.parametrize(
    ("before", "after", "is_patched"),
    [
        ("ann:*\nbob:*\n", "ann:{PLAIN}x\nbob:*\n", True),
        ("ann:*\nbob:*\n", "ann:*\n", True),
        ("ann:*\n", "ann:*\nbob:*\n", True),
        ("ann:*\n", "ann:*\nANN:{PLAIN}x\n", False),
        ("ann:*\n", "ann:*\nann:*\n", False),
        ("ann:*\n", "ann:{MD5}x\n", False),
        ("ann:{MD5}x\n", "ann:*\n", False),
        ("ann:*::::::allow_nets=::1\nbob:*\n", "ann:*::::::allow_nets=::1\nbob:{PLAIN}x\n", True),
        ("ann:*::::::allow_nets=::1\nbob:*\n", "ann:*::::::allow_nets=::1\n", False),
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
