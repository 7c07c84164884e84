import tracemalloc
from hashlib import sha256

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.commands import Ack, Content, Copy, Done, FetchGuid, Hello, Ping, Save, Saved, Subscribe, Text
from protocol.decompression import STEP_BLOCKS
from protocol.framing import Frame, FrameLimits
from protocol.parser import LIST_MAX
from protocol.stream_codec import (
    LARGE_BYTES,
    LARGE_TEXT_BYTES,
    PAUSE_BYTES,
    PAUSE_STEPS,
    WIRE_LIMITS,
    ContinuationNeeded,
    Decoder,
    Encoder,
    Item,
    ProtocolError,
    Request,
    Response,
    is_large,
)
from protocol.units import MIB
from protocol.values import Dot, UidSet
from tests.effort import examples
from tests.protocol import strategies

GUID = bytes(range(16))
HELLO = Hello(1, "dc1", "dc1.b3", "mail", ("ZSTD",), 1763664000000)
SMALL = FrameLimits(text=130, literal=50, literals_total=80, literals=2)


def save(message: bytes) -> Save:
    return Save((1,), 0, GUID, (), Text(sha256(message).digest(), message))


def read(decoder: Decoder, data: bytes) -> tuple[list[Item], ProtocolError | None]:
    items: list[Item] = []
    try:
        for item in decoder.feed(data):
            items.append(item)  # noqa: PERF402 - those before the error count
    except ProtocolError as error:
        return items, error
    return items, None


@pytest.mark.parametrize("message", [b"", b"\r\n", b"\0" * 9, bytes(range(256)), b"{4+}\r\na PING\r\n", b"x" * 70_000])
@pytest.mark.parametrize("compressed", [False, True])
def test_messages_of_any_bytes(message: bytes, compressed: bool) -> None:  # noqa: FBT001 - parametrized
    encoder, decoder = Encoder(), Decoder()
    if compressed:
        encoder.start_compression()
        decoder.start_decompression()
    assert list(decoder.feed(encoder.request("a", save(message)))) == [Request("a", save(message))]
    assert list(decoder.feed(encoder.request(None, Ping()))) == [Request(None, Ping())]


@pytest.mark.parametrize("compressed", [False, True])
def test_largest_message_passes(compressed: bool) -> None:  # noqa: FBT001 - parametrized
    message = bytes(WIRE_LIMITS.literal)
    encoder, decoder = Encoder(), Decoder()
    if compressed:
        encoder.start_compression()
        decoder.start_decompression()
    [response] = decoder.feed(encoder.response("a", Content(message)))
    assert response == Response("a", Content(message))


def test_message_above_the_limit_is_not_sent() -> None:
    with pytest.raises(ValueError, match="the limit is 67108864"):
        Encoder().request("a", save(bytes(WIRE_LIMITS.literal + 1)))


@pytest.mark.parametrize(
    ("command", "fits"),
    [
        (save(b"x" * 50), True),
        (save(b"x" * 51), False),
        (Subscribe("ä" * 20, "ö" * 20, subscribed=True), True),
        (Subscribe("ä" * 21, "ö" * 20, subscribed=True), False),
        (Subscribe("x" * 64, "y" * 53, subscribed=True), True),
        (Subscribe("x" * 64, "y" * 54, subscribed=True), False),
    ],
)
def test_encoder_and_decoder_have_the_same_limits(command: Save, fits: bool) -> None:  # noqa: FBT001 - parametrized
    data = Encoder().request("a", command)
    items, error = read(Decoder(SMALL), data)
    if fits:
        assert Encoder(SMALL).request("a", command) == data
        assert items == [Request("a", command)]
    else:
        assert error is not None
        with pytest.raises(ValueError):
            Encoder(SMALL).request("a", command)


def test_items_before_the_damage_count_and_later_ones_do_not() -> None:
    decoder = Decoder()
    items, error = read(decoder, b"a PING\r\nb PONG\r\nc PING\r\n")
    assert items == [Request("a", Ping())]
    assert error is not None
    assert read(decoder, b"d PING\r\n") == ([], error)


def test_synchronising_literal_asks_first() -> None:
    decoder = Decoder()
    assert list(decoder.feed(b"a SUBSCRIBE {3}\r\n")) == [ContinuationNeeded(Frame(b"a SUBSCRIBE {3}\r\n", (b"",)), 3)]
    assert Encoder().continuation() == b"+ OK\r\n"
    assert list(decoder.feed(b"ann Work\r\n")) == [Request("a", Subscribe("ann", "Work", subscribed=True))]


@pytest.mark.parametrize("plus", [b"", b"+"])
def test_literal_above_the_limit_is_refused_before_its_bytes(plus: bytes) -> None:
    _, error = read(Decoder(), b"a SAVE (1) 0 %b () {67108865%b}\r\n" % (GUID.hex().encode(), plus))
    assert error is not None
    assert str(error).startswith("after b'a SAVE (1) 0 000")


@pytest.mark.parametrize("tail", [b"", b"rest"])
def test_compression_begins_right_after_the_item_that_agrees_to_it(tail: bytes) -> None:
    encoder, decoder = Encoder(), Decoder()
    data = encoder.response("a", HELLO)
    encoder.start_compression()
    data += encoder.batch([Request("b", Ping()), Request("c", Ping())])
    data += encoder.request("d", save(tail))
    items: list[Item] = []
    for item in decoder.feed(data):
        items.append(item)
        if item == Response("a", HELLO):
            decoder.start_decompression()
    assert items == [
        Response("a", HELLO),
        Request("b", Ping()),
        Request("c", Ping()),
        Request("d", save(tail)),
    ]


def test_one_flush_for_several_items_is_smaller() -> None:
    requests = [Request(None, Ack("dc1.b3", seq)) for seq in range(50)]
    together, alone = Encoder(), Encoder()
    together.start_compression()
    alone.start_compression()
    assert len(together.batch(requests)) < sum(len(alone.batch([request])) for request in requests)


def test_unencodable_value_leaves_the_stream_intact() -> None:
    encoder, decoder = Encoder(), Decoder()
    encoder.start_compression()
    decoder.start_decompression()
    with pytest.raises(ValueError):
        encoder.batch([Request("a", Ping()), Request("b", FetchGuid(b"short"))])
    assert list(decoder.feed(encoder.request("c", Ping()))) == [Request("c", Ping())]


@pytest.mark.parametrize(
    "data",
    [
        b"a PING\r\n",
        zstandard.ZstdCompressor().compress(b"a PING\r\n"),
        zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=24))
        .compressobj()
        .compress(bytes(32 * MIB)),
    ],
    ids=["plain", "a stream that ends", "a window too large"],
)
def test_damaged_compressed_stream_is_an_error(data: bytes) -> None:
    decoder = Decoder()
    decoder.start_decompression()
    _, error = read(decoder, data)
    assert error is not None
    assert "compressed stream" in str(error)


def peak_while_reading(decoder: Decoder, data: bytes) -> tuple[int, ProtocolError | None]:
    tracemalloc.start()
    try:
        _, error = read(decoder, data)
        return tracemalloc.get_traced_memory()[1], error
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("literal", [b"", b"a SAVE (1) 0 000102030405060708090a0b0c0d0e0f () {1000000+}\r\n"])
def test_decompression_bomb_takes_the_memory_of_one_step(literal: bytes) -> None:
    compressor = zstandard.ZstdCompressor().compressobj()
    bomb = compressor.compress(literal + bytes(256 * MIB)) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    assert len(bomb) < 16 * 1024
    decoder = Decoder(FrameLimits(text=1000, literal=MIB))
    decoder.start_decompression()
    peak, error = peak_while_reading(decoder, bomb)
    assert error is not None
    # The 2 MiB of a step, twice while they are appended, and the literal.
    assert peak < 6 * MIB


def test_endless_line_and_announced_literal_take_no_memory() -> None:
    peak, error = peak_while_reading(Decoder(), b"x" * 600_000)
    assert error is not None
    assert peak < 2 * MIB
    peak, error = peak_while_reading(Decoder(), b"a WHO 5 {67108864+}\r\n")
    assert error is None
    assert peak < MIB


hostile = st.lists(
    st.binary(max_size=40)
    | st.sampled_from(
        [b"a", b"*", b" ", b"PING", b"SAVE", b"(", b")", b"{3+}", b"{3}", b"\r\n", b"\n", b'"', b"OK", b"NO", b"UID"]
    )
    | strategies.items.map(lambda item: Encoder().batch([item]))
    | strategies.items.map(lambda item: Encoder().batch([item])[:-3]),
    max_size=12,
).map(b"".join)


@settings(max_examples=examples(150, 300))
@given(hostile, st.booleans())
@example(b"a WHO {0+}\r\n{0+}\r\n dc1\r\n", False)  # noqa: FBT003 - as drawn
def test_hostile_bytes_end_in_one_error_however_cut(data: bytes, compressed: bool) -> None:  # noqa: FBT001 - drawn
    whole, by_byte = Decoder(SMALL), Decoder(SMALL)
    if compressed:
        whole.start_decompression()
        by_byte.start_decompression()
    items, error = read(whole, data)
    items_by_byte: list[Item] = []
    error_by_byte: ProtocolError | None = None
    for byte in data:
        more, again = read(by_byte, bytes([byte]))
        items_by_byte += more
        assert error_by_byte in (None, again)
        error_by_byte = again
    assert items_by_byte == items
    assert (error is None) == (error_by_byte is None)
    if not compressed and error is not None:
        assert str(error).splitlines() == [str(error)]
    assert len(by_byte._framer._buffer) <= SMALL.text + 2 + SMALL.literal
    assert len(by_byte._decompressor._received if by_byte._decompressor else b"") == 0


@settings(max_examples=100)
@given(strategies.items, st.data())
def test_flipped_byte_never_breaks_the_decoder(item: Request | Response, data: st.DataObject) -> None:
    wire = bytearray(Encoder().batch([item]))
    place = data.draw(st.integers(0, len(wire) - 1))
    wire[place] ^= data.draw(st.integers(1, 255))
    read(Decoder(SMALL), bytes(wire))  # anything but ProtocolError is a defect


def test_longest_lists_pass() -> None:
    uids = range(1, 2 * LIST_MAX, 2)
    copy = Copy(1, 2, UidSet.of(uids), tuple(seq.to_bytes(16) for seq in uids), 0, ())
    saved = Saved(tuple(uids), tuple(Dot("frankfurt.4a7d3f", seq) for seq in uids))
    data = Encoder().batch([Request("a", copy), Response("a", saved)])
    assert list(Decoder().feed(data)) == [Request("a", copy), Response("a", saved)]


def test_done_is_the_shortest_reply() -> None:
    assert Encoder().response("a7", Done()) == b"a7 OK\r\n"


def test_reader_of_a_decompression_bomb_may_let_others_go_on() -> None:
    compressor = zstandard.ZstdCompressor().compressobj()
    opening = b"t SAVE (1) {62914560+}\r\n"
    bomb = compressor.compress(opening + bytes(32 * MIB)) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    decoder = Decoder()
    decoder.start_decompression()
    pauses = sum(event is None for event in decoder.frames(bomb))
    assert pauses >= 32 * MIB // (PAUSE_BYTES + 2 * MIB)


def test_reader_of_many_empty_blocks_may_let_others_go_on() -> None:
    compressor = zstandard.ZstdCompressor().compressobj()
    decoder = Decoder()
    decoder.start_decompression()
    assert not list(decoder.feed(compressor.compress(b"a") + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)))
    blocks = 100 * PAUSE_STEPS * STEP_BLOCKS
    assert list(decoder.frames(blocks * bytes(3))) == 100 * [None]


def test_frames_are_large_by_text_or_by_literals() -> None:
    assert not is_large(Frame(b"a" * LARGE_TEXT_BYTES, ()))
    assert is_large(Frame(b"a" * (LARGE_TEXT_BYTES + 1), ()))
    assert is_large(Frame(b"a", (b"", bytes(LARGE_BYTES))))
