from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.blocks import BLOCK_BYTES, BlockReader, BlockWriter, contents
from protocol.commands import Ping, Who
from protocol.parser import ChangedError
from protocol.stream_codec import Decoder, Encoder, Item, ProtocolError, Request
from tests.effort import examples

CONTENTS = [b"a", b"bc", bytes(BLOCK_BYTES), b"d" * 300]


def blocks_of(*pieces: bytes) -> list[bytes]:
    writer = BlockWriter()
    return [writer.write(piece) for piece in pieces]


def contents_in(data: bytes, cuts: tuple[int, ...] = ()) -> Iterator[bytes]:
    """Yield what a reader takes from the stream, which arrives cut at these places."""
    reader = BlockReader()
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        reader.receive(data[start:end])
        while (content := reader.next_content()) is not None:
            yield content


@settings(max_examples=examples(30, 200))
@given(st.lists(st.binary(max_size=50)), st.lists(st.integers(0, 2000)))
def test_octets_arrive_as_they_were_written_however_cut(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(blocks_of(*pieces))
    assert b"".join(contents_in(data, tuple(min(cut, len(data)) for cut in cuts))) == b"".join(pieces)
    assert b"".join(contents(data)) == b"".join(pieces)


def test_long_content_is_split() -> None:
    data = bytes(range(256)) * (BLOCK_BYTES // 100)
    sizes = [len(content) for content in contents_in(b"".join(blocks_of(data)))]
    assert max(sizes) == BLOCK_BYTES
    assert sum(sizes) == len(data)


@settings(max_examples=examples(50, 500))
@given(st.data())
def test_altered_octet_is_refused_before_anything_altered_is_read(data: st.DataObject) -> None:
    sent = bytearray(b"".join(blocks_of(b"first", b"second", b"third")))
    at = data.draw(st.integers(0, len(sent) - 1))
    sent[at] ^= data.draw(st.integers(1, 255))
    read: list[bytes] = []
    with pytest.raises(ChangedError):
        read.extend(contents_in(bytes(sent)))
    assert read == [b"first", b"second", b"third"][: len(read)]


def test_altered_length_is_refused_at_once() -> None:
    (block,) = blocks_of(b"text")
    with pytest.raises(ChangedError, match="the connection changes what it carries"):
        list(contents_in(b"\0\0\xff\xff" + block[4:12]))


@pytest.mark.parametrize(
    "order", ["ac", "aab", "ba", "acb", "bc"], ids=["lost", "repeated", "swapped", "late", "first"]
)
def test_block_in_a_wrong_place_is_refused(order: str) -> None:
    blocks = dict(zip("abc", blocks_of(b"same", b"same", b"same"), strict=True))
    with pytest.raises(ChangedError):
        list(contents_in(b"".join(blocks[name] for name in order)))


@pytest.mark.parametrize("length", [0, BLOCK_BYTES + 1, 2**32 - 1])
def test_impossible_length_is_refused(length: int) -> None:
    writer = BlockWriter()
    head = b"".join(writer._checked(length.to_bytes(4)))
    with pytest.raises(ChangedError, match=f"a block of {length} bytes"):
        list(contents_in(head))


@pytest.mark.parametrize("compressed", [False, True])
def test_blocks_begin_right_after_an_item(compressed: bool) -> None:  # noqa: FBT001 - parametrized
    encoder, decoder = Encoder(), Decoder()
    data = encoder.request("a", Ping())
    encoder.start_blocks()
    if compressed:
        encoder.start_compression()
    items = [Request("b", Ping()), Request("c", Who(5, "ä", "dc1")), Request("d", Ping())]
    data += encoder.batch(items[:2]) + encoder.batch(items[2:])
    read: list[Item] = []
    for item in decoder.feed(data):
        read.append(item)
        if len(read) == 1:
            decoder.start_blocks()
            if compressed:
                decoder.start_decompression()
    assert read == [Request("a", Ping()), *items]


@pytest.mark.parametrize("piece_bytes", [1, 7, 100_000])
@pytest.mark.parametrize(("blocks", "compressed"), [(False, False), (False, True), (True, False), (True, True)])
def test_both_ends_count_the_bytes_of_the_line_and_those_without_blocks_and_compression(
    piece_bytes: int, *, blocks: bool, compressed: bool
) -> None:
    encoder, decoder, plain = Encoder(), Decoder(), Encoder()
    items = [Request("a", Ping()), *(Request(f"b{number}", Who(5, "x" * 500, "dc1")) for number in range(20))]
    data = encoder.batch(items[:1])
    for begin, is_wanted in ((encoder.start_blocks, blocks), (encoder.start_compression, compressed)):
        if is_wanted:
            begin()
    data += b"".join(encoder.batch([item]) for item in items[1:])
    read = 0
    for start in range(0, len(data), piece_bytes):
        for _ in decoder.feed(data[start : start + piece_bytes]):
            read += 1
            if read == 1:
                for begin, is_wanted in ((decoder.start_blocks, blocks), (decoder.start_decompression, compressed)):
                    if is_wanted:
                        begin()
    assert read == len(items)
    assert encoder.line_bytes == decoder.line_bytes == len(data)
    assert encoder.plain_bytes == decoder.plain_bytes == len(plain.batch(items))
    assert (encoder.line_bytes < encoder.plain_bytes) == compressed


def test_decoder_believes_what_came_before_an_altered_block_and_nothing_after() -> None:
    encoder, decoder = Encoder(), Decoder()
    encoder.start_blocks()
    decoder.start_blocks()
    sent = [encoder.request(tag, Ping()) for tag in "abc"]
    read: list[Item] = []

    def read_all(data: bytes) -> None:
        for item in decoder.feed(data):
            read.append(item)  # noqa: PERF402 - those before the error count

    with pytest.raises(ProtocolError, match="a block has a wrong checksum"):
        read_all(sent[0] + sent[1].replace(b"b PING", b"x PING") + sent[2])
    assert read == [Request("a", Ping())]
    with pytest.raises(ProtocolError, match="a block has a wrong checksum"):
        list(decoder.feed(encoder.request("d", Ping())))
