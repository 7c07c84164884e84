from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from replicator.store.checkpoints.container import (
    FRAME_BYTES_MAX,
    MAGIC,
    VERSION,
    ContainerKind,
    UnreadableError,
    Unsealer,
    seal,
)

FRAMES = st.lists(st.binary(min_size=1, max_size=300), max_size=8)
HEAD = MAGIC + ContainerKind.CHECKPOINT.value + VERSION.to_bytes(2)


def unseal(*pieces: bytes, kind: ContainerKind = ContainerKind.CHECKPOINT) -> list[bytes]:
    reader = Unsealer("mail/a", kind)
    frames = [frame for piece in pieces for frame in reader.receive(piece)]
    reader.finish()
    return frames


def sealed(*frames: bytes) -> bytes:
    return b"".join(seal(ContainerKind.CHECKPOINT, frames))


def with_checksum(data: bytes) -> bytes:
    return data + sha256(data).digest()


def compressed(plain: bytes, how: int = zstandard.COMPRESSOBJ_FLUSH_FINISH) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(plain) + compressor.flush(how)


@given(FRAMES, st.lists(st.integers(0, 3000), max_size=5))
def test_sealed_frames_are_read_back_from_pieces_of_any_size(frames: list[bytes], cuts: list[int]) -> None:
    data = sealed(*frames)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert unseal(*(data[start:end] for start, end in pairwise(bounds))) == frames
    assert unseal(*(bytes([byte]) for byte in data)) == frames


@given(FRAMES, st.data())
def test_damage_at_any_byte_is_refused(frames: list[bytes], data: st.DataObject) -> None:
    good = sealed(*frames)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(UnreadableError, match=r"^mail/a: "):
        unseal(bytes(bad))


def test_lost_added_and_flipped_bytes_are_refused() -> None:
    good = sealed(b"a head", bytes(range(200)), b"the end")
    for at in range(len(good)):
        for bad in (good[:at], good[:at] + good[at + 1 :], good[:at] + b"\x00" + good[at:], good + good[:at]):
            if bad != good:
                with pytest.raises(UnreadableError, match=r"^mail/a: "):
                    unseal(bad)
        for bit in range(8):
            flipped = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
            with pytest.raises(UnreadableError, match=r"^mail/a: "):
                unseal(flipped)


def test_errors_name_the_object_and_what_is_wrong() -> None:
    newer = with_checksum(HEAD[:-2] + (7).to_bytes(2) + compressed(bytes(4)))
    with pytest.raises(UnreadableError, match=r"^mail/a: has format 7, .* reads format 1$"):
        unseal(newer)
    with pytest.raises(UnreadableError, match=r"^mail/a: damaged: it ends too early$"):
        unseal(sealed(b"x")[:-1])
    with pytest.raises(UnreadableError, match="it is no manifest"):
        unseal(sealed(b"x"), kind=ContainerKind.MANIFEST)
    with pytest.raises(UnreadableError, match="does not begin like an object of mail-replicator"):
        unseal(b"PAR1" * 20)
    with pytest.raises(UnreadableError, match="ends too early"):
        unseal()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (with_checksum(HEAD + compressed(b"\x00\x00\x00\x01x")), "ends too early"),
        (with_checksum(HEAD + compressed(b"\x00\x00\x00\x02x")), "ends too early"),
        (with_checksum(HEAD + compressed(bytes(5))), "it has data after its last frame"),
        (with_checksum(HEAD + compressed(bytes(4)) + b"x"), "it has data after its end"),
        (with_checksum(HEAD + compressed(bytes(4)) + compressed(b"")), "it has data after its end"),
        (with_checksum(HEAD + compressed((FRAME_BYTES_MAX + 1).to_bytes(4))), "one of its frames has 67108865 bytes"),
        (with_checksum(HEAD + compressed(b"\xff" * 4)), "one of its frames has 4294967295 bytes"),
        (with_checksum(HEAD + compressed(bytes(4), zstandard.COMPRESSOBJ_FLUSH_BLOCK)), "ends too early"),
        (with_checksum(HEAD), "ends too early"),
        (with_checksum(HEAD + b"no zstd at all"), "damaged: zstd"),
    ],
)
def test_wrongly_sealed_data_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(UnreadableError, match=problem):
        unseal(data)


def test_too_large_zstd_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=25)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = compressor.compress(bytes(4)) + compressor.flush()
    with pytest.raises(UnreadableError, match="memory"):
        unseal(with_checksum(HEAD + data))


def test_zstd_bomb_is_refused_after_one_frame() -> None:
    compressor = zstandard.ZstdCompressor().compressobj()
    bomb = compressor.compress(FRAME_BYTES_MAX.to_bytes(4) + bytes(4 * FRAME_BYTES_MAX)) + compressor.flush()
    reader = Unsealer("mail/a", ContainerKind.CHECKPOINT)
    frames = reader.receive(with_checksum(HEAD + bomb))
    assert next(frames) == bytes(FRAME_BYTES_MAX)
    with pytest.raises(UnreadableError, match="it has data after its last frame"):
        next(frames)


def test_object_of_a_peer_may_unpack_to_so_much_only() -> None:
    data = sealed(bytes(range(256)) * 3, bytes(2**20 - 1000))
    for limit, is_refused in ((2**20, False), (2**20 - 1000, True)):
        reader = Unsealer("mail/a", ContainerKind.CHECKPOINT, plain_bytes_max=limit)
        if is_refused:
            with pytest.raises(UnreadableError, match="it unpacks to more than it may"):
                list(reader.receive(data))
        else:
            assert len(list(reader.receive(data))) == 2
            reader.finish()


@pytest.mark.parametrize("frame", [b"", bytes(FRAME_BYTES_MAX + 1)])
def test_empty_or_too_large_frame_is_not_sealed(frame: bytes) -> None:
    with pytest.raises(ValueError, match="a frame has 1 to"):
        sealed(frame)


def test_frames_are_consumed_while_they_are_sealed() -> None:
    taken = 0

    def frames() -> Iterator[bytes]:
        nonlocal taken
        for number in range(200):
            taken += 1
            yield b"".join(sha256(bytes([number, part])).digest() for part in range(250)) * 4

    pieces = seal(ContainerKind.CHECKPOINT, frames())
    next(pieces)
    assert taken == 0
    next(pieces)
    assert 0 < taken < 150
    assert len(list(pieces)) > 3
