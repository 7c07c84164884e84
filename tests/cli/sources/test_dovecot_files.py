"""Dovecot's files beside mail, as it writes them, and broken ones."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.units import MIB
from replicator.cli.sources import MailSource, SourceError, own_files, read_source
from replicator.cli.sources.dovecot_files import BrokenFileError, highest_modseq, parse_subscriptions, parse_uidlist
from replicator.mail.dovecot_guids import guid_of
from tests.cli.sources.mail_files import listed, make_maildir, names, put, texts

LIST = b"3 V1795821413 N3 Ge1df3c3a630f0a6b7933000083ecc375\n"
HEAD = "<BBHIIIIIQ"


def uids(source: MailSource, name: str = "INBOX") -> list[int | None]:
    return [message.uid for message in listed(source, name)]


@pytest.mark.parametrize(
    "content",
    [
        LIST + b"1 :a.host,S=5\n2 W21 :b.host\n7 W8 Xabc :c.host,S=9,W=2:2,S\n",
        b"1 1795821413 3\n1 a.host,S=5\n2 b.host\n7 c.host,S=9,W=2:2,FS\n",
    ],
)
def test_both_versions_of_the_list_tell_uids(content: bytes) -> None:
    found = parse_uidlist(content)
    assert (found.uidvalidity, found.uidnext) == (1795821413, 8)
    assert found.uids == {"a.host,S=5": 1, "b.host": 2, "c.host,S=9,W=2": 7}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"2 V1 N1\n",
        b"3 N7\n1 :a\n",
        b"3 V0 N7\n1 :a\n",
        b"3 V4294967296 N7\n",
        b"3 V99999999999999999999 N7\n",
        b"3 V5\n1 :a\n",
        LIST + b"1 :a\n1 :b\n",
        LIST + b"2 :a\n1 :b\n",
        LIST + b"1 :a\n2 :a\n",
        LIST + b"0 :a\n",
        LIST + b"4294967295 :a\n",
        LIST + b"x :a\n",
        LIST + b"1 a\n",
        LIST + b"1 :\n",
        LIST + b"\x00\xff\n",
        LIST + b"\n1 :a\n",
        b"1 5 9\n1\n",
        b"1 5 9\nx y\n",
        b"\xff" * 100_000,
    ],
)
def test_broken_list_is_told_and_the_mail_comes_under_new_uids(tmp_path: Path, content: bytes) -> None:
    root = make_maildir(tmp_path / "Maildir")
    put(root / "cur", "a:2,S", b"x\n")
    put(root, "dovecot-uidlist", content)
    source = read_source(root, "INBOX")
    assert uids(source) == [None]
    [folder] = source.folders
    assert (folder.uidvalidity, folder.uidnext, folder.highestmodseq) == (None, None, None)
    assert [note for note in source.notes if "line 1" in note or "line 2" in note or "line 3" in note]


@given(st.binary(max_size=200))
def test_any_list_is_read_or_refused(content: bytes) -> None:
    try:
        found = parse_uidlist(LIST + content)
    except BrokenFileError:
        return
    assert sorted(found.uids.values()) == list(found.uids.values())


def test_list_tells_guids_that_are_not_names_of_files() -> None:
    found = parse_uidlist(LIST + b"1 :a\n2 Gx W9 :b:2,S\n3 W9 G0\xff,S=2 :c\n4 G :d\n5 :\xff\n")
    assert found.guids == {"b": "x", "c": "0\udcff,S=2"}


def test_mail_has_the_guid_by_which_dovecot_knows_it(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    for name in ("1.M2.host,S=9,W=10:2,S", "copy:2,", "b" * 32, "M1:1,x", "unnumbered"):
        put(root / "cur", name, b"x\n")
    put(root / "new", "copy", b"another file of this name\n")
    lines = b"1 :1.M2.host,S=9,W=10\n2 G1.M2.host,S=9,W=10 :copy\n3 :%s\n4 :M1:1,\n" % (b"b" * 32)
    put(root, "dovecot-uidlist", LIST + lines)
    found = [(one.uid, one.guid) for one in listed(read_source(root, "INBOX")) if one.uid is not None]
    texts = {1: "1.M2.host,S=9,W=10", 2: "1.M2.host,S=9,W=10", 3: "b" * 32, 4: "M1"}
    assert found == [(uid, guid_of(text)) for uid, text in texts.items()]
    rest = {one.guid for one in listed(read_source(root, "INBOX")) if one.uid is None}
    assert rest == {guid_of("unnumbered"), None}


def test_mail_of_other_servers_and_of_a_broken_list_has_no_guid(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    put(root / "cur", "a:2,", b"x\n")
    assert [one.guid for one in listed(read_source(root, "INBOX"))] == [None]
    put(root, "dovecot-uidlist", LIST + b"x :a\n")
    assert [one.guid for one in listed(read_source(root, "INBOX"))] == [None]


def test_last_line_that_is_being_written_does_not_count() -> None:
    found = parse_uidlist(LIST + b"1 :a\n2 :b.ho")
    assert (found.uids, found.uidnext) == ({"a": 1}, 3)


def test_uids_give_the_order_and_files_without_come_last(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    for name, mtime_s in (("late", 10), ("b", 30), ("a", 20), ("early", 5)):
        put(root / ("new" if name == "a" else "cur"), name, name.encode(), mtime_s=mtime_s)
    put(root / "cur", "a:2,S", b"another a", mtime_s=40)
    put(root, "dovecot-uidlist", LIST + b"4 :b\n5 :gone\n9 :a\n")
    source = read_source(root, "INBOX")
    assert uids(source) == [4, 9, None, None, None]
    assert texts(source) == [b"b", b"a", b"early", b"late", b"another a"]
    assert source.folders[0].uidnext == 10
    assert source.notes == [f"{root}: dovecot-uidlist still has UIDs of expunged mail (1), as is usual"]


def test_file_that_gets_other_flags_meanwhile_is_read(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    put(root / "new", "a", b"text\n")
    source = read_source(root, "INBOX")
    (root / "new" / "a").rename(root / "cur" / "a:2,S")
    assert texts(source) == [b"text\r\n"]


def test_compressed_file_is_no_mail(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    put(root / "cur", "a:2,", b"\x1f\x8b\x08\x00")
    source = read_source(root, "INBOX")
    with source.open(source.folders[0]) as reader:
        [read] = reader.texts(reader.listing(None).messages)
    assert read.error is not None
    assert "imap://" in read.error


def test_folders_below_each_other_are_found(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    for name in ("Archive/2024/Entw&APw-rfe", "a.b", "Archive", "x&-y"):
        make_maildir(root / name)
    (root / "Empty" / "cur").mkdir(parents=True)
    (root / "loop").symlink_to(root)
    source = read_source(root, "INBOX")
    assert names(source) == ["INBOX", "Archive", "Archive/2024/Entwürfe", "a.b", "x&y"]
    (tmp_path / "mail").mkdir()
    make_maildir(tmp_path / "mail" / "INBOX")
    make_maildir(tmp_path / "mail" / "Sent")
    assert names(read_source(tmp_path / "mail", "INBOX")) == ["INBOX", "Sent"]


@pytest.mark.parametrize("home_has_mail", [False, True])
def test_maildir_plus_plus_below_another_directory_is_refused_and_named(tmp_path: Path, *, home_has_mail: bool) -> None:
    if home_has_mail:
        make_maildir(tmp_path)
    root = make_maildir(tmp_path / "Maildir")
    put(root / "cur", "a:2,S", b"x\n")
    (root / ".Archive" / "new").mkdir(parents=True)
    with pytest.raises(SourceError) as error:
        read_source(tmp_path, "INBOX")
    assert str(error.value) == f"{tmp_path} holds a Maildir++ in Maildir/, with folders such as .Archive: import {root}"
    assert names(read_source(root, "INBOX")) == ["INBOX", "Archive"]


def test_names_that_no_folder_can_have_are_changed(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    for name in (b".a..b", b".c\x01d\ne", b".\xff\xfe", b".&AAo-x", b".&AC8-"):
        make_maildir(root / name.decode("utf-8", "surrogateescape"))
    assert sorted(names(read_source(root, "INBOX"))) == sorted(
        ["INBOX", "a/_/b", "c_d_e", "\ufffd\ufffd", "_x", "&AC8-"]
    )


def test_directories_of_one_name_go_together(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    for number, name in enumerate((".A.B", "A/B")):
        put(make_maildir(root / name) / "cur", "1:2,", b"%d\n" % number)
        put(root / name, "dovecot-uidlist", LIST + b"1 :1\n")
    source = read_source(root, "INBOX")
    assert (names(source), sorted(texts(source, "A/B"))) == (["INBOX", "A/B"], [b"0\r\n", b"1\r\n"])
    assert uids(source, "A/B") == [None, None]
    assert [folder.uidvalidity for folder in source.folders] == [None, None]
    assert "their mail goes together" in source.notes[0]


@pytest.mark.parametrize(
    ("content", "separator", "expected"),
    [
        (b"V\t2\n\nArch\t2024\nEntw&APw-rfe\na\x01tb\n", b".", [[b"Arch", b"2024"], [b"Entw&APw-rfe"], [b"a\tb"]]),
        (b"INBOX\nArch.2024\n", b".", [[b"INBOX"], [b"Arch", b"2024"]]),
        (b"INBOX\nArch/a.b\n", b"/", [[b"INBOX"], [b"Arch", b"a.b"]]),
        (b"", b".", []),
    ],
)
def test_subscriptions_of_both_versions(content: bytes, separator: bytes, expected: list[list[bytes]]) -> None:
    assert parse_subscriptions(content, separator) == expected


def test_log_bounds_the_modseq() -> None:
    head = struct.pack(HEAD, 1, 3, 40, 7, 1, 0, 0, 0, 5000)
    assert highest_modseq(head + b"\0" * 80) == 5000 + 112 // 8
    for broken in (b"", head[:20], b"\x02" + head[1:], struct.pack(HEAD, 1, 3, 8, 7, 1, 0, 0, 0, 5000)):
        assert highest_modseq(broken) is None
    assert highest_modseq(struct.pack(HEAD, 1, 3, 40, 7, 1, 0, 0, 0, 2**64 - 1)) is None


def test_links_and_files_of_others_are_no_mail(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    secret = put(tmp_path, "secret", b"a secret\n")
    put(root / "cur", "1:2,", b"mail\n")
    (root / "cur" / "2:2,").symlink_to(secret)
    (root / "cur" / "3:2,").mkdir()
    os.mkfifo(root / "new" / "4")
    others = make_maildir(tmp_path / "others")
    put(others / "cur", "5:2,", b"mail of somebody else\n")
    (root / ".Linked").symlink_to(others)
    (root / "Linked").symlink_to(tmp_path)
    (root / ".Half").mkdir()
    (root / ".Half" / "new").mkdir()
    (root / ".Half" / "cur").symlink_to(others / "cur")
    source = read_source(root, "INBOX")
    assert names(source) == ["INBOX"]
    assert {*source.unreadable} == {str(root / ".Linked"), str(root / ".Half")}
    assert [text for text in texts(source) if text] == [b"mail\r\n"]
    with source.open(source.folders[0]) as reader:
        errors = [read.error for read in reader.texts(reader.listing(None).messages) if read.error]
    assert sorted(errors) == ["Too many levels of symbolic links", "no file", "no file"]
    (root / "subscriptions").symlink_to(secret)
    assert str(root / "subscriptions") in read_source(root, "INBOX").unreadable


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_files_of_another_user_are_no_mail(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    os.chown(put(root / "cur", "1:2,", b"mail\n"), 65534, 65534)
    assert texts(read_source(root, "INBOX")) == [b""]
    os.chown(root, 65534, 65534)
    assert texts(read_source(root, "INBOX")) == [b"mail\r\n"]


def test_folder_that_cannot_be_read_is_told_and_others_are_read(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    make_maildir(root / ".Bad")
    (root / ".Bad" / "dovecot-uidlist").mkdir()
    (root / ".Half" / "cur").mkdir(parents=True)
    put(root / ".Half" / "cur", "1:2,", b"x\n")
    source = read_source(root, "INBOX")
    assert (names(source), texts(source, "Half")) == (["INBOX", "Half"], [b"x\r\n"])
    assert source.unreadable == {str(root / ".Bad" / "dovecot-uidlist"): "no file"}


@pytest.mark.parametrize("name", ["dovecot-uidlist", "subscriptions", "dovecot-keywords", "dovecot.index.log"])
@pytest.mark.parametrize("kind", ["fifo", "link", "large"])
def test_file_that_is_none_or_too_large_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.setattr(own_files.OwnFiles.read, "__defaults__", (MIB,))
    root = make_maildir(tmp_path / "Maildir")
    put(root / "cur", "a:2,S", b"x\n")
    make_maildir(root / ".Sub")
    put(root / ".Sub" / "cur", "a:2,S", b"x\n")
    if kind == "fifo":
        os.mkfifo(root / name)
    elif kind == "link":
        (root / name).symlink_to("/dev/zero")
    else:
        os.truncate(put(root, name, b""), 2 * MIB)
    source = read_source(root, "INBOX")
    [told] = source.unreadable.items()
    reasons = {"fifo": "no file", "link": "Too many levels of symbolic links", "large": "larger than 1 MiB"}
    assert told == (str(root / name), reasons[kind])
    assert "Sub" in names(source)


def test_message_that_is_larger_than_any_is_told(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    os.truncate(put(root / "cur", "a:2,S", b"x\n"), 1 << 40)
    source = read_source(root, "INBOX")
    with source.open(source.folders[0]) as reader:
        [read] = reader.texts(listed(source))
    assert read.error is not None
    assert read.error.startswith("larger than ")


def test_notes_of_directories_that_go_together_are_told(tmp_path: Path) -> None:
    root = make_maildir(tmp_path / "Maildir")
    for name in (".a\x01", ".a\x02"):
        put(make_maildir(root / name), "dovecot-uidlist", b"broken")
    assert len([note for note in read_source(root, "INBOX").notes if "line 1 is not" in note]) == 2


def test_directory_is_looked_through_once_for_all_files_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_maildir(tmp_path / "Maildir")
    for number in range(50):
        put(root / "cur", f"{number}:2,", b"x\n")
    source = read_source(root, "INBOX")
    for number in range(49):
        (root / "cur" / f"{number}:2,").unlink()
    (root / "cur" / "49:2,").rename(root / "cur" / "49:2,S")
    looks, scandir = list[str](), os.scandir

    def look(path: str) -> object:
        looks.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", look)
    with source.open(source.folders[0]) as reader:
        found = [*reader.texts(listed(source))]
    assert [read.error is None for read in found].count(True) == 1
    assert len(looks) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link away")
@pytest.mark.parametrize(("maker", "is_read"), [(0, True), (1001, True), (1002, False)])
def test_place_is_not_read_by_a_link_of_another_user(tmp_path: Path, maker: int, *, is_read: bool) -> None:
    root = make_maildir(tmp_path / "homes" / "alice" / "Maildir")
    os.chown(put(root / "cur", "1:2,", b"alice's\n"), 1001, 1001)
    os.chown(root, 1001, 1001)
    linked = tmp_path / "homes" / "bob"
    linked.symlink_to("alice/../alice")
    os.lchown(linked, maker, maker)
    if is_read:
        assert texts(read_source(linked / "Maildir", "INBOX")) == [b"alice's\r\n"]
    else:
        with pytest.raises(SourceError, match="bob: a link of another user"):
            read_source(linked / "Maildir", "INBOX")
