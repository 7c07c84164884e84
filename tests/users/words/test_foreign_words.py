"""What a passwd-file of Dovecot says that does nothing here: it is told when the file is read."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from replicator.users import UserDirectory, valid_lines
from replicator.users.followed_file import LOGGED_MAX
from replicator.users.words.foreign_words import foreign_words

QUOTA = "quotas are set by the words quota_storage and quota_messages"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("", set()),
        ("::::::userdb_quota_rule=*:storage=1G", {"userdb_quota_rule"}),
        (
            "::::::userdb_quota_storage_size=1G userdb_quota_rule2=x",
            {"userdb_quota_storage_size", "userdb_quota_rule2"},
        ),
        ("::::::allow_real_nets=192.0.2.0/24 nopassword", {"allow_real_nets", "nopassword"}),
        ("::Mrs Proxy:/home/proxy:/bin/proxy:userdb_mail=proxy xallow_real_nets=x", set()),
        ("::::::proxy_maybe host=192.0.2.1", {"proxy_maybe"}),
    ],
)
def test_words_that_do_nothing_are_found(fields: str, words: set[str]) -> None:
    assert foreign_words(fields) == words


def test_they_are_told_once_a_word_with_a_line_and_hinder_no_import(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "users.passwd"
    rule = "::::::userdb_quota_rule=*:storage=1G"
    file.write_text(f"# users\nalice:{{PLAIN}}a{rule}\nbob:{{PLAIN}}b{rule} allow_real_nets=192.0.2.0/24\n")
    users = UserDirectory(file)
    remarks = [
        f"{file}:3: allow_real_nets does nothing here: the users may log in from everywhere (in 1 lines)",
        f"{file}:2: userdb_quota_rule does nothing here: {QUOTA} (in 2 lines)",
    ]
    assert users.problems() == remarks
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == remarks
    assert set(valid_lines(file)) == {"alice", "bob"}


def test_the_log_names_a_hundred_lines_with_problems_and_counts_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "users.passwd"
    file.write_text("".join(f"user{number}:{{MD5}}x\n" for number in range(LOGGED_MAX + 7)))
    assert len(UserDirectory(file).problems()) == LOGGED_MAX + 7
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == LOGGED_MAX + 1
    assert warned[-1] == f"{file}: 7 more lines have problems"
    assert warned[0].startswith(f"{file}:1: unknown password scheme {{MD5}}")
