"""The grammar, the formatter and the strategies know the same commands: those of `protocol.commands`."""

import re
from dataclasses import fields
from importlib.resources import files
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import commands as c
from protocol.checksum import CHECKED, check_of
from protocol.parser import ChangedError, terminal
from protocol.stream_codec import Decoder, Encoder, ProtocolError, Request, Response
from protocol.values import Dot, UidSet
from tests.mutating import Mutator
from tests.protocol import strategies

# The table of design section 4: a frame for every verb, with the class that it becomes.
VERBS: list[tuple[str, type]] = [
    ("a HELLO 1 dc1 dc1.b3 mail () 0", c.Hello),
    ("a PING", c.Ping),
    ("* LINKS ()", c.Links),
    ("a ROOT 1 dc1", c.Root),
    ("a DROPPED 1 dc1 ()", c.Dropped),
    ("a WHO 5 ann dc1", c.Who),
    ("a MASTER-MOVE 1 5 dc1", c.MasterMove),
    (f"a MBOX 1 ann INBOX {'0' * 32} 1 1 0 0 NIL NIL", c.Mbox),
    (f"a MBOX 1 ann INBOX {'0' * 32} 1 1 0 0 NIL NIL TO dc2 TEXTS", c.Mbox),
    (f"a MBOX 1 ann INBOX {'0' * 32} 1 1 0 0 NIL NIL TO dc2 TO-MASTER", c.Mbox),
    (f"a SAVE (1) 0 {'0' * 32} () HASH {'0' * 64} {{0+}}\r\n", c.Save),
    (f"a SAVE (1) 0 {'0' * 32} () PARTS {'0' * 64} 1 {{0+}}\r\n", c.Save),
    (f"a SAVE-ALL 1 0 {'0' * 32} () HASH {'0' * 64} {{0+}}\r\n", c.SaveAll),
    (f"a SAVE-ALL 1 0 {'0' * 32} () UID 7 HASH {'0' * 64} {{0+}}\r\n", c.SaveAll),
    ("a RAISE 1 17 MODSEQ 40", c.Raise),
    (f"a RENUMBER 1 3:4 ({'0' * 32} {'1' * 32}) (17 19)", c.Renumber),
    (f"a COPY 1 2 3 ({'0' * 32}) 0 ()", c.Copy),
    ("a EXPUNGE 1 1:3", c.Expunge),
    ("a STORE 1 1:3 ADD () REMOVE ()", c.Store),
    (f"a CREATE ann Work {'0' * 32} 1", c.Create),
    (f"a RENAME ann {'0' * 32} Work", c.Rename),
    (f"a DELETE ann {'0' * 32}", c.Delete),
    ("a SUBSCRIBE ann Work", c.Subscribe),
    ("a UNSUBSCRIBE ann Work", c.Subscribe),
    (f"a ANNOTATE ann {'0' * 32} {{0+}}\r\n", c.Annotate),
    ("a ANNOTATE ann NIL {0+}\r\n", c.Annotate),
    (f"* MERGE 1 ENTRY (dc1.b3:2 () 0 0 {'0' * 32} 0 1 ()) {{0+}}\r\n", c.Merge),
    (f"* REMOTE 1 ENTRY (dc1.b3:2 () 0 0 {'0' * 32} 0 101 NIL) mail/entries/dc1.b3/2", c.Remote),
    (f"a OFFER PARTS {'0' * 64} 1 {{0+}}\r\n", c.Offer),
    ("a SYNC NODE", c.SyncNode),
    ("a SYNC MAILBOX 1", c.SyncMailbox),
    ("a SYNC MAILBOX 1 ANEW TO dc2", c.SyncMailbox),
    ("a RANGES 1 ()", c.Ranges),
    ("a ROWS 1 {0+}\r\n", c.Rows),
    ("a SYNC END 1", c.SyncEnd),
    ("a FETCH UID 1 1", c.FetchUid),
    (f"a FETCH GUID {'0' * 32}", c.FetchGuid),
    (f"a FETCH HASH {'0' * 64}", c.FetchHash),
    ("a FETCH BODIES {0+}\r\n", c.FetchBodies),
    ("a FETCH CHECKPOINTS {0+}\r\n", c.FetchCheckpoints),
    (f"a FETCH PART {'0' * 64} 0", c.FetchPart),
    ("a LOG ()", c.Log),
    ("a LOG () INLINE", c.Log),
    ("* ENTRIES {0+}\r\n", c.Entries),
    ("* ACK dc1.b3:1", c.Ack),
    ("* SETTLED dc1 1 ()", c.Settled),
    ("a OK HELLO 1 dc1 dc1.b3 mail () 0", c.Hello),
    ("a OK", c.Done),
    ("a OK ENTRY dc1.b3:1", c.Done),
    ("a OK MASTER dc1", c.Master),
    ("a OK MOVED global NIL", c.Moved),
    ("a OK SAVED () ()", c.Saved),
    ("a OK STORED NIL 0", c.Stored),
    ("a OK MISMATCH () NIL ()", c.Mismatch),
    (f"a OK PARTS {'0' * 64} 1 {{0+}}\r\n", c.Parts),
    (f"a OK SNAPSHOT 1 0 0 0 NIL () NIL 0 {'0' * 32} 0 {'0' * 32}", c.Snapshot),
    ("a OK CONTENT {0+}\r\n", c.Content),
    ('a NO TOO-OLD "use SYNC"', c.Refused),
]


def with_check(text: str, kind: type) -> bytes:
    """Append the CHECK that the frame needs; no frame of the table with a CHECK has a literal."""
    return text.encode() + (
        b" CHECK " + check_of(text.encode(), ()).hex().encode() if issubclass(kind, CHECKED) else b""
    )


def content_of(item: object) -> object:
    assert isinstance(item, Request | Response)
    return item.command if isinstance(item, Request) else item.reply


@pytest.mark.parametrize(("text", "kind"), VERBS, ids=[text[:16] for text, _ in VERBS])
def test_grammar_accepts_every_verb(text: str, kind: type) -> None:
    data = with_check(text, kind) + b"\r\n"
    [item] = Decoder().feed(data)
    assert isinstance(item, Request | Response)
    assert type(content_of(item)) is kind
    assert Encoder().batch([item]) == data


@pytest.mark.parametrize(("text", "kind"), [(text, kind) for text, kind in VERBS if issubclass(kind, CHECKED)])
def test_changed_octet_of_a_checked_frame_is_refused(text: str, kind: type) -> None:
    data = with_check(text, kind)
    for at, octet in enumerate(data):
        with pytest.raises(ProtocolError):
            list(Decoder().feed(data[:at] + bytes([octet ^ 1]) + data[at + 1 :] + b"\r\n"))


@pytest.mark.parametrize(
    "command",
    [
        c.Links((c.LinkAdvert("dc1.a", 100, 17, (("dc2", 350),)), c.LinkAdvert("dc2.b", 100, 4, (("dc1", 910),)))),
        c.Settled("dc1", 17, (Dot("dc1.a", 9), Dot("dc2.b", 12))),
    ],
)
def test_checked_frame_changed_by_a_bad_line_is_refused(command: c.Command) -> None:
    data = Encoder().request(None, command)
    line = Mutator(Random(1), rate=1)
    for _ in range(200):
        changed = line.commands(data)
        if changed != data:
            with pytest.raises(ChangedError):
                list(Decoder().feed(changed))
    assert line.counts[type(command).__name__] > 100


def test_changed_literal_of_a_checked_frame_is_refused() -> None:
    data = Encoder().request(None, c.Mbox(1, "\u00e4nn", "INBOX", b"x" * 16, 1))
    with pytest.raises(ChangedError, match="the connection changes what it carries"):
        list(Decoder().feed(data.replace("\u00e4".encode(), "\u00eb".encode())))


def test_table_has_every_command_and_reply() -> None:
    assert {kind for _, kind in VERBS} == set(get_args(c.Command)) | set(get_args(c.Reply))


@pytest.mark.parametrize("kind", [*strategies.COMMANDS, *strategies.REPLIES])
@settings(max_examples=1)
@given(data=st.data())
def test_every_class_has_a_strategy(kind: type, data: st.DataObject) -> None:
    value = data.draw(strategies.of_class(kind))
    assert isinstance(value, kind)
    assert {member.name for member in fields(kind)} <= set(strategies.FIELDS)


def test_every_rule_cites_its_design_section() -> None:
    grammar = files("protocol").joinpath("protocol.lark").read_text("ascii")
    commands = grammar[grammar.index("// ---- frames") : grammar.index("// ---- values")]
    for block in commands.split("\n\n"):
        if re.search(r"^\??[a-z_]+:", block, re.MULTILINE) and not block.startswith(("_command", "_reply")):
            assert re.search(r"^// .*design sections? \d", block, re.MULTILINE | re.IGNORECASE), block


def test_refusal_codes_can_be_sent() -> None:
    codes = [code for name, code in vars(c.RefusalCode).items() if name.isupper()]
    assert codes
    assert [code for code in codes if not terminal("ATOM").fullmatch(code)] == []


@pytest.mark.parametrize(
    "command",
    [
        c.Who(5, "ann", "d c"),
        c.Who(5, "ann", ""),
        c.Who(5, "ann", "dc.1"),
        c.Who(5, "\ud800", "dc1"),
        c.Who(5, "x" * 65537, "dc1"),
        c.Root(-1, "dc1"),
        c.Root(2**63, "dc1"),
        c.Ack("dc1", 1),
        c.FetchUid(1, 0),
        c.FetchUid(1, 2**32),
        c.FetchUid(2**32, 1),
        c.FetchGuid(b"short"),
        c.FetchHash(b"x" * 31),
        c.Expunge(1, UidSet(((3, 4), (1, 2)))),
        c.Expunge(1, UidSet(((1, 2), (3, 4)))),
        c.Expunge(1, UidSet(((0, 2),))),
        c.Expunge(1, UidSet(((1, 2**32),))),
        c.Expunge(1, UidSet.of(range(1, 2_000_000, 2))),
        c.Store(1, UidSet(), ("a b",), ()),
        c.Store(1, UidSet(), ("",), ()),
        c.Hello(1, "dc1", "dc1.b", "mail", ("a)",), 0),
        c.Mbox(1, "ann", "INBOX", b"x" * 16, 1, digest=b"x" * 65),
        c.Log((Dot("dc1.b", 1),) * 10_001),
    ],
    ids=lambda command: repr(command)[:60],
)
def test_unencodable_command_is_refused_by_the_encoder(command: c.Command) -> None:
    with pytest.raises(ValueError):
        Encoder().request("a1", command)


@pytest.mark.parametrize("tag", ["", "a b", "*", "+", "a\r\n", "a" * 65, "ä"])
def test_invalid_tag_is_refused_by_the_encoder(tag: str) -> None:
    with pytest.raises(ValueError):
        Encoder().request(tag, c.Ping())


def test_scattered_uid_set_passes() -> None:
    request = Request("a", c.Expunge(1, UidSet.of(range(1, 100_000, 2))))
    assert list(Decoder().feed(Encoder().batch([request]))) == [request]


@pytest.mark.parametrize(
    ("text", "wire"),
    [
        ("ann@example.org", b"ann@example.org"),
        ("NIL", b"NIL"),
        ("", b'""'),
        ('say "\\"', b'"say \\"\\\\\\""'),
        ("Entw\u00fcrfe", b"{9+}\r\nEntw\xc3\xbcrfe"),
        ("a\nb", b"{3+}\r\na\nb"),
        ("x" * 1001, b"{1001+}\r\n" + b"x" * 1001),
    ],
)
def test_texts_take_the_shortest_form(text: str, wire: bytes) -> None:
    assert Encoder().request("a", c.Subscribe("ann", text, subscribed=True)) == b"a SUBSCRIBE ann " + wire + b"\r\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a ",
        " a PING",
        "a  PING",
        "a PING ",
        "a ping",
        "a NOOP",
        "PING",
        "* OK",
        "+ OK",
        "a\0 PING",
        "a PING\r",
        "a ROOT 9223372036854775808 dc1",
        "a ROOT 99999999999999999999 dc1",
        "a ROOT -1 dc1",
        "a ROOT 1 d.c",
        "a WHO 5 ann\u00e4 dc1",
        "a WHO 5 {1+}\r\n\u00e4 dc1",
        'a WHO 5 "a\tb" dc1 x',
        'a WHO 5 "unfinished dc1',
        'a WHO 5 "a\\b" dc1',
        "a WHO 5 {3} dc1",
        "a WHO 5 (ann) dc1",
        "a FETCH UID 1 0",
        "a FETCH UID 1 4294967296",
        "a FETCH GUID 00",
        "a FETCH GUID " + "A" * 32,
        "a EXPUNGE 1 2,1",
        "a EXPUNGE 1 1,2",
        "a EXPUNGE 1 1:1",
        "a EXPUNGE 1 5:2",
        "a EXPUNGE 1 4294967296",
        "a EXPUNGE 1 *",
        "a EXPUNGE 1 {3+}\r\n1,x",
        "a EXPUNGE 1 {3+}\r\n0:2",
        "* ACK dc1:1",
        "* SETTLED dc.1 1 ()",
        "* SETTLED dc1 -1 ()",
        "* REMOTE 1 mail/entries/dc1.b3/2",
        "a LOG (dc1.b:1",
        "a LOG ((dc1.b:1))",
        "a LOG ( dc1.b:1)",
        "a LOG (dc1.b:1  dc1.b:2)",
        "a LOG " + "(" * 10_000,
        "a LOG (" + " ".join(["a.b:1"] * 10_001) + ")",
        f"a WHO 5 {'x' * 65537} dc1",
    ],
    ids=lambda text: repr(text[:40]),
)
def test_invalid_frame_is_one_error(text: str) -> None:
    decoder = Decoder()
    data = text.encode("latin-1")
    if any(f" {verb} " in text for verb in ("ROOT", "WHO", "SETTLED")):
        data += b" CHECK " + check_of(data, ()).hex().encode()
    with pytest.raises(ProtocolError) as error:
        list(decoder.feed(data + b"\r\n"))
    assert not isinstance(error.value, ChangedError)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400


def test_uid_set_has_a_limit() -> None:
    uids = ",".join(str(uid) for uid in range(1_000_000_001, 1_000_200_001, 2))
    with pytest.raises(ProtocolError, match="the limit is 1048576"):
        list(Decoder().feed(f"a EXPUNGE 1 {{{len(uids)}+}}\r\n{uids}\r\n".encode()))


def test_an_error_says_what_and_where() -> None:
    with pytest.raises(ProtocolError) as error:
        list(Decoder().feed(b"a7 ROOT one dc1\r\n"))
    assert str(error.value) == "in 'a7 ROOT', at character 9, 'one dc1': expected NUMBER"


@given(st.lists(st.integers(0, 40)))
def test_sets_of_uids_do_not_depend_on_how_they_are_made(uids: list[int]) -> None:
    made = UidSet.of(uids)
    assert made == UidSet.of_ranges((uid, uid) for uid in uids)
    assert list(made) == sorted(set(uids))
