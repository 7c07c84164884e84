import os
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.decompression import STEP_BLOCKS, Decompressor
from protocol.parser import ProtocolError
from protocol.units import KIB, MIB
from tests.effort import examples

BLOCK_MAX_BYTES = 128 * KIB
FLUSH = zstandard.COMPRESSOBJ_FLUSH_BLOCK


def compressed(pieces: Sequence[bytes], *, level: int = 1) -> bytes:
    """Return the pieces as one stream, flushed after each."""
    stream = zstandard.ZstdCompressor(level=level).compressobj()
    return b"".join(stream.compress(piece) + stream.flush(FLUSH) for piece in pieces)


def steps(data: bytes, cuts: Sequence[int] = ()) -> Iterator[bytes]:
    """Yield what a decompressor returns for the stream, which arrives cut at these places."""
    decompressor = Decompressor()
    for start, end in pairwise([0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]):
        decompressor.receive(data[start:end])
        while (step := decompressor.step()) is not None:
            yield step
        assert not decompressor._received


def outcome(data: bytes, cuts: Sequence[int]) -> tuple[bytes, bool]:
    """Return what comes out before an error, and whether there is one."""
    whole = bytearray()
    try:
        for step in steps(data, cuts):
            assert len(step) <= STEP_BLOCKS * BLOCK_MAX_BYTES
            whole += step
    except ProtocolError:
        return bytes(whole), False
    return bytes(whole), True


contents = st.one_of(
    st.binary(max_size=300),
    st.integers(0, 300 * KIB).map(bytes),  # blocks of one repeated byte
    st.integers(0, 200 * KIB).map(os.urandom),  # blocks that are not compressed
    st.integers(0, 20_000).map(lambda count: b"to be or not to be " * count),
)


@settings(max_examples=examples(40, 300), deadline=None)
@given(st.lists(contents, max_size=4), st.lists(st.integers(0, 5000), max_size=20), st.sampled_from([-5, 1, 19]))
def test_stream_is_decompressed_however_cut(pieces: list[bytes], cuts: list[int], level: int) -> None:
    assert b"".join(steps(compressed(pieces, level=level), cuts)) == b"".join(pieces)


@settings(max_examples=examples(100, 1000), deadline=None)
@given(contents, st.lists(st.integers(0, 400), max_size=10), st.data())
def test_altered_stream_is_taken_alike_however_cut(content: bytes, cuts: list[int], data: st.DataObject) -> None:
    stream = bytearray(compressed([b"a", content, b"b"]))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, min(len(stream), 400) - 1))] = data.draw(st.integers(0, 255))
    every_byte, sound = outcome(bytes(stream), range(400))
    some, also_sound = outcome(bytes(stream), cuts)
    assert sound == also_sound
    if sound:
        assert some == every_byte


@pytest.mark.parametrize("piece", [bytes(BLOCK_MAX_BYTES), b"ab" * (BLOCK_MAX_BYTES // 2)], ids=["one byte", "two"])
def test_step_yields_no_more_than_its_blocks(piece: bytes) -> None:
    found = [*steps(compressed([piece] * 100))]
    assert sum(map(len, found)) == 100 * BLOCK_MAX_BYTES
    assert max(map(len, found)) <= STEP_BLOCKS * BLOCK_MAX_BYTES == 2 * MIB


def test_blocks_that_do_not_compress_take_few_steps() -> None:
    stream = compressed([os.urandom(32 * KIB) for _ in range(4 * STEP_BLOCKS)])
    assert len([*steps(stream)]) <= 5


@pytest.mark.parametrize(
    "opening",
    [b"\x50\x2a\x4d\x18\x04\0\0\0abcd", b"\x27\xb5\x2f\xfd\x00\x58\x09\0\0"],
    ids=["skippable", "of zstd 0.7"],
)
def test_frame_of_another_kind_is_an_error(opening: bytes) -> None:
    with pytest.raises(ProtocolError, match="does not begin as a zstd frame"):
        list(steps(opening + compressed([b"a"])))


def test_frame_that_ends_is_an_error() -> None:
    for level, with_checksum in ((1, True), (3, False)):
        frame = zstandard.ZstdCompressor(level=level, write_checksum=with_checksum).compress(b"abc")
        with pytest.raises(ProtocolError, match="ended"):
            list(steps(frame + compressed([bytes(32 * MIB)])))
