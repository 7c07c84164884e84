from __future__ import annotations

import mailbox
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.cli.sources import SourceError, read_source
from replicator.cli.sources.maildir import parse_flags
from tests.cli.sources.mail_files import FROM, listed, make_maildir, names, put, texts


def test_maildir_messages_are_in_the_order_of_their_dates(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    put(root / "cur", "2.host:2,RS", b"second\r\n", mtime_s=2000)
    put(root / "new", "3.host", b"third\r\n", mtime_s=3000)
    put(root / "cur", "1.host:2,", b"first\r\n", mtime_s=1000)
    put(root / "tmp", "4.host", b"never delivered")
    put(root / "cur", ".hidden", b"not mail")
    source = read_source(root, "INBOX")
    assert names(source) == ["INBOX"]
    messages = zip(texts(source), listed(source), strict=True)
    assert [(text, m.received_ms, m.flags) for text, m in messages] == [
        (b"first\r\n", 1_000_000, frozenset()),
        (b"second\r\n", 2_000_000, {"\\Answered", "\\Seen"}),
        (b"third\r\n", 3_000_000, frozenset()),
    ]


def test_maildir_subfolders_become_folders(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    for name in (".Sent", ".Archive.2024.Q&-A", ".Entw&APw-rfe", ".Übung", ".empty"):
        make_maildir(root / name)
    (root / ".not-a-folder").mkdir()
    put(root / ".Archive.2024.Q&-A" / "cur", "1:2,S", b"x")
    source = read_source(root, "INBOX")
    assert set(names(source)) == {"INBOX", "Sent", "Archive/2024/Q&A", "Entwürfe", "Übung", "empty"}
    assert texts(source, "Archive/2024/Q&A") == [b"x"]
    assert {"Old mail", "Old mail/Sent"} <= {*names(read_source(root, "Old mail"))}


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("1.host:2,DFPRST", {"\\Draft", "\\Flagged", "$Forwarded", "\\Answered", "\\Seen", "\\Deleted"}),
        ("1.host:2,Sa", {"\\Seen", "$Label1"}),
        ("1.host:2,Sz", {"\\Seen"}),
        ("1.host:1,S", set()),
        ("1.host", set()),
        ("1.host:2,", set()),
    ],
)
def test_maildir_names_give_flags(name: str, flags: set[str]) -> None:
    assert parse_flags(name, {"a": "$Label1"}) == flags


def test_maildir_keywords_come_from_dovecots_file(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    (root / "dovecot-keywords").write_text("0 $Label1\n1 Junk\nnonsense\n99 far\n")
    put(root / "cur", "1:2,bS", b"x")
    assert [message.flags for message in listed(read_source(root, "INBOX"))] == [{"Junk", "\\Seen"}]


def test_line_ends_become_crlf_and_nothing_else_changes(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    put(root / "cur", "1:2,", b"a\nb\r\nc\rd\n\n\x00\xff\n")
    assert texts(read_source(root, "INBOX")) == [b"a\r\nb\r\nc\rd\r\n\r\n\x00\xff\r\n"]


def test_mbox_messages_have_flags_and_dates(tmp_path: Path) -> None:
    file = put(
        tmp_path,
        "mail.mbox",
        FROM
        + b"Subject: one\nStatus: RO\nX-Status: AF\n\nFrom here on, this is text.\n>From the start\n>>From twice\n\n"
        + b"From - Mon Jan  1 00:00:00 2024\nSubject: two\n\nStatus: R\n",
    )
    source = read_source(file, "Archive")
    assert names(source) == ["Archive"]
    one, two = listed(source, "Archive")
    assert texts(source, "Archive") == [
        b"Subject: one\r\n\r\nFrom here on, this is text.\r\nFrom the start\r\n>From twice\r\n",
        b"Subject: two\r\n\r\nStatus: R\r\n",
    ]
    assert (one.flags, one.received_ms) == (frozenset({"\\Seen", "\\Answered", "\\Flagged"}), 785033370000)
    assert (two.flags, two.received_ms) == (frozenset(), 1704067200000)


def test_mbox_is_not_split_at_sentences_that_begin_with_from(tmp_path: Path) -> None:
    body = b"a: b\n\nFrom me to you\n\nFrom here on Monday\nFrom x Thu Nov 17 00:49:30 1994\nend\n"
    file = put(tmp_path, "mbox", FROM + body)
    assert texts(read_source(file, "INBOX")) == [body.replace(b"\n", b"\r\n")]


def test_mbox_with_crlf_is_read(tmp_path: Path) -> None:
    one = (FROM + b"a: b\n\n>From x\n\n").replace(b"\n", b"\r\n")
    assert texts(read_source(put(tmp_path, "mbox", one + one), "INBOX")) == [b"a: b\r\n\r\nFrom x\r\n"] * 2


def test_empty_mbox_has_a_folder_and_no_mail(tmp_path: Path) -> None:
    source = read_source(put(tmp_path, "mbox", b""), "INBOX")
    assert (names(source), listed(source)) == (["INBOX"], [])


@given(
    bodies=st.lists(
        st.lists(st.sampled_from([b"text", b"", b"From me", b">From me", b"a\xff"]), min_size=1), max_size=5
    )
)
def test_mbox_written_by_the_standard_library_reads_back(
    bodies: list[list[bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("mbox") / "mbox"
    mails = [b"Subject: x\n\n" + b"\n".join(lines) + b"\nend\n" for lines in bodies]
    written = mailbox.mbox(file)
    for text in mails:
        # mailbox quotes "From " and not ">From ", which is the older format; the newer one quotes both
        written.add(text.replace(b"\n>From ", b"\n>>From "))
    written.close()
    read = read_source(file, "INBOX")
    assert texts(read) == [text.replace(b"\n", b"\r\n") for text in mails]


@pytest.mark.parametrize("content", [b"Subject: a message alone\n\n", b"\x00\x01", b"From nobody\n"])
def test_file_without_mail_is_reported(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SourceError, match="neither a Maildir") as refused:
        read_source(put(tmp_path, "file", content), "INBOX")
    example = re.search(r"such as '(.*)'", str(refused.value))
    assert example is not None
    assert len(listed(read_source(put(tmp_path, "mbox", f"{example[1]}\n\nx\n".encode()), "INBOX"))) == 1
    with pytest.raises(SourceError, match="neither a Maildir"):
        read_source(tmp_path, "INBOX")
    with pytest.raises(SourceError, match=r"/mistyped: No such file or directory$"):
        read_source(tmp_path / "mistyped", "INBOX")
