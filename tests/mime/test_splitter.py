from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.mime.splitter import (
    BLANKS_MAX,
    HEADER_MAX,
    BodyBegins,
    BodyData,
    BodyEnds,
    Event,
    Inline,
    Splitter,
)
from replicator.mime.structure import MAX_BOUNDARY, MAX_DEPTH, MAX_PARTS, Part, parse
from tests.mime.messages import FRAGMENTS, MESSAGES, cuts

MEGABYTE = 1_000_000


def events_of(pieces: Iterable[bytes], part_min: int) -> list[Event]:
    splitter = Splitter(part_min)
    events = [event for piece in pieces for event in splitter.write(piece)]
    return events + splitter.finish()


def bodies(events: Iterable[Event], part_min: int) -> list[tuple[int, int, bool]]:
    """Return where each body was cut out, and whether it is base64. Assert that events come in order."""
    found: list[tuple[int, int, bool]] = []
    at = 0
    begun: tuple[int, bool] | None = None
    for event in events:
        match event:
            case Inline(data):
                assert begun is None
                assert data
                at += len(data)
            case BodyBegins(base64):
                assert begun is None
                begun = at, base64
            case BodyData(data):
                assert begun is not None
                assert data
                at += len(data)
            case BodyEnds():
                assert begun is not None
                assert at - begun[0] >= part_min
                found.append((begun[0], at, begun[1]))
                begun = None
    assert begun is None
    return found


def joined(events: Iterable[Event]) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, Inline | BodyData))


def cut_out(message: bytes, part_min: int = 1, step: int = 65536) -> list[bytes]:
    events = events_of([message[at : at + step] for at in range(0, len(message), step)], part_min)
    assert joined(events) == message
    return [message[start:end] for start, end, _ in bodies(events, part_min)]


def should_be_cut(part: Part) -> Iterable[tuple[int, int, bool]]:
    """Yield the bodies of leaves that follow an empty line, except for multiparts without parts."""
    if part.header.end == part.header.fields_end:
        return  # the end of such a header is uncertain, and so are its fields
    for child in part.children if part.nested is None else (part.nested,):
        yield from should_be_cut(child)
    declared = (part.header.value(b"content-type") or b"").lower().lstrip()
    is_base64 = (part.header.value(b"content-transfer-encoding") or b"").lower().startswith(b"base64")
    shows_no_parts = (
        declared.startswith(b"multipart/") and b'boundary=""' not in declared and b"b" * 1001 not in declared
    )
    if not part.children and part.nested is None and not shows_no_parts:
        yield part.header.end, part.end, is_base64


@given(st.data(), MESSAGES, st.integers(1, 60))
def test_large_bodies_of_leaves_are_cut_out(data: st.DataObject, message: bytes, part_min: int) -> None:
    events = events_of(data.draw(cuts(message)), part_min)
    assert joined(events) == message
    expected = [body for body in should_be_cut(parse(message)) if body[1] - body[0] >= part_min]
    found = bodies(events, part_min)
    if message[message.rfind(b"\n") + 1 :].startswith(b"--"):  # an unfinished last line may be a delimiter
        found = [body for body in found if body[1] < message.rfind(b"\n") - 1]
        expected = [body for body in expected if body[1] < message.rfind(b"\n") - 1]
    assert found == expected


@given(st.data(), st.one_of(MESSAGES, FRAGMENTS, st.binary()), st.integers(1, 60))
def test_events_do_not_depend_on_the_pieces_of_input(data: st.DataObject, message: bytes, part_min: int) -> None:
    whole = events_of([message], part_min)
    assert joined(whole) == message
    for pieces in (data.draw(cuts(message)), [message[at : at + 1] for at in range(len(message))]):
        events = events_of(pieces, part_min)
        assert bodies(events, part_min) == bodies(whole, part_min)
        assert joined(events) == message


def check_same_structure(message: bytes) -> None:
    """Assert that the message has the same structure without its bodies."""
    cut = joined(event for event in events_of([message], 1) if isinstance(event, Inline))
    kinds = [
        [(part.content_type, len(part.children), part.nested is None) for part in parse(raw).walk()]
        for raw in (message, cut)
    ]
    assert kinds[0] == kinds[1]


MULTIPART = b"Content-Type: multipart/mixed; boundary=%b\r\n\r\n"


def test_outer_boundaries_end_inner_parts() -> None:
    outer, inner = MULTIPART % b"b", MULTIPART % b"bb"
    message = (
        outer
        + b"--b\r\n"
        + inner
        + b"--bb\r\n\r\none\r\n--b\r\n\r\ntwo\r\n--bb\r\nand\r\n--b--\r\nafter\r\n--b\r\n\r\nno"
    )
    assert cut_out(message) == [b"one", b"two\r\n--bb\r\nand"]
    assert cut_out(outer + b"--b\r\n" + outer + b"--b\r\n\r\none\r\n--b--\r\n--b\r\n\r\nno\r\n--b--") == [b"one"]


def test_blanks_at_the_end_of_a_boundary_do_not_count() -> None:
    assert cut_out(MULTIPART % b'"b "' + b"--b\r\n\r\none\r\n--b \r\n\r\ntwo\r\n--b--") == [b"one", b"two"]


def test_uncertain_bodies_are_not_cut_out() -> None:
    assert cut_out(b"A: b\r\nno field\r\n\r\nbody") == []
    assert cut_out(b"A: b\r\n") == []
    assert cut_out(b"Content-Type: multipart/mixed; boundary=b\r\n\r\nbefore") == []
    assert cut_out(MULTIPART % b"b" + b"--b\r\nA: b\r\n--b\r\n\r\none\r\n--b--") == [b"one"]
    assert cut_out(MULTIPART % b"b" + b"--b\r\nno field\r\n\r\nstays\r\n--b\r\n\r\none\r\n--b--") == [b"one"]


def test_body_after_a_too_long_header_is_not_cut_out() -> None:
    for length, expected in ((HEADER_MAX, [b"body", b"next"]), (HEADER_MAX + 1, [b"next"])):
        header = b"A: ".ljust(length - 4, b"b") + b"\r\n\r\n"
        message = MULTIPART % b"b" + b"--b\r\n" + header + b"body\r\n--b\r\n\r\nnext\r\n--b--\r\n"
        for step in (1000, MEGABYTE):
            assert cut_out(message, step=step) == expected


def test_content_after_a_delimiter_with_too_many_blanks_stays() -> None:
    """The line may be a delimiter or not: an inner part may have ended, and a new one begun."""
    inner = MULTIPART % b"o" + b"--o\r\n" + MULTIPART % b"i" + b"--i\r\n\r\none\r\n--o%b\r\n" + MULTIPART % b"c"
    inner += b"--i\r\n\r\ntext\r\n--c\r\n\r\ntwo\r\n--i\r\n\r\nmore\r\n--o\r\n\r\nthree\r\n--o--\r\n"
    for blanks, expected in (
        (b" " * BLANKS_MAX, [b"one", b"two\r\n--i\r\n\r\nmore", b"three"]),
        (b" " * (BLANKS_MAX + 1), [b"one", b"three"]),
        (b" " * (BLANKS_MAX + 1) + b"x", [b"one", b"three"]),
        (b" " * (BLANKS_MAX + 1) + b"A: b\r\n\r\n", [b"one", b"three"]),
        (b"--" + b" " * (BLANKS_MAX + 1), [b"one"]),
    ):
        for step in (7, MEGABYTE):
            assert cut_out(inner % blanks, step=step) == expected
        check_same_structure(inner % blanks)


def test_too_long_boundary_does_not_count() -> None:
    for length, expected in ((MAX_BOUNDARY, b"one"), (MAX_BOUNDARY + 1, None)):
        boundary = b"b" * length
        body = b"--%b\r\n\r\none\r\n--%b--\r\n" % (boundary, boundary)
        for step in (7, MEGABYTE):
            assert cut_out(MULTIPART % boundary + body, step=step) == [expected or body]


def flat(parts: int) -> bytes:
    return MULTIPART % b"b" + b"--b\r\n\r\nx\r\n" * parts + b"--b--"


def test_parts_beyond_the_limit_are_not_cut_out() -> None:
    assert cut_out(flat(MAX_PARTS)) == [b"x"] * MAX_PARTS
    assert cut_out(flat(MAX_PARTS + 5)) == [b"x"] * MAX_PARTS


def nested_multiparts(levels: int) -> bytes:
    head = b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n"
    return b"".join(head % (level, level) for level in range(levels)) + b"\r\nhello"


def nested_messages(levels: int) -> bytes:
    return b"Content-Type: message/rfc822\r\n\r\n" * levels + b"Subject: x\r\n\r\nhello"


def test_too_deep_parts_are_one_body_or_stay() -> None:
    assert cut_out(nested_multiparts(MAX_DEPTH)) == cut_out(nested_messages(MAX_DEPTH)) == [b"hello"]
    assert cut_out(nested_multiparts(MAX_DEPTH + 1)) == []  # without its delimiters it would be shown as text
    assert cut_out(nested_messages(MAX_DEPTH + 1)) == [b"Subject: x\r\n\r\nhello"]


@pytest.mark.parametrize(
    "message",
    [
        *(nested(MAX_DEPTH + more) for nested in (nested_multiparts, nested_messages) for more in (-1, 0, 1, 2)),
        *(flat(MAX_PARTS + more) for more in (-1, 0, 1, 5)),
        MULTIPART % b"o" + (b"--o\r\n" + flat(MAX_PARTS // 2) + b"\r\n") * 3 + b"--o--",
        b"Content-Type: multipart/digest; boundary=b\r\n\r\n" + b"--b\r\n\r\nA: b\r\n\r\nxyz\r\n" * 300,
    ],
)
def test_structure_survives_cuts_beyond_the_limits(message: bytes) -> None:
    check_same_structure(message)


HOSTILE: list[tuple[bytes, bytes]] = [
    (b"", b"a:\n"),
    (b"", b"a"),
    (b"a:", b" \n"),
    (b"A: b\n\n", b"\n--"),
    (MULTIPART % b"a", b"--a\n"),
    (MULTIPART % b"a", b"--a"),
    (MULTIPART % b"a", b"--a \tx\n"),
    (MULTIPART % b"a" + b"--a", b" "),
    (MULTIPART % b"a" + b"--a\n\n", b"\n--"),
    (MULTIPART % b"a" + b"--a\n\n", b"\n--a" + b" " * BLANKS_MAX + b"x"),
    (MULTIPART % b"a" + b"--a\n\n", b"\r"),
    (MULTIPART % (b"-" * MAX_BOUNDARY) + b"--" + b"-" * MAX_BOUNDARY + b"\n\n", b"-"),
    (
        MULTIPART % (b"-" * MAX_BOUNDARY) + b"--" + b"-" * MAX_BOUNDARY + b"\n\n",
        b"\n--" + b"-" * (MAX_BOUNDARY - 1) + b"x",
    ),
    (nested_multiparts(MAX_DEPTH), b"\n--b"),
    (nested_multiparts(MAX_DEPTH), b"\n--b9\n"),
    (MULTIPART % b"a", b"--a\n" + MULTIPART % b"b"),
]


@pytest.mark.parametrize(("head", "unit"), HOSTILE)
@pytest.mark.parametrize("step", [100, MEGABYTE])
def test_hostile_megabyte_takes_linear_time(head: bytes, unit: bytes, step: int) -> None:
    """In quadratic time this would take hours."""
    assert len(cut_out(head + unit * (MEGABYTE // len(unit)), 10, step)) <= MAX_PARTS


@pytest.mark.parametrize(("head", "unit"), HOSTILE)
@pytest.mark.parametrize("part_min", [1, 5000])
def test_splitter_holds_few_octets(head: bytes, unit: bytes, part_min: int) -> None:
    splitter = Splitter(part_min)
    message = head + unit * (200_000 // len(unit))
    emitted = 0
    for at in range(0, len(message), 1000):
        emitted += len(joined(splitter.write(message[at : at + 1000])))
        assert at + 1000 - emitted <= part_min + HEADER_MAX + MAX_BOUNDARY + BLANKS_MAX + 1000


def test_large_body_passes_through() -> None:
    """The splitter holds nothing of a large body but a line end and a possible delimiter."""
    splitter = Splitter(10)
    emitted = joined(splitter.write(MULTIPART % b"b" + b"--b\r\n\r\n0123456789\r"))
    assert emitted.endswith(b"0123456789")
    assert joined(splitter.write(b"\n-")) == b""
    assert joined(splitter.write(b"x")) == b"\r\n-x"
    assert splitter.write(b"\r\n--b-") == []
    assert splitter.write(b"-\r\n") == [BodyEnds(), Inline(b"\r\n--b--\r\n")]
