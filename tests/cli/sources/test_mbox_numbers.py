"""UIDs and keywords of an mbox, as Dovecot and others keep them in header fields, and forged ones."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.cli.sources import SourceError, mbox, read_source
from tests.cli.sources.mail_files import FROM, listed, names, put, texts

BASE = b"X-IMAPbase: 1795821413 0000000009 $Label1 Junk\n"


def mail(number: int, fields: bytes) -> bytes:
    return FROM + b"Subject: %d\n" % number + fields + b"To: x\n\nStatus: text %d\n\n" % number


def test_numbers_and_keywords_are_read_and_are_no_part_of_the_mail(tmp_path: Path) -> None:
    fields = b"Status: RO\nX-Status: F\nX-Keywords: $Label1 Junk      \nContent-Length: 5\n"
    content = mail(1, BASE + fields + b"X-UID: 2\n") + mail(2, b"X-UID: 7\nStatus: O\n folded\nX-Keywords:\n")
    source = read_source(put(tmp_path, "mbox", content), "INBOX")
    [folder] = source.folders
    assert (folder.uidvalidity, folder.uidnext, folder.messages) == (1795821413, 10, 2)
    assert [(one.uid, one.flags) for one in listed(source)] == [
        (2, {"\\Seen", "\\Flagged", "$Label1", "Junk"}),
        (7, frozenset()),
    ]
    assert texts(source) == [b"Subject: %d\r\nTo: x\r\n\r\nStatus: text %d\r\n" % (n, n) for n in (1, 2)]
    with source.open(folder) as reader:
        first, _ = reader.texts(listed(source))
    assert first.former is not None
    assert first.former.startswith(b"Subject: 1\r\nX-IMAPbase: 1795821413 0000000009")


NO_MAIL = (
    b"From MAILER-DAEMON Thu Nov 17 00:49:30 1994\nFrom: Mail System Internal Data <MAILER-DAEMON@old>\n"
    b"Subject: DON'T DELETE THIS MESSAGE -- FOLDER INTERNAL DATA\nX-IMAP: 5 0000000009\nStatus: RO\n\ntext\n\n"
)


def test_first_message_that_only_holds_numbers_is_no_mail(tmp_path: Path) -> None:
    source = read_source(put(tmp_path, "mbox", NO_MAIL + mail(2, b"X-UID: 3\n")), "INBOX")
    assert [one.uid for one in listed(source)] == [3]
    assert (source.folders[0].uidvalidity, source.folders[0].uidnext) == (5, 10)
    assert "its first message is left out" in source.notes[0]


def test_first_mail_with_such_a_field_of_its_sender_is_mail(tmp_path: Path) -> None:
    source = read_source(put(tmp_path, "mbox", mail(1, b"X-IMAP: 5 9\n") + mail(2, b"")), "INBOX")
    assert len(texts(source)) == 2
    assert source.folders[0].uidvalidity is None


def test_mbox_that_changes_while_it_is_read_is_read_no_further(tmp_path: Path) -> None:
    path = put(tmp_path, "mbox", b"".join(mail(number, b"x: " + b"y" * 2000 + b"\n") for number in range(200)))
    source = read_source(path, "INBOX")
    [folder] = source.folders
    with source.open(folder) as reader:
        coming = reader.texts(listed(source))
        next(coming)
        os.truncate(path, 4096)
        with pytest.raises(SourceError, match="has changed meanwhile; run the import again"):
            list(coming)


def test_mbox_that_another_program_has_locked_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "mbox", mail(1, b""))
    script = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    )
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        with monkeypatch.context() as hurried:
            hurried.setattr(mbox, "LOCK_S", 0.0)
            with pytest.raises(SourceError, match="another program has locked it"):
                read_source(path, "INBOX")
        threading.Timer(0.3, other.stdin.close).start()
        assert len(texts(read_source(path, "INBOX"))) == 1


def test_line_that_is_longer_than_what_is_read_at_once_separates_nothing(tmp_path: Path) -> None:
    long = b"x" * mbox._LINE_BYTES_MAX + b"\n" + FROM + b"a\n" + b"y" * mbox._LINE_BYTES_MAX + b"\n\n"
    [first, second] = texts(read_source(put(tmp_path, "mbox", mail(1, b"") + long + mail(2, b"")), "INBOX"))
    assert first.endswith(b"y\r\n")
    assert second.startswith(b"Subject: 2")


@pytest.mark.parametrize("base", [b"", b"X-IMAPbase: 0 9\n", b"X-IMAPbase: 5\n", b"X-IMAPbase: 99999999999 1\n"])
def test_without_a_base_no_uid_counts(tmp_path: Path, base: bytes) -> None:
    source = read_source(put(tmp_path, "mbox", mail(1, base + b"X-UID: 2\n") + mail(2, b"X-UID: 3\n")), "INBOX")
    assert [one.uid for one in listed(source)] == [None, None]
    assert source.folders[0].uidvalidity is None


def test_uids_out_of_order_or_above_the_last_one_do_not_count(tmp_path: Path) -> None:
    fields = (b"X-UID: 4\n", b"X-UID: 2\n", b"X-UID: 10\n", b"", b"X-UID: 9\n", b"X-UID: 4294967295\n")
    content = b"".join(mail(number, (b"" if number else BASE) + one) for number, one in enumerate(fields))
    source = read_source(put(tmp_path, "mbox", content), "INBOX")
    assert [one.uid for one in listed(source)] == [4, 9, None, None, None, None]
    assert [text[9:10] for text in texts(source)] == [b"0", b"4", b"1", b"2", b"3", b"5"]
    assert "4 messages have no UID" in source.notes[0]


@given(st.integers(min_value=0), st.binary(max_size=60))
def test_cut_mbox_is_read_as_far_as_it_goes(
    tmp_path_factory: pytest.TempPathFactory, length: int, rubbish: bytes
) -> None:
    whole = mail(1, BASE + b"X-UID: 2\n") + mail(2, b"X-UID: 3\n")
    cut = whole[: len(FROM) + length % (len(whole) - len(FROM))] + rubbish
    source = read_source(put(tmp_path_factory.mktemp("mbox"), "mbox", cut), "INBOX")
    assert names(source) == ["INBOX"]
    assert 1 <= len(texts(source)) <= 2
    assert len(listed(source)) == source.folders[0].messages
