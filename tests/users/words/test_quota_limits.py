from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.users import QuotaLimits, UserDirectory, set_password
from replicator.users.passwd_file.table import read_users

DEFAULT = QuotaLimits(storage_bytes=1000, messages=10)


@pytest.mark.parametrize(
    ("fields", "limits"),
    [
        ("", DEFAULT),
        (":1000:1000:Alice:/home/alice::", DEFAULT),
        (":quota_storage=5GiB", DEFAULT._replace(storage_bytes=5 << 30)),
        ("::::::quota_storage=1B quota_messages=7", QuotaLimits(1, 7)),
        (":::::: userdb_mail=x quota_messages=none", DEFAULT._replace(messages=None)),
        (":quota_storage=none:quota_messages=1000000000000", QuotaLimits(None, 10**12)),
        (":::::: userdb_mail_quota=1G xquota_storage=5", DEFAULT),
    ],
)
async def test_lines_set_the_limits_of_their_users(tmp_path: Path, fields: str, limits: QuotaLimits) -> None:
    file = tmp_path / "users.passwd"
    file.write_text(f"Alice:{{PLAIN}}a{fields}\nbob:{{PLAIN}}b\n")
    users = UserDirectory(file, quota=DEFAULT)
    assert await users.quota_limits("alice") == limits
    assert await users.quota_limits("bob") == DEFAULT
    assert not users.problems()
    assert await UserDirectory(file).quota_limits("bob") == QuotaLimits(None, None)
    set_password(file, "alice", "new", scheme="PLAIN")
    assert await users.quota_limits("alice") == limits


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("quota_storage=5G", "quota_storage: expected a size such as '500MiB' or '5GiB', or 'none', not '5G'"),
        ("quota_storage=0B", "quota_storage: expected a size"),
        ("quota_storage=9999999999GiB", "quota_storage: expected a size"),
        ("quota_messages=", "quota_messages: expected a number such as '100000', or 'none', not ''"),
        ("quota_messages=-1", "quota_messages: expected a number"),
        ("quota_messages=0", "quota_messages: expected a number"),
        ("quota_messages=99999999999999", "quota_messages: expected a number"),
        ("quota_messages=\N{SUPERSCRIPT TWO}", "quota_messages: expected a number"),
        ("quota_message=5", "quota_message is unknown; quota_storage and quota_messages set"),
    ],
)
async def test_words_without_sense_are_reported_and_leave_the_user_the_common_limits(
    tmp_path: Path, word: str, problem: str
) -> None:
    file = tmp_path / "users.passwd"
    file.write_text(f"alice:{{PLAIN}}a::{word} quota_messages=3\n")
    users = UserDirectory(file, quota=DEFAULT)
    assert await users.quota_limits("alice") == DEFAULT
    [found] = users.problems()
    assert found.startswith(f"{file}:1: {problem}")
    assert await users.verify("alice", "a") is not None


@given(st.text(st.characters(codec="utf-8")))
def test_any_fields_can_follow_the_hash(text: str) -> None:
    with TemporaryDirectory() as directory:
        file = Path(directory) / "users.passwd"
        file.write_bytes(f"alice:{{PLAIN}}a:{text}\n".encode())
        table = read_users(file)
    assert table.users["alice"] is not None or "\n" in text or "\r" in text
