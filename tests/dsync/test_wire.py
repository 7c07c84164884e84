"""Records, texts and hellos as bytes, whole and cut at each place."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from contextlib import suppress

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from replicator.dsync.conversation.peer import Peer
from replicator.dsync.errors import DsyncError, PeerGoneError
from replicator.dsync.wire.items import (
    Attribute,
    ChangeType,
    Deletions,
    Finish,
    Handshake,
    Item,
    Mail,
    Mailbox,
    MailboxState,
    MailChange,
    MailRequest,
    TreeNode,
)
from replicator.dsync.wire.keys import KINDS
from replicator.dsync.wire.mail_changes import QuickReader
from replicator.dsync.wire.reader import AT_ONCE, LINE_BYTES_MAX, LONG_LINES_MAX, Event, Mark, Reader
from replicator.dsync.wire.streams import StreamDecoder, StreamEncoder
from replicator.dsync.wire.values import decode_list, decode_record, encode_list, encode_record
from replicator.dsync.wire.writer import END_OF_LIST, END_OF_TEXT, general_line, hello, line_of
from replicator.mail.dovecot_guids import guid_of

ANY_TEXT = st.text(st.characters(codec="utf-8"))
KEYWORDS = st.frozensets(st.sampled_from(["\\Seen", "\\Draft", "\\Deleted", "a\tb", "kw", "\\Flagged"]))
IDS = st.binary(min_size=16, max_size=16)
NUMBERS = st.integers(0, 2**32 - 2)
GUIDS = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)

ITEMS: st.SearchStrategy[Item] = st.one_of(
    st.builds(MailboxState, IDS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.booleans()),
    st.builds(
        TreeNode,
        st.lists(ANY_TEXT.filter(lambda level: level and "%" not in level), min_size=1, max_size=3).map(tuple),
        st.booleans(),
        IDS,
        NUMBERS,
        NUMBERS,
        NUMBERS,
        st.booleans(),
        NUMBERS,
    ),
    st.builds(
        Deletions,
        st.just("/"),
        st.dictionaries(IDS, NUMBERS),
        st.dictionaries(IDS, NUMBERS),
        st.dictionaries(IDS, NUMBERS),
    ),
    st.builds(Mailbox, IDS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, lost=st.booleans()),
    st.builds(MailChange, st.just(ChangeType.SAVE), NUMBERS, GUIDS, NUMBERS, KEYWORDS, KEYWORDS, KEYWORDS).map(
        lambda one: one._replace(removed=one.removed - one.flags - one.added)
    ),
    st.builds(MailRequest, GUIDS, NUMBERS),
    st.builds(Mail, GUIDS, NUMBERS, NUMBERS, NUMBERS, st.just(False)),  # noqa: FBT003
    st.builds(Attribute, st.booleans(), ANY_TEXT, ANY_TEXT, st.just(False), NUMBERS, NUMBERS),  # noqa: FBT003
    st.builds(Finish, st.none() | ANY_TEXT.filter(bool), st.none() | st.integers(1, 20), st.booleans()),
)


WITH_TEXTS = Mail | Attribute | Mark | bytes


def events(*pieces: bytes, many: bool = False) -> list[Event]:
    """Return what is read. `many`: with as many items at once as there are."""
    reader, found = Reader(), list[Event]()
    for piece in pieces:
        reader.receive(piece)
        while (event := reader.next()) is not None:
            found.append(event)
            if many and not isinstance(event, WITH_TEXTS):
                found += reader.more(type(event))
    return found


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(st.lists(st.none() | st.text("ab\0\1\2\t\r\n\x7fü")))
def test_records_come_back(values: list[str | None]) -> None:
    text = encode_record(values)
    assert not {"\n", "\r", "\0"} & {*text}
    found = decode_record(text)
    if text or not any(value == "" for value in values):  # which cannot be told from an empty record
        assert found + [None] * (len(values) - len(found)) == values


@given(st.lists(st.text("a\1\t\n/", min_size=1)))
def test_lists_come_back(parts: list[str]) -> None:
    assert [*decode_list(encode_list(parts))] == parts


def plain(text: bytes) -> bytes:
    """Return a text with CR LF as line ends, byte by byte."""
    out = bytearray()
    for at, byte in enumerate(text):
        if byte == ord("\n") and text[at - 1 : at] != b"\r":
            out += b"\r"
        out.append(byte)
    return bytes(out)


TEXTS = st.lists(st.sampled_from([b".", b"\r", b"\n", b"\r\n", b"a", b"..", b"\n.\n"])).map(b"".join)


@given(TEXTS, st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_texts_come_back(text: bytes, sent: list[int], received: list[int]) -> None:
    encoder, decoder = StreamEncoder(), StreamDecoder()
    wire = b"".join(map(encoder.encode, cut(text, sent))) + END_OF_TEXT + b"C1\n"
    pieces, rest = list[bytes](), b""
    for piece in cut(wire, received):
        if decoder.rest is not None:
            rest += piece
        else:
            pieces.append(decoder.receive(piece))
    assert b"".join(pieces) == plain(text)
    assert (decoder.rest or b"") + rest == b"C1\n"


def test_a_single_dot_at_the_beginning_is_text() -> None:
    decoder = StreamDecoder()
    assert decoder.receive(b".\r\nM injected\r\n.\r\nR\n") == b".\r\nM injected"
    assert decoder.rest == b"R\n"


@given(st.lists(ITEMS, max_size=4), st.lists(st.integers(0, 40)))
def test_items_come_back(items: list[Item], sizes: list[int]) -> None:
    wire = hello() + b"".join(map(line_of, items)) + END_OF_LIST
    for many in (False, True):
        assert events(*cut(wire, sizes), many=many) == [*items, Mark.END_OF_LIST]


@given(
    st.lists(
        st.builds(
            MailChange,
            st.sampled_from(ChangeType),
            NUMBERS,
            st.sampled_from(["ab" * 16, "1795822339.M435804P29515.vm,S=21,W=24", "a\tb", "\2", ""]),
            st.sampled_from([0, 1, 2**63 - 1]),
            *[st.frozensets(st.sampled_from(["\\Seen", "\\Draft", "kw"]))] * 3,
            st.booleans(),
        ),
        max_size=5,
    )
)
def test_changes_are_read_and_written_quickly_as_other_items_are(changes: list[MailChange]) -> None:
    slow = QuickReader(())  # which reads none
    assert [*map(line_of, changes)] == [*map(general_line, changes)]
    read = []
    for quick in (True, False):
        reader = Reader()
        reader.receive(hello())
        assert reader.next() is None
        reader._changes = reader._changes if quick else slow
        reader.receive(b"".join(map(line_of, changes)))
        read.append([next_or_error(reader) for _ in changes])
    assert read[0] == read[1]


def test_numbers_that_are_too_large_are_refused_quickly_as_in_the_general_way() -> None:
    for values in ([2**32 - 1, 5], [1, 2**63]):
        line = "Cs\t{}\tab\t\2\t{}\n".format(*values).encode()
        with pytest.raises(DsyncError, match="in a record C"):
            events(hello() + line)


def next_or_error(reader: Reader) -> Event | str | None:
    try:
        return reader.next()
    except DsyncError as error:
        return str(error)


def test_texts_follow_their_item() -> None:
    wire = hello() + line_of(Mail("ab", 1)) + b"x\n..y\r\n" + END_OF_TEXT + line_of(MailRequest("cd", 2))
    for size in range(len(wire)):
        mail, *pieces, end, request = events(wire[:size], wire[size:])
        assert isinstance(mail, Mail)
        assert mail.streams
        assert b"".join(one for one in pieces if isinstance(one, bytes)) == b"x\r\n.y\r\n"
        assert (end, request) == (Mark.END_OF_TEXT, MailRequest("cd", 2))


def test_the_peers_names_say_what_a_record_means() -> None:
    kinds = "".join(f"{letter}" + "\t".join(reversed(kind.names)) + "\n" for letter, kind in KINDS.items())
    wire = f"VERSION\tdsync\t3\t9\n{kinds}Zlater\n.\nZ5\nR7\tab\n".encode()
    assert events(wire) == [MailRequest("ab", 7)]


def test_handshakes() -> None:
    names = "\t".join(KINDS["H"].names)
    values = ["vm", None, "Work", None, "s", None, None, "Tr*\t\\Junk", "", None, "", "30", None, ""]
    head = b"".join(line for line in hello().splitlines(keepends=True))
    [found] = events(head, f"H{encode_record(values)}\n".encode())
    assert names.startswith("hostname")
    assert found == Handshake(
        "vm", "s", backup_recv=True, no_backup_overwrite=True, sync_box="Work",
        exclude_mailboxes=("Tr*", "\\Junk"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (b"HTTP/1.1 400\n", "speaks 'HTTP/1.1 400', not dsync"),
        (b"VERSION\tdsync\t4\t0\n", "not dsync in version 3"),
        (b"VERSION\tdsync\t3\t5\n.\n", "lacks hostname of records H"),
        (b"VERSION\tdsync\t3\t5\n" + b"y\n" * 200, "does not end"),
        (hello().replace(b"N" + b"name\texistence", b"N" + b"name"), "lacks existence of records N"),
        (hello() + b"x" * (LINE_BYTES_MAX + 1), "a line of more than"),
        (hello() + b"Cs\t1\t" + b"x" * LINE_BYTES_MAX + b"\n", "a line of more than"),
        (hello() + b"D" + b"x" * LONG_LINES_MAX[ord("D")], "a line of more than"),
        (hello() + b"H" + b"x" * 256 + b"\n", "name has more than 255 characters"),
        (hello() + b"C\n", "a record C without type"),
        (hello() + b"Cx\t1\n", "unknown type"),
        (hello() + b"Cs\t-1\tab\n", "'-1' as uid"),
        (hello() + b"Cs\t99999999999\tab\n", "'99999999999' as uid"),
        (hello() + b"Cs\t1\tab" + b"\t\x02" * 5 + b"\tzz\n", "'zz' as final_flags"),
        (hello() + b"B12\t1\t1\t1\t1\t1\t1\n", "'12' as mailbox_guid"),
        (hello() + b"D/\t%\tabc\n", "a list of deletions that is none"),
        (hello() + b"N\ty\n", "an empty level"),
        (hello() + b"R" + b"\t" * 50 + b"\n", "more values than it had announced"),
        (hello() + b"Ra\1nb\n", "as guid"),
    ],
)
def test_broken_input_gets_one_error(wire: bytes, text: str) -> None:
    for pieces in ([wire], [wire[at : at + 7] for at in range(0, min(len(wire), 5000), 7)] + [wire[5005:]]):
        with pytest.raises(DsyncError, match=text.replace("'", ".")):
            events(*pieces)
        with pytest.raises(DsyncError, match=text.replace("'", ".")):
            events(*pieces, many=True)


def test_a_broken_line_among_many_gets_its_error() -> None:
    good = line_of(MailChange(ChangeType.SAVE, 1, "ab" * 16, 5))
    bad = {
        b"Cs\t1\t" + b"x" * LINE_BYTES_MAX: "a line of more than",
        b"Cs\t-1\tab": "as uid",
        b"Cx\t1": "unknown type",
        good.rstrip() + b"\t" * 50: "more values",
    }
    for line, text in bad.items():
        with pytest.raises(DsyncError, match=text):
            events(hello() + 3 * good + line + b"\n" + good, many=True)


def test_a_line_that_comes_in_pieces_is_read_among_many() -> None:
    line = line_of(MailChange(ChangeType.SAVE, 1, "ab" * 16, 5))
    reader = Reader()
    reader.receive(hello() + line[:-1])
    assert reader.next() is None
    reader.receive(line[-1:] + END_OF_LIST)
    assert len(reader.more(MailChange)) == 1
    assert reader.next() is Mark.END_OF_LIST


def test_many_deletions_come_in_one_line() -> None:
    deletions = Deletions("/", {number.to_bytes(16): 1_700_000_000 for number in range(50_000)})
    wire = hello() + line_of(deletions)
    assert len(wire) > 30 * LINE_BYTES_MAX
    assert events(*(wire[at : at + 8192] for at in range(0, len(wire), 8192))) == [deletions]


@pytest.mark.parametrize("at_once", [1, 10])
@pytest.mark.parametrize("keywords", [0, 1, 1000])
def test_the_weight_of_records_is_what_they_take(keywords: int, at_once: int) -> None:
    reader = Reader()
    reader.receive(hello())
    assert reader.next() is None
    lines = []
    for uid in range(1, 501):
        words = frozenset(f"{uid:x}-{number:x}" for number in range(keywords))
        lines.append(line_of(MailChange(ChangeType.SAVE, uid + 10**6, f"{uid:032x}", uid + 10**6, words)))
    tracemalloc.start()
    try:
        found, weight = list[Event](), 0
        for at in range(0, len(lines), at_once):
            reader.receive(b"".join(lines[at : at + at_once]))
            while (event := reader.next()) is not None:
                weight += reader.weight
                found += [event, *reader.more(MailChange)]
                weight += reader.weight
        assert len(found) == len(lines)
        assert tracemalloc.get_traced_memory()[0] < weight
    finally:
        tracemalloc.stop()


async def test_others_have_their_turn_between_some_records() -> None:
    """However many have arrived together, and however short they are."""
    changes = [MailChange(ChangeType.SAVE, uid, "a", flags=frozenset({f"{uid:x}"})) for uid in range(1, 2_000)]
    stream, _ = trio.testing.memory_stream_pair()
    peer = Peer(stream, hello() + b"".join(map(line_of, changes)) + END_OF_LIST)
    turns, parts = 0, list[tuple[int, Sequence[MailChange]]]()

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        async for part in peer.parts(MailChange, len(changes)):
            parts.append((turns, part))
        nursery.cancel_scope.cancel()
    assert [one for _, part in parts for one in part] == changes
    assert max(len(part) for _, part in parts) <= 1 + AT_ONCE
    assert all(before >= at - 1 for at, (before, _) in enumerate(parts)), "each task runs once in a round"


def test_long_lines_are_read_apart() -> None:
    """They are read in a thread, and hold nobody up."""
    words = frozenset(f"{number:x}" for number in range(2_000))
    long = MailChange(ChangeType.SAVE, 2, "ab" * 16, 5, words)
    changes = [long._replace(uid=1, flags=frozenset()), long, long._replace(uid=3)]
    reader = Reader()
    reader.receive(hello() + b"".join(map(line_of, changes)))
    assert [reader.next(), reader.more(MailChange)] == [changes[0], []]
    assert reader.is_behind_long_line
    assert [reader.next(), reader.more(MailChange)] == [long, []]
    assert reader.is_behind_long_line
    assert reader.next() == changes[2]
    assert not reader.is_behind_long_line


def test_a_peer_may_give_up() -> None:
    with pytest.raises(PeerGoneError):
        events(hello() + b"X\n")


@given(st.lists(st.binary(max_size=60)), st.binary(max_size=30))
def test_anything_is_read_or_refused(pieces: list[bytes], more: bytes) -> None:
    with suppress(DsyncError, PeerGoneError):
        events(hello(), *pieces, b"\n" + more + b"\n.\n")


def test_guids() -> None:
    assert guid_of("00ff" * 8) == b"\x00\xff" * 8
    maildir = "1795822339.M435804P29515.vm,S=21,W=24"
    assert guid_of(maildir).hex() == "ca91158eb06cbd3fa12b2fa1689dee75", "as Dovecot hashes it"
