import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.users import (
    PasswdFileError,
    UserExistsError,
    UserUnknownError,
    add_user,
    delete_user,
    list_users,
    set_password,
)
from replicator.users.names import check_user_name
from replicator.users.passwd_file.table import read_users, read_whole_file

FILE = """\
# people
alice:{PLAIN}a:1000:1000::/home/alice::userdb_mail=x

bob@Example.org:{PLAIN}b
#carol:{PLAIN}c
dave:{ROT13}d
nobody
eve mallory:{PLAIN}e
:{PLAIN}f
alice:{PLAIN}again
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.passwd"
    path.write_text(FILE)
    return path


def test_broken_lines_are_reported_and_the_rest_is_read(file: Path) -> None:
    table = read_users(file)
    assert list(table.users) == ["alice", "bob@example.org", "dave", "nobody"]
    alice = table.users["alice"]
    assert alice is not None
    assert alice.check(b"a")
    assert table.users["dave"] is None
    assert [problem.partition(": ")[0] for problem in table.problems] == [f"{file}:{n}" for n in (6, 7, 8, 9, 10)]
    assert "{ROT13}" in table.problems[0]
    assert "there is no password" in table.problems[1]
    assert "user 'alice' is already in line 2, which takes precedence" in table.problems[4]


def test_names_that_differ_only_in_case_are_one_user(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text("# people\nAlice:{PLAIN}a:x\nBob@Ex.Org:{PLAIN}b\nALICE:{PLAIN}c\n")
    table = read_users(path)
    assert list(table.users) == ["alice", "bob@ex.org"]
    assert table.problems == (
        f"{path}:4: user 'ALICE' is already in line 2, which takes precedence; remove one of them",
    )
    alice = table.users["alice"]
    assert alice is not None
    assert alice.check(b"a")
    with pytest.raises(UserExistsError, match="user 'aLICE' already exists"):
        add_user(path, "aLICE", "pw")
    set_password(path, "ALICE", "z", scheme="PLAIN")
    delete_user(path, "bob@EX.ORG")
    add_user(path, "Carol", "pw", scheme="PLAIN")
    assert path.read_text() == "# people\nAlice:{PLAIN.B64}eg==:x\nALICE:{PLAIN}c\ncarol:{PLAIN.B64}cHc=\n"


def test_lines_that_are_not_utf8_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"\xff:{PLAIN}x\nbob:{PLAIN}b\r\n")
    table = read_users(path)
    assert list(table.users) == ["bob"]
    assert table.problems == (f"{path}:1: not UTF-8; save the file as UTF-8 text",)


LINES = ("alice:{PLAIN}a", "bob:{PLAIN}b:::::quota_storage=1G", "# secret for SCRAM, keep it: AAAA")


@pytest.mark.parametrize(
    ("lines", "is_alike"),
    [
        (("bob:{PLAIN}b:::::quota_storage=1G", "# a comment", "", "alice:{PLAIN}a\r", LINES[2]), True),
        (LINES[:2], False),
        (LINES[1:], False),
        (("alice:{PLAIN}A", *LINES[1:]), False),
        (("alice:{PLAIN}a", "bob:{PLAIN}b:::::quota_storage=2G", LINES[2]), False),
        ((*LINES, "carol:{PLAIN}c"), False),
    ],
)
def test_digests_of_two_files_are_equal_if_their_users_are(
    tmp_path: Path, lines: tuple[str, ...], *, is_alike: bool
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("".join(f"{line}\n" for line in LINES), "utf-8")
    other.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    assert (read_users(one).digest == read_users(other).digest) == is_alike
    assert 0 < read_users(other).digest < 1 << 32


def test_edits_leave_every_other_byte_alone(file: Path) -> None:
    add_user(file, "new@example.org", "pw", scheme="PLAIN")
    assert file.read_text() == FILE + "new@example.org:{PLAIN.B64}cHc=\n"
    delete_user(file, "new@example.org")
    assert file.read_text() == FILE
    set_password(file, "alice", "z", scheme="PLAIN")
    assert file.read_text() == FILE.replace("alice:{PLAIN}a:", "alice:{PLAIN.B64}eg==:")
    set_password(file, "nobody", "n", scheme="PLAIN")
    assert "\nnobody:{PLAIN.B64}bg==\neve" in file.read_text()


def test_file_without_its_last_user_is_still_valid(tmp_path: Path) -> None:
    path = tmp_path / "p"
    add_user(path, "alice", "pw", scheme="PLAIN")
    delete_user(path, "alice")
    assert read_whole_file(path).table.users == {}
    add_user(path, "bob", "pw", scheme="PLAIN")
    assert path.read_text() == "# user:{SCHEME}hash\nbob:{PLAIN.B64}cHc=\n"


def test_a_new_password_is_argon2id(file: Path) -> None:
    set_password(file, "alice", "z")
    alice = read_users(file).users["alice"]
    assert alice is not None
    assert alice.scheme == "ARGON2ID"
    assert alice.check(b"z")


def test_edits_keep_line_ends_and_add_a_missing_one(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"a:{PLAIN}1:x\r\nb:{PLAIN}2")
    set_password(path, "a", "3", scheme="PLAIN")
    set_password(path, "b", "4", scheme="PLAIN")
    add_user(path, "c", "5", scheme="PLAIN")
    assert path.read_bytes() == b"a:{PLAIN.B64}Mw==:x\r\nb:{PLAIN.B64}NA==\nc:{PLAIN.B64}NQ==\n"


def test_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "p"
    add_user(path, "a", "pw", scheme="PLAIN")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["p"]  # noqa: PTH208 - names are what counts


@pytest.mark.skipif(os.geteuid() != 0, reason="files that belong to others need root")
def test_what_root_creates_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    """The node that reads it runs as that user."""
    os.chown(tmp_path, 12345, 12346)
    add_user(tmp_path / "p", "a", "pw", scheme="PLAIN")
    made = (tmp_path / "p").stat()
    assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (12345, 12346, 0o600)
    os.chown(tmp_path / "p", 0, 12346)
    delete_user(tmp_path / "p", "a")
    assert ((tmp_path / "p").stat().st_uid, (tmp_path / "p").stat().st_gid) == (0, 12346)


def test_mode_and_symbolic_links_are_kept(file: Path) -> None:
    file.chmod(0o640)
    link = file.with_name("link")
    link.symlink_to(file)
    delete_user(link, "alice")
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    # The user had two lines: the first one is gone, so the second one counts.
    assert list_users(file)[-1] == "alice"


def test_failed_edits_give_a_reason_and_change_nothing(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserExistsError, match="user 'alice' already exists"):
        add_user(file, "alice", "pw")
    with pytest.raises(UserUnknownError, match=r"there is no user 'ali'; .replicator user list. lists"):
        set_password(file, "ali", "pw")
    with pytest.raises(UserUnknownError, match="no user 'carol'"):
        delete_user(file, "carol")
    with pytest.raises(PasswdFileError, match="not changed: a password must have"):
        set_password(file, "alice", "")
    with pytest.raises(PasswdFileError, match="no colon, space"):
        add_user(file, "a:b", "pw")
    with pytest.raises(PasswdFileError, match="none: not changed: No such file"):
        set_password(tmp_path / "none", "a", "pw")
    with pytest.raises(PasswdFileError, match="none: cannot be read: No such file"):
        list_users(tmp_path / "none")
    with pytest.raises(PasswdFileError, match="not changed: No such file"):
        add_user(tmp_path / "none" / "p", "a", "pw")
    assert file.read_text() == FILE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["users.passwd"]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "#a", "a\tb", "a\nb", "a\x7f", "a\u2028b", "x" * 255, "é" * 128])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a user name must have"):
        check_user_name(name)


def test_concurrent_edits_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "p"
    threads = [
        threading.Thread(target=add_user, args=(path, f"u{n}", "x"), kwargs={"scheme": "PLAIN"}) for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(list_users(path)) == sorted(f"u{n}" for n in range(20))


NAMES = st.sampled_from(["a", "b", "ab", "c@d"])


@given(st.lists(st.tuples(st.sampled_from(["add", "set", "delete"]), NAMES)))
@settings(deadline=None, max_examples=30)
def test_sequence_of_edits_agrees_with_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("users") / "p"
    path.write_text("# ours\n")
    expected: dict[str, str] = {}
    for number, (edit, name) in enumerate(edits):
        try:
            if edit == "add":
                add_user(path, name, str(number), scheme="PLAIN")
                assert name not in expected
            elif edit == "set":
                set_password(path, name, str(number), scheme="PLAIN")
                assert name in expected
            else:
                delete_user(path, name)
                del expected[name]
                continue
        except UserExistsError:
            assert name in expected
        except UserUnknownError:
            assert name not in expected
        else:
            expected[name] = str(number)
    table = read_users(path)
    assert list(table.users) == list(expected)
    assert all(stored and stored.check(expected[name].encode()) for name, stored in table.users.items())
