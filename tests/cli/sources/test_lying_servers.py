"""IMAP servers that are broken or lie: the import of a folder or an account ends with an error, and nothing else."""

from __future__ import annotations

from contextlib import closing

import pytest

from replicator.cli.importing.sources import Credentials, source_at
from replicator.cli.sources import MailSource, ReadMessage, SourceError
from replicator.cli.sources.imap import connection as imap_connection
from replicator.cli.sources.imap import folder as imap_folder
from replicator.mail.dovecot_guids import guid_of
from tests.cli.sources.lying_server import HONEST, TEXT, Answer, LyingServer, lying_server

MORE = imap_folder.PIECE_BYTES


def account(server: LyingServer) -> MailSource:
    """Look at the account, and go."""
    with closing(source_at(server.url, "INBOX", Credentials("secret"))) as source:
        return source


def read(server: LyingServer) -> list[ReadMessage]:
    with closing(source_at(server.url, "INBOX", Credentials("secret"))) as source:
        [folder] = source.folders
        with source.open(folder) as reader:
            return [*reader.texts(reader.listing(None).messages)]


def test_honest_server_is_read() -> None:
    with lying_server() as server:
        [message] = read(server)
        assert (message.text, message.message.uid, message.message.received_ms) == (TEXT, 7, 1706782830000)
        assert b'LOGIN "alice" "secret"' in server.asked
        assert not [command for command in server.asked if command.startswith((b"SELECT", b"STORE"))]


@pytest.mark.parametrize(
    ("lies", "error"),
    [
        ({"LIST": b'* LIST () "/"\r\n'}, "makes no sense"),
        ({"LIST": b'* LIST (( "/" x\r\n'}, "makes no sense"),
        ({"LIST": b"* LIST " + b"(" * 1000 + b")" * 1000 + b"\r\n"}, "makes no sense"),
        ({"LIST": b'* LIST () "/" "x\r\n'}, "makes no sense"),
        ({"LIST": b'* LIST () "/" {99999999999}\r\n'}, "longer than it can be"),
        ({"LIST": b'* LIST () "/" {500}\r\nx'}, "connection is lost"),
        ({"LIST": b"* LIST " + b"x" * 2_000_000 + b"\r\n"}, "1000000"),
        ({"LIST": b'* LIST () "/" x\r\n' * 300_000}, "longer than it can be"),
        ({"LIST": b"".join(b'* LIST () "/" x%d\r\n' % number for number in range(10_001))}, "more than 10000"),
        ({"STATUS": b"* STATUS INBOX (MESSAGES x UIDNEXT 8 UIDVALIDITY 5)\r\n"}, "makes no sense"),
        ({"STATUS": b"* STATUS INBOX (MESSAGES 99999999999 UIDNEXT 8 UIDVALIDITY 5)\r\n"}, "makes no sense"),
        ({"STATUS": b"* STATUS INBOX (MESSAGES 1 UIDNEXT 8 UIDVALIDITY 4294967296)\r\n"}, "makes no sense"),
        ({"STATUS": b"* STATUS INBOX (MESSAGES 1 UIDVALIDITY 5)\r\n"}, "makes no sense"),
        ({"STATUS": b"* STATUS INBOX (MESSAGES\r\n"}, "makes no sense"),
        ({"NAMESPACE": b"* NAMESPACE x\r\n"}, "makes no sense"),
        ({"NAMESPACE": b"* NAMESPACE ((x) ((a)))\r\n"}, "makes no sense"),
        ({"LOGIN": b"* BYE go away"}, "connection is lost"),
    ],
)
def test_account_that_cannot_be_looked_at(lies: dict[str, Answer], error: str) -> None:
    with lying_server(**lies) as server, pytest.raises(SourceError, match=error) as refused:
        account(server)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("lies", "error"),
    [
        ({"EXAMINE": b"* 1 EXISTS\r\n* OK [UIDVALIDITY 6] x\r\n"}, "UIDVALIDITY has changed"),
        ({"EXAMINE": b"* OK [UIDVALIDITY 5] x\r\n"}, "makes no sense"),
        ({"EXAMINE": b"* 4294967295 EXISTS\r\n* OK [UIDVALIDITY 5] x\r\n"}, "makes no sense"),
        ({"EXAMINE": b"* 3 EXISTS\r\n* OK [UIDVALIDITY 5] x\r\n"}, "3 messages, and 1 are listed"),
        ({"FETCH": b""}, "1 messages, and 0 are listed"),
        ({"FETCH": b'* 1 FETCH (UID 0 FLAGS () INTERNALDATE "" RFC822.SIZE 1)\r\n'}, "UID 0 after 0"),
        ({"FETCH": b'* 1 FETCH (UID 7 FLAGS () INTERNALDATE "" RFC822.SIZE 1)\r\n' * 2}, "UID 7 after 7"),
        ({"FETCH": b'* 1 FETCH (UID 7 FLAGS x INTERNALDATE "" RFC822.SIZE 1)\r\n'}, "makes no sense"),
        ({"FETCH": b'* 1 FETCH (UID 7 FLAGS () INTERNALDATE "" RFC822.SIZE -1)\r\n'}, "makes no sense"),
        ({"FETCH": b"* 1 FETCH (UID 7 FLAGS\r\n"}, "makes no sense"),
    ],
)
def test_folder_that_cannot_be_read(lies: dict[str, Answer], error: str) -> None:
    with lying_server(**lies) as server, pytest.raises(SourceError, match=error):
        read(server)


def test_folder_that_the_server_refuses_is_told_and_others_are_read() -> None:
    listing = b'* LIST () "/" a\r\n* LIST () "/" b\r\n'
    answer: Answer = lambda command: b"" if b'"a"' in command else HONEST["STATUS"]  # noqa: E731
    with lying_server(LIST=listing, STATUS=answer) as server:
        source = account(server)
        assert [folder.name for folder in source.folders] == ["b"]
        assert source.unreadable == {"a": f"{server.url}: no answer to STATUS of a"}


def test_message_that_is_not_sent_is_named() -> None:
    for said in (b"", b"* 1 FETCH (UID 8 BODY[]<0> {1}\r\nx)\r\n", b"* 1 FETCH (FLAGS ())\r\n"):
        with lying_server(UID_FETCH=said) as server:
            [message] = read(server)
            assert message.error is not None
            assert message.message.name == "INBOX, UID 7"


WITH_ID = HONEST["CAPABILITY"].replace(b"CONDSTORE", b"CONDSTORE ID")


@pytest.mark.parametrize(
    ("said", "guid"),
    [
        (b"0123456789abcdef0123456789ABCDEF", bytes.fromhex("0123456789abcdef" * 2)),
        (b"1.M2.host,S=9", guid_of("1.M2.host,S=9")),
        (b'"sp \\"ace"', guid_of('sp "ace')),
        (b"{3}\r\n\xff\x00x", guid_of("\udcff\0x")),
        (b"x" * 10_000, guid_of("x" * 10_000)),
        (b'""', None),
        (b"NIL", None),
        (b"(1 2)", None),
    ],
)
def test_dovecot_is_asked_for_guids(said: bytes, guid: bytes | None) -> None:
    fetched = b"* 1 FETCH (UID 7 X-GUID %b BODY[]<0> {%d}\r\n%b)\r\n" % (said, len(TEXT), TEXT)
    with lying_server(CAPABILITY=WITH_ID, ID=b'* ID ("version" NIL "name" "Dovecot")\r\n', UID_FETCH=fetched) as server:
        [read_one] = read(server)
    assert (read_one.text, read_one.message.guid) == (TEXT, guid)
    assert b"UID FETCH 7 (UID X-GUID BODY.PEEK[]<0.1048576>)" in server.asked


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"* ID NIL\r\n",
        b"* ID\r\n",
        b'* ID ("name" NIL)\r\n',
        b'* ID ("name" ("Dovecot"))\r\n',
        b'* ID ("name" "Cyrus IMAP" "vendor" "Dovecot")\r\n',
        b'* ID ("name")\r\n',
        b'* ID ((("name"\r\n',
    ],
)
def test_no_other_server_is_asked_for_guids(said: bytes) -> None:
    with lying_server(CAPABILITY=WITH_ID, ID=said) as server:
        [read_one] = read(server)
    assert (read_one.text, read_one.message.guid) == (TEXT, None)
    assert not [command for command in server.asked if b"GUID" in command]


def test_server_that_refuses_to_say_what_it_is_is_read() -> None:
    for refusal in (b"NO no\r\n", b"BAD what?\r\n"):
        with lying_server(CAPABILITY=WITH_ID, ID=refusal) as server:
            [read_one] = read(server)
        assert (read_one.text, read_one.message.guid) == (TEXT, None)


def piece_of(text: bytes) -> Answer:
    """Answer as a server that has this text, and tells a wrong RFC822.SIZE."""

    def answer(command: bytes) -> bytes:
        start, size = (int(number) for number in command.partition(b"<")[2].partition(b">")[0].split(b"."))
        piece = text[start : start + size]
        return b"* 1 FETCH (UID 7 BODY[]<%d> {%d}\r\n%s)\r\n" % (start, len(piece), piece)

    return answer


def test_message_comes_in_pieces_whatever_size_was_told() -> None:
    text = b"Subject: x\r\n\r\n" + b"0123456789\r\n" * (MORE // 4)
    with lying_server(UID_FETCH=piece_of(text)) as server:
        [message] = read(server)
        assert message.text == text
        fetched = [command for command in server.asked if command.startswith(b"UID FETCH")]
        assert [command.partition(b"<")[2] for command in fetched] == [
            b"%d.%d>)" % (number * MORE, MORE) for number in range(4)
        ]


def test_message_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap_folder, "MESSAGE_BYTES_MAX", 3 * MORE)
    endless = b"* 1 FETCH (UID 7 BODY[]<0> {%d}\r\n%s)\r\n" % (MORE, b"x" * MORE)
    with lying_server(UID_FETCH=endless) as server:
        [message] = read(server)
        assert message.error == "larger than 3 MiB"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"* 1 FETCH (UID 7 BODY[]<0> {4294967296}\r\nx", "longer than it can be"),
        (b"* 1 FETCH (UID 7 BODY[]<0> {100}\r\nx", "connection is lost"),
        (b"* 1 FETCH (UID x BODY[]<0> {1}\r\nx)\r\n", "makes no sense"),
        (b"* 1 FETCH (UID 7 BODY[]<0> {%d}\r\nx" % (2 * MORE), "longer than it can be"),
        (b"* 1 FETCH (UID 7 " + b"x" * 1_100_000 + b")\r\n", "got more than 1000000 bytes"),
    ],
)
def test_message_that_a_server_cannot_send_is_named_and_others_are_read(said: bytes, error: str) -> None:
    """The server has 7, which it cannot send, and 8."""
    about = b"".join(
        b'* %d FETCH (UID %d FLAGS () INTERNALDATE " 1-Feb-2024 10:20:30 +0000" RFC822.SIZE 1)\r\n' % (uid - 6, uid)
        for uid in (7, 8)
    )
    second = b"* 2 FETCH (UID 8 BODY[]<0> {%d}\r\n%s)\r\n" % (len(TEXT), TEXT)
    answer: Answer = lambda command: second if command.startswith(b"UID FETCH 8 ") else said  # noqa: E731
    exists = b"* 2 EXISTS\r\n* OK [UIDVALIDITY 5] x\r\n"
    with lying_server(EXAMINE=exists, FETCH=about, UID_FETCH=answer) as server:
        bad, good = read(server)
    assert (bad.message.uid, bad.text, good.text) == (7, b"", TEXT)
    assert bad.error is not None
    assert error in bad.error


def test_server_that_sends_few_messages_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap_folder, "REFUSED_MAX", 0)
    with (
        lying_server(UID_FETCH=b"* 1 FETCH (UID 7 x") as server,
        pytest.raises(SourceError, match="connection is lost"),
    ):
        read(server)


def test_answer_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imap_connection, "COMMAND_S", 0.0)
    with lying_server() as server, pytest.raises(SourceError, match="takes longer than 0 seconds"):
        account(server)


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        (b'* LIST () "." a.b&AC8-c\r\n* LIST () "." "x/y"\r\n', ["a/b&AC8-c", "x_y"]),
        (b'* LIST () NIL "a/b"\r\n', ["a_b"]),
        (b'* LIST () "/" {3}\r\na\tb\r\n* LIST () "/" ok\r\n', ["ok"]),
        (b'* LIST () "/" "/a//b"\r\n', ["_/a/_/b"]),
        (b'* LIST () "/" a\r\n* LIST () "/" a\r\n', ["a"]),
        (b'* LIST () "." "a/b"\r\n* LIST () "." a_b\r\n', ["a_b", "a_b_1"]),
        (b'* LIST () "/" "INBOX"\r\n* LIST (\\NoSelect) "/" none\r\n', ["INBOX"]),
        (b'* LIST () "/" "\xff"\r\n', ["\ufffd"]),
    ],
)
def test_names_that_no_folder_can_have_are_changed_or_told(listing: bytes, expected: list[str]) -> None:
    with lying_server(LIST=listing) as server:
        source = account(server)
        assert sorted(folder.name for folder in source.folders) == expected
        assert bool(source.notes) == (expected == ["a_b", "a_b_1"])
        assert [*source.unreadable] == (["a?b"] if expected == ["ok"] else [])


def test_only_folders_of_the_user_are_taken_without_their_prefix() -> None:
    namespaces = b'* NAMESPACE (("INBOX." ".")) (("user." ".")) (("Public." "."))\r\n'
    names = (b"INBOX", b"INBOX.Sent", b"user.bob", b"user.bob.Sent", b"Public.News", b"INBOX.Sent.2024")
    listing = b"".join(b'* LIST () "." %s\r\n' % name for name in names)
    with lying_server(NAMESPACE=namespaces, LIST=listing) as server:
        source = account(server)
        assert [folder.name for folder in source.folders] == ["INBOX", "Sent", "Sent/2024"]
        assert [note.partition(":")[0] for note in source.notes] == ["user.bob", "user.bob.Sent", "Public.News"]


@pytest.mark.parametrize(
    "place",
    [
        "imap://127.0.0.1",
        "imaps://alice@",
        "imap://alice@127.0.0.1:0",
        "imap://alice@127.0.0.1:99999",
        "imap://alice@127.0.0.1:x",
        "imap://alice@127.0.0.1/INBOX",
        "imap://alice@[::1",
        "imap://alice@127.0.0.1:1",
        "imap://a%0Db@127.0.0.1",
    ],
)
def test_place_without_a_server_is_an_error(place: str) -> None:
    with pytest.raises(SourceError):
        source_at(place, "INBOX", Credentials("secret"))


def test_many_folders_of_one_name_are_told_apart() -> None:
    controls = [b"\x7f", *(chr(0x80 + number).encode() for number in range(32))]
    names = [one + other for one in controls for other in controls]
    listing = b"".join(b'* LIST () "/" "%s"\r\n' % name for name in names)
    with lying_server(LIST=listing, NAMESPACE=b"* NAMESPACE\r\n") as server:
        found = [folder.name for folder in account(server).folders]
    assert len({*found}) == len(names)
    assert found[:3] == ["__", "___1", "___2"]


def test_connection_that_the_server_has_closed_meanwhile_is_made_anew() -> None:
    examined = 0

    def close_at_first(_: bytes) -> bytes:
        nonlocal examined
        examined += 1
        return b"* BYE idle for too long" if examined == 1 else b"* 1 EXISTS\r\n* OK [UIDVALIDITY 5] x\r\n"

    with lying_server(EXAMINE=close_at_first) as server:
        [message] = read(server)
    assert (message.text, examined) == (TEXT, 2)


def test_only_changes_are_listed_where_the_server_knows_them() -> None:
    def fetch(command: bytes) -> bytes:
        other = b"* 1 FETCH (FLAGS (\\Seen))\r\n"
        return other if b"CHANGEDSINCE 8" in command else other + b"* 1 FETCH (UID 7)\r\n"

    with (
        lying_server(FETCH=fetch) as server,
        closing(source_at(server.url, "INBOX", Credentials("secret"))) as source,
        source.open(source.folders[0]) as reader,
    ):
        listing = reader.listing(8)
    assert (listing.messages, str(listing.uids)) == ([], "7")
