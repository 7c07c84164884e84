"""Commands of two IMAP clients that have logged in, to real sessions with a real node's mail, in virtual time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
import trio.testing

from replicator.mail.mailstore import NewMessage
from tests.fuzz.target import Target, piece_size, pieces
from tests.imap.client import Client, connected, services
from tests.one_node import HookedMail, one_node

SWITCH = b"\0\0"
"""Ends what one client sends before the other one goes on. No command has it."""

CLIENTS = 2
COMPRESSED = b"Begin DEFLATE now\r\n"  # after this a client's octets are no responses
LITERAL = re.compile(rb"\{([0-9]+)\}\Z")
QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
RESULT = re.compile(rb"([^ ]+) (OK|NO|BAD)\b")
STATUS = re.compile(rb"(?:\+|[^ ]+ (?:OK|NO|BAD|BYE|PREAUTH))(?: |\Z)")
NUMBERED = re.compile(rb"\* ([0-9]+) (EXISTS|EXPUNGE|FETCH)\b")

MAILS = (
    b"From: Ann <ann@example.org>\r\nSubject: =?utf-8?q?Caf=C3=A9?=\r\nMessage-ID: <1@x>\r\n\r\nHello\r\n",
    (
        b"From: bob@example.org\r\nSubject: Re: Caf\xc3\xa9\r\nReferences: <1@x>\r\nMIME-Version: 1.0\r\n"
        b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n--b\r\nContent-Type: text/html\r\n\r\n<p>Hi</p>\r\n'
        b"--b\r\nContent-Type: application/x\r\nContent-Transfer-Encoding: base64\r\n\r\nAAEC\r\n--b--\r\n"
    ),
    b"no header\0\r\n\r\n\xff\r\n",
)


def check(data: bytes) -> None:
    """Let the clients speak whole and in pieces: each command ends alike, and all that clients hear can be read."""
    turns = data[1:].split(SWITCH)
    heard = answers_to([[turn] for turn in turns])
    for said in heard:
        assert b"[SERVERBUG]" not in said
        check_numbers([*responses_in(said)])
    in_pieces = answers_to([pieces(turn, piece_size(data)) for turn in turns])
    assert [*map(results_in, in_pieces)] == [*map(results_in, heard)]


def answers_to(turns: list[list[bytes]]) -> list[bytes]:
    """Return what each client hears after its log-in, to the end of its connection."""
    return trio.run(_conversation, turns, clock=trio.testing.MockClock(autojump_threshold=0))


async def _conversation(turns: list[list[bytes]]) -> list[bytes]:
    with TemporaryDirectory(prefix="fuzz-") as directory:
        async with one_node(Path(directory)) as mail, AsyncExitStack() as stack:
            await _fill(mail)
            served = services(mail)
            clients = [await stack.enter_async_context(connected(served)) for _ in range(CLIENTS)]
            for client in clients:
                await client.log_in("alice", "INBOX")
            for number, turn in enumerate(turns):
                await _say(clients[number % CLIENTS], turn)
            return [await _rest(client) for client in clients]


async def _fill(mail: HookedMail) -> None:
    inbox = await mail.folder("alice", "INBOX")
    for body in MAILS:
        await mail.save(inbox, NewMessage(body, frozenset({"\\Seen", "kept"})))
    await mail.create_folder("alice", "Archive")


async def _say(client: Client, turn: list[bytes]) -> None:
    with suppress(trio.BrokenResourceError):  # the server has ended this connection
        for piece in turn:
            await client.send(piece)
            await trio.testing.wait_all_tasks_blocked()


async def _rest(client: Client) -> bytes:
    assert isinstance(client.stream, trio.StapledStream)
    with suppress(trio.BrokenResourceError):
        await client.stream.send_eof()
    async for data in client.stream:
        client.received += data
    return bytes(client.received).partition(COMPRESSED)[0]


def results_in(said: bytes) -> list[tuple[bytes, bytes]]:
    """Return each tag with its result."""
    found = map(RESULT.match, responses_in(said))
    return [(result[1], result[2]) for result in found if result and result[1] != b"*"]


def responses_in(said: bytes) -> Iterator[bytes]:
    """Yield responses without their literals and quoted strings.

    Raises AssertionError if a client could not read one (RFC 9051 section 9).
    """
    at = 0
    while at < len(said):
        response = b""
        while True:
            line, end, _ = said[at:].partition(b"\r\n")
            assert end, "a line does not end"
            at += len(line) + len(end)
            assert not set(line) & set(b"\r\n\0"), line
            response += line
            literal = None if STATUS.match(response) else LITERAL.search(line)
            if literal is None:
                break
            at += int(literal[1])
            assert at <= len(said), "a literal does not end"
        yield response if STATUS.match(response) else _unquoted(response)


def _unquoted(response: bytes) -> bytes:
    response.decode()
    bare = QUOTED.sub(b"", response)
    assert b'"' not in bare, response
    assert bare.isascii(), response
    depth = 0
    for octet in bare:
        depth += (octet == ord("(")) - (octet == ord(")"))
        assert depth >= 0, response
    assert not depth, response
    return bare


def check_numbers(responses: list[bytes]) -> None:
    """Check that sequence numbers name messages that the client knows of (RFC 9051 section 7.4.1)."""
    exists = len(MAILS)
    for response in responses:
        if found := NUMBERED.match(response):
            number, kind = int(found[1]), found[2]
            if kind == b"EXISTS":
                exists = number
            else:
                assert 1 <= number <= exists, response
                exists -= kind == b"EXPUNGE"


TARGET = Target(
    "session",
    check,
    seeds=(
        b"\x3fa FETCH 1:* (UID FLAGS ENVELOPE BODYSTRUCTURE PREVIEW)\r\n\0\0b NOOP\r\n",
        b"\x3fa IDLE\r\n\0\0b STORE 1:2 +FLAGS (\\Deleted x)\r\nb EXPUNGE\r\n\0\0DONE\r\na SEARCH ALL\r\n",
        b"\x3fa ENABLE QRESYNC UTF8=ACCEPT\r\na SELECT INBOX (QRESYNC (1 1))\r\n\0\0b MOVE 1 Archive\r\n\0\0a NOOP\r\n",
        (
            b"\x3fa NOTIFY SET (selected (MessageNew (UID BODY.PEEK[TEXT]) MessageExpunge)) (personal (MailboxName))"
            b"\r\n\0\0b COPY 2 INBOX\r\nb CREATE z\r\nb RENAME z y\r\n\0\0a NOOP\r\n"
        ),
        b"\x3fa APPEND INBOX (\\Seen) {3+}\r\na:b {1+}\r\nc\r\n\0\0b UID FETCH 1:* BODY[]<0.9>\r\n",
        b'\x3fa APPEND INBOX CATENATE (TEXT {4+}\r\na:b\n URL "/INBOX/;UID=1/;SECTION=TEXT")\r\na EXAMINE Archive\r\n',
        b"\x3fa SEARCH RETURN (SAVE UPDATE) TEXT hello\r\n\0\0b COPY 1:3 INBOX\r\n\0\0a FETCH $ BINARY[2]\r\n",
        b"\x3fa SORT RETURN (ALL) (SUBJECT REVERSE DATE) UTF-8 ALL\r\na UID THREAD REFS UTF-8 ALL\r\na UNSELECT\r\n",
        b'\x3fa SETMETADATA INBOX (/private/comment "x")\r\na GETMETADATA (DEPTH 1) "" (/private)\r\na CLOSE\r\n',
        b'\x3fa LIST (SUBSCRIBED) "" % RETURN (CHILDREN STATUS (MESSAGES UNSEEN HIGHESTMODSEQ SIZE))\r\na LOGOUT\r\n',
    ),
    words=(
        *(b" ", b"\r\n", SWITCH, b"(", b")", b'"', b"\\", b"[", b"]", b"<0.1>", b"NIL", b"*", b"$", b"1:*", b"2,3"),
        *(b"{3+}\r\n", b"~{2+}\r\n", b"a ", b"UID ", b"DONE\r\n", b"9" * 19, b"4294967295", b"\xff", b"\0", b"&APw-"),
        *(b"NOOP\r\n", b"IDLE\r\n", b"EXPUNGE\r\n", b"CLOSE\r\n", b"SELECT ", b"EXAMINE ", b"INBOX", b"Archive"),
        *(
            b"FETCH 1:* ",
            b"STORE 1 ",
            b"COPY 1 ",
            b"MOVE 2 ",
            b"SEARCH ",
            b"RETURN (",
            b"UPDATE ",
            b"SAVE ",
            b"PARTIAL 1:2 ",
        ),
        *(
            b"CREATE ",
            b"DELETE ",
            b"RENAME ",
            b"SUBSCRIBE ",
            b"LIST ",
            b"STATUS ",
            b"APPEND ",
            b"CATENATE (",
            b"TEXT ",
            b"URL ",
        ),
        *(b"ENABLE QRESYNC", b"(QRESYNC (1 1))", b"(CONDSTORE)", b"CHANGEDSINCE 1", b"VANISHED", b"(UNCHANGEDSINCE 1)"),
        *(
            b"NOTIFY SET ",
            b"(selected ",
            b"(personal ",
            b"(MessageNew MessageExpunge)",
            b"MailboxName",
            b"NOTIFY NONE\r\n",
        ),
        *(
            b"FLAGS ",
            b"+FLAGS ",
            b"-FLAGS.SILENT ",
            b"(\\Deleted)",
            b"(kept)",
            b"BODY[",
            b"BINARY[",
            b"HEADER.FIELDS (To)",
        ),
        *(
            b"ENVELOPE",
            b"BODYSTRUCTURE",
            b"PREVIEW",
            b"MODSEQ",
            b"EMAILID",
            b"THREADID",
            b"NOT ",
            b"OR ",
            b"UNSEEN ",
            b"BODY ",
        ),
        *(
            b"SORT (DATE) UTF-8 ALL",
            b"THREAD REFS UTF-8 ALL",
            b"GETMETADATA ",
            b"SETMETADATA ",
            b"/private/comment",
            b"ID NIL",
        ),
    ),
    calls=200_000,
    calls_per_octet=3_000,
)
