"""Input of a mail client: frames and commands, and the responses that show what it has sent."""

from __future__ import annotations

from protocol.framing import (
    ContinuationNeeded,
    Event,
    Frame,
    FrameLimits,
    Framer,
    FramingError,
    LargeLiteral,
    LiteralChunk,
)
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.commands.command_parser import CommandParser, CommandSyntaxError
from replicator.imap.wire.mailbox_names import decode_name, encode_name
from replicator.imap.wire.message_urls import MessageUrl, MessageUrlError, printed_url
from replicator.imap.wire.responses import mailbox, tagged
from tests.fuzz.target import Target, pieces_of

LIMITS = FrameLimits(text=1024, literal=512, literals_total=256, literals=4, whole=64)
PARSER = CommandParser()


def check(data: bytes) -> None:
    """Read the octets whole and in pieces to the same commands, each with its meaning or one clear error."""
    whole, pieces = pieces_of(data)
    events = events_of([whole])
    assert events_of(pieces) == events
    for event in events:
        if isinstance(event, Frame):
            assert len(event.text) <= LIMITS.text
            assert sum(map(len, event.literals)) <= LIMITS.literals_total
            assert_is_understood(event)
        elif isinstance(event, ContinuationNeeded | LargeLiteral):
            assert_is_understood(event.frame)


def events_of(pieces: list[bytes]) -> list[Event | str]:
    """Return the events, and the errors; the octets of large literals joined. Recoverable errors do not end them."""
    framer = Framer(LIMITS, bare_lf=True)
    events: list[Event | str] = []
    for piece in pieces:
        framer.receive(piece)
        while True:
            try:
                event = framer.next_event()
            except FramingError as error:
                events.append(str(error))
                if not error.recoverable:
                    return events
                continue
            if event is None:
                break
            before = events[-1] if events else None
            if isinstance(event, LiteralChunk) and isinstance(before, LiteralChunk):
                events[-1] = LiteralChunk(before.data + event.data)
            else:
                events.append(event)
    return events


def assert_is_understood(frame: Frame) -> None:
    try:
        parsed = PARSER.parse(frame)
    except CommandSyntaxError as error:
        assert_is_line(tagged(error.tag or "*", "BAD", str(error)))
        return
    assert_is_line(tagged(parsed.tag, "OK", "done"))
    assert repr(PARSER.parse(frame)) == repr(parsed)
    assert type(PARSER.parse(frame, utf8=True).command) is type(parsed.command)
    if isinstance(parsed.command, c.Append):
        assert all(message.parts for message in parsed.command.messages)
        for part in (part for message in parsed.command.messages for part in message.parts):
            if isinstance(part, c.StoredPart):
                assert_is_url_or_not(part.url)
    match parsed.command:
        case c.Select(mailbox=name) | c.Create(mailbox=name) | c.Status(mailbox=name) | c.Append(mailbox=name):
            assert decode_name(encode_name(name)) == name
            assert b"\r" not in mailbox(name)
        case _:
            pass


def assert_is_url_or_not(url: bytes) -> None:
    assert_is_line(tagged("a", "NO", "why", f"BADURL {printed_url(url)}"))
    try:
        found = MessageUrl.parse(url, "a/b")
    except MessageUrlError as error:
        assert_is_line(tagged("a", "NO", str(error)))
        return
    assert found.mailbox
    assert found.uid > 0
    try:
        PARSER.section(found.section)
    except CommandSyntaxError as error:
        assert_is_line(tagged("a", "NO", str(error)))


def assert_is_line(line: bytes) -> None:
    assert line.endswith(b"\r\n")
    assert line[:-2].isascii()
    assert not set(line[:-2]) & set(b"\r\n\0")


TARGET = Target(
    "imap",
    check,
    seeds=(
        b"\x07a1 NOOP\r\na2 LOGIN bob {3+}\r\nabc\r\n",
        b'\x05a LIST "" "%/*"\r\nb STATUS "Entw&APw-rfe" (MESSAGES UIDNEXT)\r\n',
        b"\x09a SELECT inbox\r\na CREATE {3}\r\nabc\r\na RENAME x y\r\na SUBSCRIBE &Jjo-\r\n",
        b'\x09a SETMETADATA "" (/private/a NIL /shared/b ~{3}\r\nabc)\r\na CREATE x (USE (\\Sent))\r\n',
        b'\x09a GETMETADATA (MAXSIZE 9 DEPTH infinity) "" (/private /shared)\r\na GETMETADATA x (DEPTH 1) /shared\r\n',
        b'\x20a APPEND x (\\Seen) "01-Jan-2020 12:00:00 +0000" {70+}\r\n' + b"x" * 70 + b"\r\n",
        b'\x05a APPEND x CATENATE (TEXT {0+}\r\n URL "/a;UIDVALIDITY=1/;UID=2/;SECTION=1" TEXT {1}\r\nc) {0}\r\n\r\n',
        b"\x07a APPEND x (a) CATENATE (URL {21+}\r\n;UID=1/;PARTIAL=0.10%4) CATENATE (TEXT ~{70+}\r\n"
        + b"x" * 70
        + b" URL x)\r\n",
        b'\x06a APPEND x UTF8 (~{1+}\r\n\xff) CATENATE (UTF8 (~{2}\r\nab) URL x)\r\na SELECT "\xc3\xa4&b"\r\n',
        b"\x03a UID FETCH 1:*,5 (FLAGS BODY.PEEK[1.2.HEADER.FIELDS (From To)]<0.9> ENVELOPE)\r\n",
        b"\x0aa FETCH 1:* (PREVIEW PREVIEW (LAZY) EMAILID THREADID)\r\na SEARCH OR EMAILID M1 THREADID T1\r\n",
        b"\x06a FETCH 1 SAVEDATE\r\na SEARCH SAVEDON 1-Feb-2020 SAVEDATESUPPORTED\r\n",
        b"\x0aa SEARCH CHARSET UTF-8 OR (SEEN NOT FROM x) UID 1:5 SINCE 1-Feb-2020 LARGER 9 BODY {2}\r\nab\r\n",
        b'\x0aa UID SEARCH RETURN (MIN SAVE) OLDER 9 $\r\na SORT RETURN () (REVERSE DATE SUBJECT) "UTF-8" ALL\r\n',
        b"\x0aa THREAD REFS UTF-8 YOUNGER 9 UID $\r\na FETCH $ FLAGS\r\n",
        b"\x0ba UID STORE 1 +FLAGS.SILENT (\\Deleted a)\r\na UID EXPUNGE 1\r\na MOVE 1:2 Trash\r\na IDLE\r\n",
        b"\x06a NOTIFY SET STATUS (selected (MessageNew (UID ENVELOPE) MessageExpunge)) (personal NONE)\r\n",
        b'\x08a NOTIFY SET (subtree (a "b") (MailboxName)) (mailboxes &Jjo- (MailboxName Odd))\r\na NOTIFY NONE\r\n',
        b"\x0ca SEARCH RETURN (UPDATE (UID BODY[TEXT])) ALL\r\n",
        b'\x0aa AUTHENTICATE PLAIN AGEAYg==\r\na ID ("name" NIL)\r\na EXAMINE "a\\"b\\\\"\r\n',
    ),
    words=(
        *(
            b" ",
            b"\r\n",
            b"\n",
            b"(",
            b")",
            b'"',
            b"\\",
            b"[",
            b"]",
            b"<0.1>",
            b"NIL",
            b"*",
            b"{3+}\r\n",
            b"{3}\r\n",
            b"{99}\r\n",
        ),
        *(b"&", b"-", b"&-", b"&APw-", b"&2AA-", b",", b":", b"9" * 19, b"4294967296", b"\xff", b"\0", b"99-Feb-0000"),
        *(
            b"a1 ",
            b"UID ",
            b"FETCH 1 ",
            b"SEARCH ",
            b"STORE 1 ",
            b"COPY 1 ",
            b"SELECT ",
            b"APPEND ",
            b"STATUS ",
            b"LIST ",
        ),
        *(
            b"CATENATE (",
            b"UTF8 (~{1+}\r\n",
            b"\xc3\xa4",
            b"TEXT ",
            b"URL ",
            b"~{2+}\r\n",
            b"/;UID=1",
            b"/;SECTION=",
            b";UIDVALIDITY=9",
            b"/;PARTIAL=1.2",
            b"%2F",
        ),
        *(
            b"NOTIFY SET ",
            b"NOTIFY NONE",
            b"(selected ",
            b"(selected-delayed ",
            b"(inboxes ",
            b"(personal ",
            b"(subscribed ",
            b"(subtree ",
            b"(mailboxes (",
            b"MessageNew ",
            b"MessageExpunge",
            b"FlagChange",
            b"AnnotationChange",
            b"MailboxName",
            b"SubscriptionChange",
            b"MailboxMetadataChange",
            b"ServerMetadataChange",
            b"NONE)",
            b"UPDATE (UID)",
        ),
        *(
            b"NOT ",
            b"OR ",
            b"SEEN ",
            b"BODY[",
            b"PREVIEW",
            b"SAVEDATE",
            b" (LAZY)",
            b"HEADER.FIELDS ",
            b"FLAGS ",
            b"+FLAGS ",
            b"(MESSAGES)",
            b"CHARSET ",
        ),
    ),
)
