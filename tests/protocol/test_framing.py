from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

SMALL = FrameLimits(text=40, literal=20, literals_total=30, literals=3)


def drain(framer: Framer) -> Iterator[Event]:
    while (event := framer.next_event()) is not None:
        yield event


def whole(data: bytes) -> list[bytes]:
    return [data]


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def with_tail(data: bytes) -> list[bytes]:
    return [data + b"z9 TAIL", b"\r\n"]


CUTS: list[Callable[[bytes], list[bytes]]] = [whole, byte_by_byte, with_tail]


def events_of(framer: Framer, pieces: list[bytes]) -> list[Event]:
    events: list[Event] = []
    for piece in pieces:
        framer.receive(piece)
        events.extend(drain(framer))
    return [event for event in events if event != Frame(b"z9 TAIL", ())]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"a1 NOOP\r\n", [Frame(b"a1 NOOP", ())]),
        (b"\r\n", [Frame(b"", ())]),
        (b"a NOOP\r\nb NOOP\r\n", [Frame(b"a NOOP", ()), Frame(b"b NOOP", ())]),
        (b"a X {3+}\r\nabc\r\n", [Frame(b"a X {3+}\r\n", (b"abc",))]),
        (b"a X {0+}\r\n\r\n", [Frame(b"a X {0+}\r\n", (b"",))]),
        (b"a X {6+}\r\n\r\n\0\xff\r\n Y\r\n", [Frame(b"a X {6+}\r\n Y", (b"\r\n\0\xff\r\n",))]),
        (b"a {1+}\r\n) {2+}\r\n{}\r\n", [Frame(b"a {1+}\r\n {2+}\r\n", (b")", b"{}"))]),
        (b'a "{3}" X\r\n', [Frame(b'a "{3}" X', ())]),
        (b"a {3} X\r\n", [Frame(b"a {3} X", ())]),
        (b"a {x}\r\n", [Frame(b"a {x}", ())]),
        (b"a\rb\r\n", [Frame(b"a\rb", ())]),
        (
            b"a LOGIN {3}\r\nabc {2}\r\nde\r\n",
            [
                ContinuationNeeded(Frame(b"a LOGIN {3}\r\n", (b"",)), 3),
                ContinuationNeeded(Frame(b"a LOGIN {3}\r\n {2}\r\n", (b"abc", b"")), 2),
                Frame(b"a LOGIN {3}\r\n {2}\r\n", (b"abc", b"de")),
            ],
        ),
    ],
)
def test_bytes_become_frames(cut: Callable[[bytes], list[bytes]], data: bytes, events: list[Event]) -> None:
    assert events_of(Framer(SMALL), cut(data)) == events


@pytest.mark.parametrize("cut", [whole, byte_by_byte])
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a" * 41 + b"\r\n", b"a" * 40),
        (b"a" * 4000, b"a" * 40),
        (b"a1 {3+}\r\nabc" + b"b" * 40 + b"\r\n", b"a1 {3+}\r\n" + b"b" * 31),
        (b"a1 {21+}\r\n" + b"x" * 21, b"a1 {21+}"),
        (b"a1 {9999999999999999999999999+}\r\n", b"a1 {9999999999999999999999999+}"),
        (b"a1 {20+}\r\n" + b"x" * 20 + b" {11+}\r\n", b"a1 {20+}\r\n {11+}"),
        (b"a1 {1+}\r\nx{1+}\r\nx{1+}\r\nx{1+}\r\nx\r\n", b"a1 {1+}\r\n{1+}\r\n{1+}\r\n{1+}"),
        (b"a1 NOOP\n", b"a1 NOOP\n"),
        (b"\n", b"\n"),
    ],
)
def test_stream_ends_beyond_a_limit(cut: Callable[[bytes], list[bytes]], data: bytes, text: bytes) -> None:
    framer = Framer(SMALL)
    with pytest.raises(FramingError) as error:
        events_of(framer, cut(data))
    assert not error.value.recoverable
    assert error.value.text == text
    framer.receive(b"b NOOP\r\n")
    with pytest.raises(FramingError) as again:
        framer.next_event()
    assert again.value is error.value
    assert framer.detach() == b""


def test_text_exactly_at_the_limit_passes() -> None:
    assert events_of(Framer(SMALL), [b"a" * 40 + b"\r\n"]) == [Frame(b"a" * 40, ())]
    assert events_of(Framer(SMALL), byte_by_byte(b"a" * 40 + b"\r\n")) == [Frame(b"a" * 40, ())]


@pytest.mark.parametrize("command", [b"a1 APPEND x {21}\r\n", b"a1 {1+}\r\nx{1+}\r\nx{1+}\r\nx{1}\r\n"])
def test_refused_synchronising_literal_leaves_the_stream_usable(command: bytes) -> None:
    framer = Framer(SMALL)
    framer.receive(command)
    with pytest.raises(FramingError) as error:
        framer.next_event()
    assert error.value.recoverable
    assert error.value.text.startswith(b"a1 ")
    framer.receive(b"a2 NOOP\r\n")
    assert list(drain(framer)) == [Frame(b"a2 NOOP", ())]


def test_reader_may_refuse_a_literal_before_its_bytes() -> None:
    framer = Framer(SMALL)
    framer.receive(b"a1 {2+}\r\nxy {5}\r\n")
    assert framer.next_event() == ContinuationNeeded(Frame(b"a1 {2+}\r\n {5}\r\n", (b"xy", b"")), 5)
    framer.refuse()
    framer.receive(b"a2 {1+}\r\nq\r\n")
    assert list(drain(framer)) == [Frame(b"a2 {1+}\r\n", (b"q",))]


def test_bare_lf_is_accepted_where_allowed_and_becomes_crlf() -> None:
    framer = Framer(SMALL, bare_lf=True)
    assert events_of(framer, byte_by_byte(b"a {2+}\nx\n Y\nb\r\n")) == [
        Frame(b"a {2+}\r\n Y", (b"x\n",)),
        Frame(b"b", ()),
    ]


def test_text_limit_holds_for_bare_lf_too() -> None:
    assert events_of(Framer(SMALL, bare_lf=True), [b"a" * 40 + b"\n"]) == [Frame(b"a" * 40, ())]
    with pytest.raises(FramingError, match="longer than 40 bytes"):
        events_of(Framer(SMALL, bare_lf=True), [b"a" * 41 + b"\n"])


def test_literal_limits_count_for_each_command_separately() -> None:
    frame = b"a {15+}\r\n" + b"x" * 15 + b"{15+}\r\n" + b"y" * 15 + b"\r\n"
    assert events_of(Framer(SMALL), [frame] * 3) == [Frame(b"a {15+}\r\n{15+}\r\n", (b"x" * 15, b"y" * 15))] * 3


def test_limits_may_change_between_commands() -> None:
    framer = Framer(SMALL)
    framer.limits = FrameLimits(literal=100)
    framer.receive(b"a {100+}\r\n" + b"x" * 100)
    framer.limits = FrameLimits(text=4)
    framer.receive(b" more than four\r\n")
    with pytest.raises(FramingError, match="longer than 4 bytes"):
        framer.next_event()


def test_detach_returns_unused_bytes() -> None:
    framer = Framer(SMALL)
    framer.receive(b"a STARTTLS\r\nb INJECTED\r\n")
    assert framer.next_event() == Frame(b"a STARTTLS", ())
    assert framer.detach() == b"b INJECTED\r\n"
    assert framer.next_event() is None


frames = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from([b"", b"a X ", b'"{2}" ']), st.binary(max_size=12)), max_size=3),
        st.sampled_from([b"", b" END", b"(\\Seen)", b"{3} "]),
    ),
    max_size=4,
)


@given(
    frames,
    st.lists(st.integers(min_value=0, max_value=400), max_size=20),
    st.booleans(),
)
def test_frames_do_not_depend_on_how_bytes_are_cut(
    commands: list[tuple[list[tuple[bytes, bytes]], bytes]],
    cuts: list[int],
    plus: bool,  # noqa: FBT001 - drawn
) -> None:
    sign = b"+" if plus else b""
    stream, expected = b"", []
    for parts, end in commands:
        texts = [before + b"{%d%s}\r\n" % (len(literal), sign) for before, literal in parts]
        stream += b"".join(text + literal for text, (_, literal) in zip(texts, parts, strict=True)) + end + b"\r\n"
        expected.append(Frame(b"".join(texts) + end, tuple(literal for _, literal in parts)))
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    pieces = [stream[low:high] for low, high in pairwise(edges)]
    events = events_of(Framer(), pieces)
    assert [event for event in events if isinstance(event, Frame)] == expected
    assert sum(isinstance(event, ContinuationNeeded) for event in events) == (
        0 if plus else sum(len(parts) for parts, _ in commands)
    )
    streaming = FrameLimits(whole=5)
    assert joined(events_of(Framer(streaming), pieces)) == joined(events_of(Framer(streaming), [stream]))
    given = [event.data for event in joined(events_of(Framer(streaming), pieces)) if isinstance(event, LiteralChunk)]
    assert given == [literal for parts, _ in commands for _, literal in parts if len(literal) > 5]


@given(st.lists(st.binary(max_size=50), max_size=40))
def test_memory_stays_within_one_frame(pieces: list[bytes]) -> None:
    framer = Framer(SMALL)
    for piece in pieces:
        framer.receive(piece)
        try:
            for _event in drain(framer):
                pass
        except FramingError as error:
            if not error.recoverable:
                return
        assert len(framer._buffer) <= max(SMALL.text + 2, SMALL.literal)


STREAMING = FrameLimits(text=60, literal=1000, literals_total=10, literals=4, whole=5)


def joined(events: list[Event]) -> list[Event]:
    """Join the chunks of each large literal, so that the events do not depend on how the bytes were cut."""
    result: list[Event] = []
    for event in events:
        if isinstance(event, LiteralChunk) and result and isinstance(result[-1], LiteralChunk):
            result[-1] = LiteralChunk(result[-1].data + event.data)
        else:
            result.append(event)
    return result


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"a {5+}\r\nabcde\r\n", [Frame(b"a {5+}\r\n", (b"abcde",))]),
        (
            b"a {6+}\r\nab\r\ncd\r\n",
            [
                LargeLiteral(Frame(b"a {6+}\r\n", (b"",)), 6, synchronising=False),
                LiteralChunk(b"ab\r\ncd"),
                Frame(b"a {6+}\r\n", (b"",)),
            ],
        ),
        (
            b"a {2}\r\n{} {6}\r\nabcdef B\r\n",
            [
                ContinuationNeeded(Frame(b"a {2}\r\n", (b"",)), 2),
                LargeLiteral(Frame(b"a {2}\r\n {6}\r\n", (b"{}", b"")), 6, synchronising=True),
                LiteralChunk(b"abcdef"),
                Frame(b"a {2}\r\n {6}\r\n B", (b"{}", b"")),
            ],
        ),
        (
            b"a {6+}\r\nabcdef{2+}\r\nxy{7+}\r\n1234567\r\nb\r\n",
            [
                LargeLiteral(Frame(b"a {6+}\r\n", (b"",)), 6, synchronising=False),
                LiteralChunk(b"abcdef"),
                LargeLiteral(Frame(b"a {6+}\r\n{2+}\r\n{7+}\r\n", (b"", b"xy", b"")), 7, synchronising=False),
                LiteralChunk(b"1234567"),
                Frame(b"a {6+}\r\n{2+}\r\n{7+}\r\n", (b"", b"xy", b"")),
                Frame(b"b", ()),
            ],
        ),
    ],
)
def test_large_literals_are_streamed(cut: Callable[[bytes], list[bytes]], data: bytes, events: list[Event]) -> None:
    assert joined(events_of(Framer(STREAMING), cut(data))) == events


def test_large_literal_is_not_kept_in_memory() -> None:
    framer, given = Framer(STREAMING), b""
    framer.receive(b"a {1000+}\r\n")
    assert isinstance(framer.next_event(), LargeLiteral)
    for number in range(100):
        framer.receive(b"%010d" % number)
        for event in drain(framer):
            assert isinstance(event, LiteralChunk)
            given += event.data
        assert not framer._buffer
    assert given == b"".join(b"%010d" % number for number in range(100))
    framer.receive(b"\r\n")
    assert list(drain(framer)) == [Frame(b"a {1000+}\r\n", (b"",))]


def test_synchronising_large_literal_may_be_refused() -> None:
    framer = Framer(STREAMING)
    framer.receive(b"a {2+}\r\nxy {6}\r\n")
    assert isinstance(framer.next_event(), LargeLiteral)
    framer.refuse()
    framer.receive(b"a2 {1+}\r\nq\r\n")
    assert list(drain(framer)) == [Frame(b"a2 {1+}\r\n", (b"q",))]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a {1001+}\r\n", "a literal of 1001 bytes; the limit is 1000"),
        (b"a" + b" {6+}\r\nabcdef" * 4 + b" {6+}\r\n", "more than 4 literals in one command"),
    ],
)
def test_large_literals_have_limits_too(data: bytes, message: str) -> None:
    with pytest.raises(FramingError, match=message):
        events_of(Framer(STREAMING), [data])


def test_literals_beyond_the_total_are_streamed_too() -> None:
    events = events_of(Framer(STREAMING), [b"a {5+}\r\n12345 {5+}\r\n12345 {1+}\r\nx\r\n"])
    text = b"a {5+}\r\n {5+}\r\n {1+}\r\n"
    frame = Frame(text, (b"12345", b"12345", b""))
    assert events == [LargeLiteral(frame, 1, synchronising=False), LiteralChunk(b"x"), frame]


def test_error_about_a_bare_lf_does_not_depend_on_what_follows() -> None:
    with pytest.raises(FramingError, match="a line ends in LF without CR") as caught:
        events_of(Framer(SMALL), [b"a1 X\nb1 Y\r\n"])
    assert caught.value.text == b"a1 X\n"
