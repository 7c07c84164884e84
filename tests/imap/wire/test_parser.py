from __future__ import annotations

import datetime as dt
import sys
from concurrent.futures import ThreadPoolExecutor
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.framing import Frame
from protocol.values import UidSet
from replicator.imap.wire import search_keys as k
from replicator.imap.wire.commands import command_types as c
from replicator.imap.wire.commands.command_parser import CommandParser, CommandSyntaxError, tag_of
from replicator.imap.wire.event_groups import EventGroup
from replicator.imap.wire.event_groups import MailboxFilter as F
from replicator.imap.wire.fetch_items import ALL, FAST, FULL, Attribute, BodySection, Partial, SectionText
from replicator.imap.wire.mailbox_names import encode_name
from replicator.imap.wire.responses import mailbox, quoted_or_literal
from replicator.imap.wire.sequence_set import SavedResult, SequenceSet
from replicator.imap.wire.sort_keys import SortCriterion, SortKey
from replicator.mail.mailstore import canonical_name
from tests.fuzz.target import counted_calls

PARSER = CommandParser()

ONE = SequenceSet(((1, 1),))
SEEN = k.Flagged("\\Seen")
NOON = 1_577_880_000_000  # 1 January 2020, 12:00 UTC, in ms


def parsed(text: bytes, *literals: bytes) -> c.Command:
    tagged = PARSER.parse(Frame(b"a1 " + text, literals))
    assert tagged.tag == "a1"
    return tagged.command


def searched(text: bytes, *literals: bytes) -> k.SearchKey:
    command = parsed(b"SEARCH " + text, *literals)
    assert isinstance(command, c.Search)
    return command.program.key


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (b"CAPABILITY", c.Capability()),
        (b"noop", c.Noop()),
        (b"Logout", c.Logout()),
        (b"STARTTLS", c.StartTls()),
        (b"NAMESPACE", c.Namespace()),
        (b"IDLE", c.Idle()),
        (b"CHECK", c.Check()),
        (b"CLOSE", c.Close()),
        (b"UNSELECT", c.Unselect()),
        (b"EXPUNGE", c.Expunge()),
        (b"UID EXPUNGE 3:*", c.Expunge(SequenceSet(((3, None),)))),
        (b"ID NIL", c.Id()),
        (b"ID ()", c.Id()),
        (b'ID ("name" "x" "version" NIL)', c.Id()),
        (b"AUTHENTICATE plain", c.Authenticate("PLAIN")),
        (b"AUTHENTICATE PLAIN =", c.Authenticate("PLAIN", b"=")),
        (b"AUTHENTICATE PLAIN AGEAYg==", c.Authenticate("PLAIN", b"AGEAYg==")),
        (rb'LOGIN bob "a\"b\\c"', c.Login(b"bob", b'a"b\\c')),
        (b'LOGIN b]b "\xc3\xa4"', c.Login(b"b]b", b"\xc3\xa4")),
        (b"SELECT inbox", c.Select("INBOX")),
        (b'EXAMINE "Entw&APw-rfe"', c.Select("Entwürfe", read_only=True)),
        (b"CREATE a/b", c.Create("a/b")),
        (b"CREATE a/b (USE ())", c.Create("a/b")),
        (rb"create a (use (\Drafts \sent))", c.Create("a", ("\\Drafts", "\\sent"))),
        (b'GETMETADATA "" /Shared/Comment', c.GetMetadata("", ("/shared/comment",))),
        (
            b'GETMETADATA (MAXSIZE 1024 DEPTH infinity) inbox (/private/comment "/shared/a b")',
            c.GetMetadata("INBOX", ("/private/comment", "/shared/a b"), 1024, inf),
        ),
        (b"GETMETADATA INBOX (DEPTH 1) (/private)", c.GetMetadata("INBOX", ("/private",), None, 1)),
        (b"GETMETADATA INBOX (/private)", c.GetMetadata("INBOX", ("/private",))),
        (
            b'SETMETADATA "" (/private/A NIL /shared/b "" /shared/c "x y")',
            c.SetMetadata("", (("/private/a", None), ("/shared/b", b""), ("/shared/c", b"x y"))),
        ),
        (b"DELETE a", c.Delete("a")),
        (b"RENAME a b", c.Rename("a", "b")),
        (b"SUBSCRIBE a", c.Subscribe("a")),
        (b"UNSUBSCRIBE a", c.Subscribe("a", subscribed=False)),
        (b"NOTIFY NONE", c.Notify()),
        (
            b"notify set STATUS (selected-DELAYED (messagenew (uid) messageexpunge)) (Personal none)",
            c.Notify(
                (
                    EventGroup(F.SELECTED_DELAYED, (), ("MESSAGENEW", "MESSAGEEXPUNGE"), (Attribute.UID,)),
                    EventGroup(F.PERSONAL, (), ()),
                ),
                status=True,
            ),
        ),
        (
            b'NOTIFY SET (subtree inbox/a (MailboxName)) (mailboxes ("b c" Entw&APw-rfe) (Future))',
            c.Notify(
                (
                    EventGroup(F.SUBTREE, ("INBOX/a",), ("MAILBOXNAME",)),
                    EventGroup(F.MAILBOXES, ("b c", "Entwürfe"), ("FUTURE",)),
                )
            ),
        ),
        (b'LIST "" *', c.ListMailboxes("", ("*",))),
        (b'LIST "" ""', c.ListMailboxes("", ("",))),
        (b'LIST () "" ""', c.ListMailboxes("", ("",), extended=True)),
        (b'LIST "" (a "b c")', c.ListMailboxes("", ("a", "b c"), extended=True)),
        (
            (
                b'LIST (subscribed REMOTE RecursiveMatch SPECIAL-USE) "" %'
                b" RETURN (Children STATUS (unseen SIZE) SUBSCRIBED)"
            ),
            c.ListMailboxes(
                "",
                ("%",),
                frozenset(c.ListSelection),
                frozenset({c.ListReturn.CHILDREN, c.ListReturn.SUBSCRIBED}),
                (c.StatusItem.UNSEEN, c.StatusItem.SIZE),
                extended=True,
            ),
        ),
        (b"LSUB a/ %b%", c.ListSubscriptions("a/", "%b%")),
        (b"STATUS a (messages UIDNEXT)", c.Status("a", (c.StatusItem.MESSAGES, c.StatusItem.UIDNEXT))),
        (b"FETCH 1 ALL", c.Fetch(ONE, ALL)),
        (b"FETCH 1 fast", c.Fetch(ONE, FAST)),
        (b"UID FETCH 1 FULL", c.Fetch(ONE, FULL, by_uid=True)),
        (b"FETCH *:2,7 UID", c.Fetch(SequenceSet(((None, 2), (7, 7))), (Attribute.UID,))),
        (b"FETCH 1 (BODY RFC822 BODY[])", c.Fetch(ONE, (Attribute.BODY, Attribute.RFC822, BodySection()))),
        (b"STORE 1 +FLAGS (\\Seen x)", c.Store(ONE, c.StoreAction.ADD, ("\\Seen", "x"))),
        (b"STORE 1 -flags.silent y z", c.Store(ONE, c.StoreAction.REMOVE, ("y", "z"), silent=True)),
        (b"ENABLE condstore X-Y", c.Enable(("CONDSTORE", "X-Y"))),
        (b"SELECT a (condstore)", c.Select("a", condstore=True)),
        (b"EXAMINE a (QRESYNC (5 6))", c.Select("a", read_only=True, resync=c.Resync(5, 6))),
        (
            b"SELECT a (CONDSTORE QRESYNC (5 6 1:9,3 (1,3 2:3)))",
            c.Select(
                "a",
                condstore=True,
                resync=c.Resync(5, 6, UidSet(((1, 9),)), c.MatchData(UidSet.of([1, 3]), UidSet.of([2, 3]))),
            ),
        ),
        (
            b"SELECT a (QRESYNC (5 6 (1 2)))",
            c.Select("a", resync=c.Resync(5, 6, None, c.MatchData(UidSet.of([1]), UidSet.of([2])))),
        ),
        (b"FETCH 1 UID (CHANGEDSINCE 7)", c.Fetch(ONE, (Attribute.UID,), 7)),
        (
            b"UID FETCH 1 MODSEQ (VANISHED CHANGEDSINCE 7)",
            c.Fetch(ONE, (Attribute.MODSEQ,), 7, vanished=True, by_uid=True),
        ),
        (b"STORE 1 (UNCHANGEDSINCE 0) FLAGS ()", c.Store(ONE, c.StoreAction.REPLACE, (), unchanged_since=0)),
        (b"UID STORE 1 FLAGS ()", c.Store(ONE, c.StoreAction.REPLACE, (), by_uid=True)),
        (b"COPY 1 a", c.Copy(ONE, "a")),
        (b"UID MOVE 1 inBOX/x", c.Copy(ONE, "INBOX/x", remove=True, by_uid=True)),
    ],
)
def test_commands_are_parsed(text: bytes, command: c.Command) -> None:
    assert parsed(text) == command


@pytest.mark.parametrize(
    ("item", "value"),
    [
        (b"BODY.PEEK[]", BodySection(peek=True)),
        (b"body[1.2]", BodySection((1, 2))),
        (b"BODY[TEXT]<0.5>", BodySection(text=SectionText.TEXT, partial=Partial(0, 5))),
        (b"BODY[3.HEADER]", BodySection((3,), SectionText.HEADER)),
        (b"BODY[3.1.MIME]", BodySection((3, 1), SectionText.MIME)),
        (b'BODY[HEADER.FIELDS (Date "To")]', BodySection((), SectionText.HEADER_FIELDS, ("Date", "To"))),
        (b"BODY[2.HEADER.FIELDS.NOT (X-Y)]", BodySection((2,), SectionText.HEADER_FIELDS_NOT, ("X-Y",))),
        (b"RFC822.HEADER", Attribute.RFC822_HEADER),
        (b"rfc822.size", Attribute.RFC822_SIZE),
        (b"RFC822.TEXT", Attribute.RFC822_TEXT),
        (b"BODYSTRUCTURE", Attribute.BODYSTRUCTURE),
        (b"EMAILID", Attribute.EMAILID),
        (b"preview", Attribute.PREVIEW),
        (b"PREVIEW (LAZY)", Attribute.PREVIEW_LAZY),
        (b"PREVIEW (lazy LAZY)", Attribute.PREVIEW_LAZY),
    ],
)
def test_fetch_items_are_parsed(item: bytes, value: Attribute | BodySection) -> None:
    assert parsed(b"FETCH 1 " + item) == c.Fetch(ONE, (value,))
    assert parsed(b"FETCH 1 (UID " + item + b" FLAGS)") == c.Fetch(ONE, (Attribute.UID, value, Attribute.FLAGS))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b"ALL", k.All()),
        (b"unseen", k.Not(SEEN)),
        (b"2:4 SEEN", k.And((k.SequenceNumbers(SequenceSet(((2, 4),))), SEEN))),
        (b"OR SEEN NOT (SEEN UID 7)", k.Or(SEEN, k.Not(k.And((SEEN, k.Uids(SequenceSet(((7, 7),)))))))),
        (b'FROM "x y"', k.AddressContains("FROM", b"x y")),
        (b"SUBJECT x", k.HeaderContains("SUBJECT", b"x")),
        (b"HEADER X-A b", k.HeaderContains("X-A", b"b")),
        (b"BODY b", k.BodyContains(b"b")),
        (b"TEXT t", k.TextContains(b"t")),
        (b"KEYWORD $Junk UNKEYWORD a", k.And((k.Flagged("$Junk"), k.not_flagged("a")))),
        (b"LARGER 10 SMALLER 20", k.And((k.Larger(10), k.Smaller(20)))),
        (b'SINCE "1-Feb-2020"', k.Received(k.Relation.SINCE, dt.date(2020, 2, 1))),
        (b"sentbefore 29-feb-2020", k.Sent(k.Relation.BEFORE, dt.date(2020, 2, 29))),
        (b"savedsince 1-Feb-2020", k.SaveDate(k.Relation.SINCE, dt.date(2020, 2, 1))),
        (b'SAVEDBEFORE "1-Feb-2020"', k.SaveDate(k.Relation.BEFORE, dt.date(2020, 2, 1))),
        (b"SAVEDON 1-Feb-2020 SAVEDATESUPPORTED", k.And((k.SaveDate(k.Relation.ON, dt.date(2020, 2, 1)), k.All()))),
        (b"ON 01-Feb-2020", k.Received(k.Relation.ON, dt.date(2020, 2, 1))),
        (b"EMAILID Mabc", k.EmailId("Mabc")),
        (b"THREADID T", k.ThreadId("T")),
        (b"$ uid $", k.And((k.Saved(), k.Saved()))),
        (
            b"OLDER 1 younger 4294967296",
            k.And((k.ReceivedWithin(1, younger=False), k.ReceivedWithin(2**32, younger=True))),
        ),
        (b"OLD OLDER 7", k.And((k.PLAIN_KEYS["OLD"], k.ReceivedWithin(7, younger=False)))),
    ],
)
def test_search_keys_are_parsed(text: bytes, key: k.SearchKey) -> None:
    assert searched(text) == key


@pytest.mark.parametrize(
    ("text", "returns"),
    [
        (b"", None),
        (b"RETURN () ", {"ALL"}),
        (b"return (min Max) CHARSET UTF-8 ", {"MIN", "MAX"}),
        (b"RETURN (SAVE COUNT ALL) ", {"SAVE", "COUNT", "ALL"}),
    ],
)
def test_result_options_are_parsed(text: bytes, returns: set[str] | None) -> None:
    command = parsed(b"SEARCH " + text + b"ALL")
    assert isinstance(command, c.Search)
    assert (None if command.returns is None else {option.value for option in command.returns.options}) == returns


@pytest.mark.parametrize("option", [*k.ReturnOption])
def test_the_grammar_has_every_result_option(option: k.ReturnOption) -> None:
    command = parsed(f"UID SEARCH RETURN ({option.value}) ALL".encode())
    assert command == c.Search(k.SearchProgram(k.All()), k.Returns(frozenset({option})), by_uid=True)


def test_sort_is_parsed() -> None:
    """RFC 5256 section 5; RFC 5267 section 3 for the options."""
    command = parsed(b"UID SORT RETURN (COUNT) (reverse Date SUBJECT) {5}\r\n SEEN 2:4", b"UTF-8")
    criteria = (SortCriterion(SortKey.DATE, reverse=True), SortCriterion(SortKey.SUBJECT))
    program = k.SearchProgram(k.And((SEEN, k.SequenceNumbers(SequenceSet(((2, 4),))))), "UTF-8")
    assert command == c.Sort(criteria, program, k.Returns(frozenset({k.ReturnOption.COUNT})), by_uid=True)


@pytest.mark.parametrize("algorithm", [*c.ThreadAlgorithm])
def test_thread_is_parsed(algorithm: c.ThreadAlgorithm) -> None:
    command = parsed(f"UID THREAD {algorithm.value.lower()} UTF-8 SEEN".encode())
    assert command == c.Thread(algorithm, k.SearchProgram(SEEN, "UTF-8"), by_uid=True)


@pytest.mark.parametrize("key", [*SortKey])
def test_the_grammar_has_every_sort_key(key: SortKey) -> None:
    command = parsed(f"SORT ({key.value.lower()}) UTF-8 ALL".encode())
    assert command == c.Sort((SortCriterion(key),), k.SearchProgram(k.All(), "UTF-8"))


def test_partial_results_are_parsed() -> None:
    """RFC 5267 section 4.4."""
    for text, partial in ((b"PARTIAL 1:500", (1, 500)), (b"COUNT PARTIAL 9:5 UPDATE", (5, 9))):
        command = parsed(b"SEARCH RETURN (" + text + b") ALL")
        assert isinstance(command, c.Search)
        assert command.returns is not None
        assert command.returns.partial == partial
        assert k.ReturnOption.ALL not in command.returns
    assert parsed(b'CANCELUPDATE "B01" "b\\"2"') == c.CancelUpdate(("B01", 'b"2'))


@pytest.mark.parametrize("verb", ["FETCH $ UID", "STORE $ FLAGS x", "COPY $ x", "MOVE $ x"])
def test_a_saved_result_stands_for_a_sequence_set(verb: str) -> None:
    for text in (verb, "UID " + verb):
        command = parsed(text.encode())
        assert isinstance(command, c.Fetch | c.Store | c.Copy)
        assert command.numbers == SavedResult()
    assert parsed(b"UID EXPUNGE $") == c.Expunge(SavedResult())


HEADER_KEYS = ("BCC", "CC", "FROM", "SUBJECT", "TO")


@pytest.mark.parametrize("name", [*k.PLAIN_KEYS, *HEADER_KEYS, *k.RECEIVED_KEYS, *k.SENT_KEYS])
def test_the_grammar_has_every_search_key(name: str) -> None:
    argument = " 1-Jan-2020" if name in {*k.RECEIVED_KEYS, *k.SENT_KEYS} else " x" if name in HEADER_KEYS else ""
    searched((name.lower() + argument).encode())


@pytest.mark.parametrize("item", [*Attribute])
def test_the_grammar_has_every_attribute(item: Attribute) -> None:
    assert parsed(f"FETCH 1 {item.value}".encode()) == c.Fetch(ONE, (item,))


def test_search_charset_and_literals_are_parsed() -> None:
    command = parsed(b"UID SEARCH CHARSET utf-8 SUBJECT {2}\r\n OR TO {1+}\r\n ALL", b"\xc3\xa4", b"x")
    key = k.And((k.HeaderContains("SUBJECT", b"\xc3\xa4"), k.Or(k.AddressContains("TO", b"x"), k.All())))
    assert command == c.Search(k.SearchProgram(key, "utf-8"), by_uid=True)


@pytest.mark.parametrize(
    "text", [b'LOGIN a "\xe4"', b'SELECT "\xc3"', b'SEARCH SUBJECT "\xf0\x9f"', b'APPEND x CATENATE (URL "\xff")']
)
def test_quoted_string_must_be_utf_8(text: bytes) -> None:
    """RFC 6855 section 3."""
    with pytest.raises(CommandSyntaxError, match="a quoted string must be UTF-8"):
        parsed(text)


@pytest.mark.parametrize(
    ("encoded", "modified_utf_7", "utf_8"),
    [(b"Entw&APw-rfe", "Entwürfe", "Entw&APw-rfe"), (b"a&-b", "a&b", "a&-b"), ("ä&-".encode(), "ä&-", "ä&-")],
)
def test_names_are_read_as_the_client_writes_them(encoded: bytes, modified_utf_7: str, utf_8: str) -> None:
    frame = Frame(b"a SELECT {9}\r\n", (encoded,))
    assert PARSER.parse(frame).command == c.Select(modified_utf_7)
    assert PARSER.parse(frame, utf8=True).command == c.Select(utf_8)
    assert PARSER.parse(Frame(b"a LSUB {9}\r\n %", (encoded,)), utf8=True).command == c.ListSubscriptions(utf_8, "%")
    assert PARSER.parse(Frame(b"a SELECT a&b", ())).bad_name is not None
    assert PARSER.parse(Frame(b"a SELECT a&b", ()), utf8=True).command == c.Select("a&b")
    assert PARSER.parse(Frame(b"a SELECT {1}\r\n", (b"\xff",)), utf8=True).bad_name is not None


STORED = c.StoredPart(b"/INBOX/;UID=1")


@pytest.mark.parametrize(
    ("text", "literals", "parts", "within"),
    [
        (b"{1}\r\n", [b"x"], [(b"x",)], c.Within.NOTHING),
        (b"catenate (text {1+}\r\n)", [b"x"], [(b"x",)], c.Within.NOTHING),
        (b'CATENATE (URL "/INBOX/;UID=1")', [], [(STORED,)], c.Within.NOTHING),
        (b"CATENATE (URL {13}\r\n TEXT ~{1}\r\n)", [STORED.url, b"\0"], [(STORED, b"\0")], c.Within.NOTHING),
        (b"CATENATE (TEXT {1}\r\n", [b""], [(b"",)], c.Within.CATENATE),
        (b"CATENATE (URL /INBOX/;UID=1 TEXT {1}\r\n", [b""], [(STORED, b"")], c.Within.CATENATE),
        (b"UTF8 (~{1}\r\n)", [b"x"], [(b"x",)], c.Within.NOTHING),
        (b"utf8 (~{1+}\r\n", [b""], [(b"",)], c.Within.UTF8),
        (b"CATENATE (utf8 (~{1+}\r\n) URL /INBOX/;UID=1)", [b"x"], [(b"x", STORED)], c.Within.NOTHING),
        (b"CATENATE (UTF8 (~{1}\r\n", [b""], [(b"",)], c.Within.CATENATE_UTF8),
        (b"CATENATE (TEXT {1}\r\n UTF8 (~{1}\r\n", [b"x", b""], [(b"x", b"")], c.Within.CATENATE_UTF8),
        (b"{1}\r\n () {1}\r\n", [b"x", b"y"], [(b"x",), (b"y",)], c.Within.NOTHING),
        (
            b"{1}\r\n CATENATE (TEXT {1}\r\n) {1}\r\n () CATENATE (URL /INBOX/;UID=1 TEXT {1}\r\n",
            [b"x", b"y", b"z", b""],
            [(b"x",), (b"y",), (b"z",), (STORED, b"")],
            c.Within.CATENATE,
        ),
    ],
)
def test_parts_of_messages_are_parsed_as_far_as_they_have_come(
    text: bytes, literals: list[bytes], parts: list[tuple[bytes | c.StoredPart, ...]], within: c.Within
) -> None:
    """RFC 4469 section 5."""
    command = parsed(b"APPEND a " + text, *literals)
    assert command == c.Append("a", tuple(c.AppendedMessage((), None, some) for some in parts), within)


@pytest.mark.parametrize("within", c.Within)
def test_command_up_to_a_literal_can_be_parsed(within: c.Within) -> None:
    command = PARSER.parse(Frame(within.value, (b"",))).command
    assert command == c.Append("m", (c.AppendedMessage((), None, (b"",)),), within)


@pytest.mark.parametrize(
    "text",
    [
        *(
            b"CATENATE",
            b"CATENATE ()",
            b"CATENATE (TEXT x)",
            b"CATENATE (URL)",
            b"CATENATE ( URL x)",
            b"CATENATE (URL x )",
        ),
        *(
            b"CATENATE (URL x)URL",
            b"CATENATE (URL x) ",
            b"CATENATE URL x",
            b"CATENATE (URL x (URL x))",
            b"TEXT {1}\r\n",
        ),
        *(
            b"UTF8 ({1}\r\n)",
            b"UTF8 ~{1}\r\n",
            b"UTF8 (~{1}\r\n {1}\r\n",
            b"CATENATE (UTF8 (~{1}\r\n URL x)",
            b"UTF8 (x)",
        ),
        *(b"CATENATE (URL x) (URL y)", b"CATENATE (TEXT {1}\r\n {1}\r\n)", b"CATENATE (TEXT {1}\r\n TEXT)"),
    ],
)
def test_invalid_parts_are_refused(text: bytes) -> None:
    with pytest.raises(CommandSyntaxError, match="Expected"):
        parsed(b"APPEND a " + text, b"x", b"x")


@pytest.mark.parametrize(
    ("text", "section"),
    [
        ("", BodySection()),
        ("2.1", BodySection((2, 1))),
        ("1.mime", BodySection((1,), SectionText.MIME)),
        ("2.HEADER.FIELDS (To)", BodySection((2,), SectionText.HEADER_FIELDS, ("To",))),
    ],
)
def test_section_is_parsed_alone(text: str, section: BodySection) -> None:
    assert PARSER.section(text) == section


@pytest.mark.parametrize("text", ["MIME", "1.", "0", "1]", "1]<0.1>", "HEADER.FIELDS", "HEADER.FIELDS (a:)", "\xff"])
def test_invalid_section_is_refused(text: str) -> None:
    with pytest.raises(CommandSyntaxError, match="is not a section of a message"):
        PARSER.section(text)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("SEARCH TEXT CAFÉ", 18),
        ("SEARCH (TEXT CAFÉ)", 19),
        ("CREATE Entwürfe", 14),
        ("SELECT é", 10),
        ('LIST "" Entwü%', 15),
        ("LOGIN zoë secret", 11),
    ],
)
def test_characters_outside_ascii_need_quotes_or_a_literal(text: str, column: int) -> None:
    with pytest.raises(CommandSyntaxError) as refused:
        PARSER.parse(Frame(b"x " + text.encode(), ()))
    said, _, advice = str(refused.value).partition("; ")
    assert said.endswith(f" at column {column}")
    assert advice == (
        "characters outside ASCII need a literal, or quotes if you have sent ENABLE UTF8=ACCEPT or ENABLE IMAP4rev2"
    )


@pytest.mark.parametrize("text", ["STORE 1 FLAGS (é)", "STORE 1 FLAGS (Café)", "SEARCH KEYWORD Café", "FETCH 1 é"])
def test_where_no_string_may_stand_nobody_is_told_to_write_one(text: str) -> None:
    with pytest.raises(CommandSyntaxError, match=r"Expected .* at column \d+$"):
        PARSER.parse(Frame(b"x " + text.encode(), ()))


@pytest.mark.parametrize(
    ("options", "flags", "received_ms"),
    [
        (b"", (), None),
        (b"(\\Seen x) ", ("\\Seen", "x"), None),
        (b"() ", (), None),
        (b"( \\Seen x) ", ("\\Seen", "x"), None),
        (b"( ) ", (), None),
        (b'" 1-Jan-2020 13:00:00 +0100" ', (), NOON),
        (b'(x) "01-jan-2020 04:30:00 -0730" ', ("x",), NOON),
    ],
)
def test_append_options_are_parsed(options: bytes, flags: tuple[str, ...], received_ms: int | None) -> None:
    command = parsed(b"APPEND {1}\r\n " + options + b"{4+}\r\n", b"a", b"\x00\r\n\xff")
    assert command == c.Append("a", (c.AppendedMessage(flags, received_ms, (b"\x00\r\n\xff",)),))


@pytest.mark.parametrize(
    ("text", "tag", "message"),
    [
        (b"", None, "Expected a tag at the end"),
        (b"+ NOOP", None, "Expected a tag at column 1"),
        (b"x", "x", "Expected the name of a command at the end"),
        (b"x FROB", "x", "Unknown command FROB"),
        (b"x \x00\xe4" + b"y" * 10_000, "x", "Unknown command ??" + "Y" * 30 + "..."),
        (b"x  NOOP", "x", "Expected the name of a command at column 3"),
        (b"x NOOP ", "x", "Expected the end of the command at column 7"),
        (b"x NOOPS", "x", "Unknown command NOOPS"),
        (b"x SELECT", "x", "Expected an argument at the end"),
        (b"x LOGIN alice", "x", "Expected an argument at the end"),
        (b"x LOGIN(", "x", "Unknown command LOGIN("),
        (b'x SELECT "a', "x", "The quoted string at column 10 has no end"),
        (b"x SELECT a b", "x", "Expected ( at column 12"),
        (b"x GETMETADATA (DEPTH 2) a /private", "x", "Expected 0 or 1 or infinity at column 22"),
        (b"x GETMETADATA (DEPTH 10) a /private", "x", "Expected 0 or 1 or infinity at column 22"),
        (b"x GETMETADATA (MAXSIZE 99999999999999999999) a /private", "x", "The number at column 24 is too large"),
        (b"x GETMETADATA a (MAXSIZE 99999999999999999999) /private", "x", "The number at column 26 is too large"),
        (b"x FETCH 7:99999999999 FLAGS", "x", "The number at column 11 is too large"),
        (b"x FETCH 1 BODY[1234567890]", "x", "The number at column 16 is too large"),
        (b"x SELECT a (CONDSTORE CONDSTORE)", "x", "each parameter may stand once"),
        (b"x SELECT a (QRESYNC (1 0))", "x", "Expected a number above 0 at column 24"),
        (b"x SELECT a (QRESYNC (1 1 1:*))", "x", "what a client knows already has no *"),
        (b"x SELECT a (QRESYNC (4294967296 1))", "x", "4294967296 is more than 4294967295"),
        (b"x SELECT a (QRESYNC (1 9223372036854775808))", "x", "9223372036854775808 is more than 9223372036854775807"),
        (b"x SELECT a (QRESYNC (1 1 1:9 (1,2 7)))", "x", "there are 2 sequence numbers and 1 UIDs to match"),
        (b"x STORE 1 +FLAGS (\\recent)", "x", "only the server sets \\Recent"),
        (b"x FETCH 0 FLAGS", "x", "Expected a sequence set at column 9"),
        (b"x FETCH 4294967296 FLAGS", "x", "4294967296 is more than 4294967295, the largest number of a message"),
        (b"x FETCH 1 BODY[1TEXT]", "x", "Expected ] or a full stop at column 17"),
        (b"x FETCH 1 BODY[HEADER.FIELDS (a:b)]", "x", "b'a:b' is not the name of a header field"),
        (b"x FETCH 1 BODY[]<0.0>", "x", "Expected a number above 0 at column 20"),
        (b"x FETCH 1 (PREVIEW (FUZZY))", "x", "Expected BODY[ or the name of a FETCH item at column 20"),
        (b"x FETCH 1 (FLAGS FROB)", "x", "Expected BODY[ or the name of a FETCH item at column 18"),
        (b'x SEARCH MODSEQ "/flags/a" foo 3', "x", "Expected all or priv or shared at column 28"),
        (
            b'x SEARCH MODSEQ "/foo" all 3',
            "x",
            r'Expected a number or the name of a flag, such as "/flags/\\draft", at column 17',
        ),
        (b'x LOGIN "alice\\"', "x", "The quoted string at column 9 has no end"),
        (b"x STATUS a ()", "x", "Expected the name of a STATUS item at column 13"),
        (b"x SEARCH FROB", "x", "Expected a search key at column 10"),
        (b"x THREAD JWZ UTF-8 ALL", "x", "Expected the name of a threading algorithm at column 10"),
        (b"x SEARCH RETURN (ALL PARTIAL 1:2) ALL", "x", "RETURN may have one PARTIAL or ALL"),
        (b"x SEARCH RETURN (PARTIAL 1:2 PARTIAL 3:4) ALL", "x", "RETURN may have one PARTIAL or ALL"),
        (b"x SEARCH RETURN (PARTIAL 1:*) ALL", "x", "Expected a number above 0 at column 28"),
        (b"x SEARCH RETURN (PARTIAL 1:4294967296) ALL", "x", "4294967296 is more than 4294967295"),
        (b"x SEARCH ON 31-Feb-2020", "x", "31-Feb-2020 is not a valid date"),
        (b"x SEARCH LARGER 9999999999999999999", "x", "9999999999999999999 is more than 9223372036854775807"),
        (b"x SEARCH " + b"NOT " * 60 + b"ALL", "x", "the search keys nest deeper than 50"),
        (b"x SEARCH " + b"(" * 60 + b"ALL" + b")" * 60, "x", "the search keys nest deeper than 50"),
        (b"x SEARCH " + b"OR ALL " * 60 + b"ALL", "x", "the search keys nest deeper than 50"),
    ],
)
def test_syntax_errors_say_what_was_expected(text: bytes, tag: str | None, message: str) -> None:
    with pytest.raises(CommandSyntaxError) as raised:
        PARSER.parse(Frame(text, ()))
    assert raised.value.tag == tag == tag_of(text)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("zone", [b"+9999", b"-9999"])
def test_extreme_time_zones_are_accepted(zone: bytes) -> None:
    assert isinstance(parsed(b'APPEND a "01-Jan-0001 00:00:00 ' + zone + b'" {0}\r\n', b""), c.Append)


@pytest.mark.parametrize("time", [b"00-Jan-2020 00:00:00", b"01-Jan-2020 24:00:00", b"01-Jan-0000 00:00:00"])
def test_invalid_times_are_refused(time: bytes) -> None:
    with pytest.raises(CommandSyntaxError, match="is not a valid "):
        parsed(b'APPEND a "' + time + b' +0000" {0}\r\n', b"")


# ---- properties ------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
WORDS = st.sampled_from(
    b'a1 fetch search 1:* ( ) " \\ FLAGS body[ ] <0.1> {0}\r\n {3+}\r\n not or uid store append a % *'.split(b" ")
)
HOSTILE = st.one_of(st.binary(max_size=60), st.lists(WORDS, max_size=14).map(b" ".join))


@given(NAMES)
def test_a_printed_mailbox_name_is_read_back(name: str) -> None:
    printed = mailbox(name)
    literals = () if printed[:1] == b'"' else (encode_name(name),)
    text = printed if not literals else printed[: printed.index(b"\n") + 1]
    assert parsed(b"SELECT " + text, *literals) == c.Select(canonical_name(name))


@given(st.binary(max_size=40))
def test_a_printed_string_is_read_back(octets: bytes) -> None:
    chunks = quoted_or_literal(octets)
    text, literals = (chunks[0], (chunks[1],)) if len(chunks) == 2 else (b"".join(chunks), ())
    assert searched(b"BODY " + text, *literals) == k.BodyContains(octets.replace(b"\0", b"\x80"))


@given(HOSTILE)
def test_hostile_input_gives_a_command_or_one_error(text: bytes) -> None:
    frame = Frame(text, (b"x",) * text.count(b"\r\n"))
    try:
        tag: str | None = PARSER.parse(frame).tag
    except CommandSyntaxError as error:
        tag = error.tag
    assert tag == tag_of(text)


def test_threads_parse_at_the_same_time() -> None:
    parser = CommandParser()

    def parse(name: bytes) -> set[object]:
        text = b"t SEARCH " + b" ".join([b"HEADER {1}\r\n {1}\r\n"] * 20)
        return {parser.parse(Frame(text, (name,) * 40)).command for _ in range(10)}

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            parsed = list(pool.map(parse, (b"a", b"b")))
    finally:
        sys.setswitchinterval(before)
    for name, commands in zip(("a", "b"), parsed, strict=True):
        assert commands == {c.Search(k.SearchProgram(k.And((k.HeaderContains(name, name.encode()),) * 20)))}


def test_long_names_of_header_fields_are_not_checked_octet_by_octet() -> None:
    """A command may have a megabyte of them, and is read on the event loop."""
    parsed(b"FETCH 1 BODY[HEADER.FIELDS ({1}\r\n)]", b"x")
    with counted_calls() as work:
        parsed(b"FETCH 1 BODY[HEADER.FIELDS ({60000}\r\n)]", b"x" * 60_000)
    assert work.calls < 10_000
