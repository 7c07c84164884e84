from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.imap.wire.connection import BLOCK_BYTES, _blocks
from replicator.imap.wire.fetch_items import Adjacent, Atom, Span, Value
from replicator.imap.wire.responses import (
    FlagFormatter,
    copyuid,
    fetch_response,
    flag_list,
    mailbox,
    metadata_names_response,
    printed,
    status_line,
    tagged,
    update_response,
    without_body,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, b"NIL"),
        (7, b"7"),
        (Atom("\\Seen"), b"\\Seen"),
        (b"", b'""'),
        (b'a "quoted" \\', rb'"a \"quoted\" \\"'),
        (b"two\r\nlines", b"{10}\r\ntwo\r\nlines"),
        (b"\xc3\xa4", b"{2}\r\n\xc3\xa4"),
        (b"\x00", b"{1}\r\n\x80"),
        (b"x" * 1025, b"{1025}\r\n" + b"x" * 1025),
        ((), b"()"),
        ((1, (b"a", None), Adjacent(((1,), (2, 3)))), b'(1 ("a" NIL) (1)(2 3))'),
    ],
)
def test_values_are_printed(value: Value, text: bytes) -> None:
    assert (
        b"".join(without_body(fetch_response(3, [(b"A", value), (b"UID", 9)])))
        == b"* 3 FETCH (A " + text + b" UID 9)\r\n"
    )


@pytest.mark.parametrize(
    ("name", "modified_utf_7", "utf_8"),
    [
        ("a&b", b'"a&-b"', b'"a&b"'),
        ('ä"\\', rb'"&AOQ-\"\\"', '"ä\\"\\\\"'.encode()),
        ("a\r\nb", b'"a&AA0ACg-b"', b"{4}\r\na\r\nb"),
        ("ä" * 513, b"{1370}\r\n&" + b"AOQA5ADk" * 171 + b"-", b"{1026}\r\n" + "ä".encode() * 513),
    ],
)
def test_names_are_printed(name: str, modified_utf_7: bytes, utf_8: bytes) -> None:
    assert mailbox(name) == modified_utf_7
    assert mailbox(name, utf8=True) == utf_8


def test_names_of_annotations_make_no_long_lines() -> None:
    entries = ["/private/a(b", *(f"/shared/{number}" for number in range(20))]
    first, second, rest = b"".join(metadata_names_response("a&b", entries)).split(b"\r\n")
    assert first.startswith(b'* METADATA "a&-b" "/private/a(b" /shared/0 /shared/1 ')
    assert (first.count(b" /"), rest) == (19, b"")
    assert second == b'* METADATA "a&-b" /shared/19'
    assert b"".join(metadata_names_response("", ["/shared/a"])) == b'* METADATA "" /shared/a\r\n'


values: st.SearchStrategy[Value] = st.recursive(
    st.none() | st.integers(0, 9) | st.binary(max_size=4) | st.builds(Span, st.integers(0, 4), st.integers(5, 9)),
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple) | st.lists(inner, max_size=4).map(lambda parts: Adjacent((*parts,)))
    ),
)


@given(st.lists(values, min_size=1, max_size=4))
def test_values_printed_ahead_make_the_same_answer(values: list[Value]) -> None:
    named = [(b"%d" % number, value) for number, value in enumerate(values)]
    assert fetch_response(1, [(name, printed(value)) for name, value in named]) == fetch_response(1, named)


def test_bodies_are_not_copied() -> None:
    body = b"\r\n" * 100_000
    for value in (body, printed(body)):
        assert any(chunk is body for chunk in fetch_response(1, [(b"BODY[]", value)]))


def test_small_values_are_one_chunk() -> None:
    addresses = Adjacent(tuple((b"a", None, b"b", b"c") for _ in range(1000)))
    assert len(fetch_response(1, [(b"ENVELOPE", (addresses, b"x" * 2000)), (b"UID", 9)])) == 1


@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        ([(1, 5)], "COPYUID 9 1 5"),
        ([(1, 5), (2, 6), (4, 7)], "COPYUID 9 1:2,4 5:7"),
        ([(1, 7), (2, 5), (3, 6)], "COPYUID 9 1:3 7,5:6"),
    ],
)
def test_copyuid_keeps_the_order_of_the_pairs(pairs: list[tuple[int, int]], code: str) -> None:
    assert copyuid(9, pairs) == code


def test_places_of_many_results_are_told_in_one_line() -> None:
    places, numbers = range(12_000, 0, -1), range(7, 12_007)
    pairs = " ".join(f"{place} {number}" for place, number in zip(places, numbers, strict=True))
    line = update_response("t", "REMOVEFROM", numbers, places, by_uid=True)
    assert line.decode() == f'* ESEARCH (TAG "t") UID REMOVEFROM ({pairs})\r\n'


def test_flags_are_printed_in_one_order() -> None:
    print_flags = FlagFormatter()
    flags = frozenset({"b", "\\Recent", "\\Seen", "a", "\\Answered"})
    assert print_flags(flags) == print_flags(flags) == flag_list(flags) == "(\\Answered \\Seen \\Recent a b)"


def test_cache_of_printed_flags_is_bounded() -> None:
    print_flags = FlagFormatter()
    for number in range(10_000):
        assert print_flags(frozenset({str(number)})) == f"({number})"
    assert len(print_flags._printed) < 5_000


def test_client_input_cannot_end_a_response_line() -> None:
    assert tagged("a", "NO", "no folder x\r\n* BYE", "CANNOT") == b"a NO [CANNOT] no folder x??* BYE\r\n"
    assert status_line("OK", "ä") == b"* OK ?\r\n"


def test_output_is_sent_in_bounded_blocks() -> None:
    chunks = [b"a", b"b", b"c" * (2 * BLOCK_BYTES + 1), b"d"]
    blocks = list(_blocks(chunks))
    assert [len(block) for block in blocks] == [2, BLOCK_BYTES, BLOCK_BYTES, 1, 1]
    assert b"".join(blocks) == b"".join(chunks)
