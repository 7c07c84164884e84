"""The format of objects in the object store, kept for years: MessagePack frames, compressed, under a checksum.

    8 bytes    "MAILREPL"
    1 byte     what the object is: `ContainerKind`
    2 bytes    version of the frames' format
    a zstd frame of
        frames     4 bytes of length, and so many bytes of MessagePack
        4 bytes    0: end of frames
    32 bytes   SHA-256 of all before

Numbers are big-endian. Both directions work piece by piece, with little more than one frame in memory. A reader's
output is to be trusted only once it has read to the end, where the checksum stands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from enum import Enum
from hashlib import sha256

import zstandard

from protocol.units import KIB, MIB

MAGIC = b"MAILREPL"
VERSION = 1
COMPRESSION_LEVEL = 3  # the content is mostly hashes and ids: higher levels gain nothing
WINDOW_LOG = 21  # 2 MiB, several frames of rows
AT_ONCE_BYTES = 256 * KIB  # of all frames of a small object
FRAME_BYTES_MAX = 64 * MIB  # like a literal between nodes; a checkpoint's frame is hardly ever over 1 MiB
HASH_BYTES = 32

_HEAD_BYTES = len(MAGIC) + 3
_LENGTH_BYTES = 4
_STEP_BYTES = 256  # decompressed at once: they expand to 8 MiB at most


class ContainerKind(Enum):
    """The kind of a sealed object."""

    CHECKPOINT = b"C"
    MANIFEST = b"M"
    ENTRY = b"E"


class UnreadableError(Exception):
    """An object that is damaged, cut short, or of an unsupported format. The text says which, without a final stop.

    What helps depends on where the object is, and on what its reader does without it: who logs the error says that.
    """


def seal(kind: ContainerKind, frames: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the object's bytes in pieces. Raises ValueError for a frame that is empty or too large to be read again."""
    head = MAGIC + kind.value + VERSION.to_bytes(2)
    checksum = sha256(head)
    yield head
    for piece in filter(None, _compressed(_framed(frames))):
        checksum.update(piece)
        yield piece
    yield checksum.digest()


def _framed(frames: Iterable[bytes]) -> Iterator[bytes]:
    for frame in frames:
        if not 0 < len(frame) <= FRAME_BYTES_MAX:
            raise ValueError(f"a frame has 1 to {FRAME_BYTES_MAX} bytes, not {len(frame)}")
        yield len(frame).to_bytes(_LENGTH_BYTES) + frame
    yield bytes(_LENGTH_BYTES)


def _compressed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield a zstd frame of the pieces. A small one is made at once, which needs no window on either side."""
    begin, begin_bytes = list[bytes](), 0
    for piece in pieces:
        begin.append(piece)
        begin_bytes += len(piece)
        if begin_bytes > AT_ONCE_BYTES:
            break
    else:
        yield zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(b"".join(begin))
        return
    parameters = zstandard.ZstdCompressionParameters.from_level(COMPRESSION_LEVEL, window_log=WINDOW_LOG)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    while begin:
        yield compressor.compress(begin.pop(0))
    yield from map(compressor.compress, pieces)
    yield compressor.flush()


class Unsealer:
    """The reader of one object: `receive` its bytes in order, then `finish`. All errors are UnreadableError.

    `name` is the object's name in error texts. `plain_bytes_max` limits what the object may unpack to, for one that a
    peer has sent: a few bytes can stand for very many.
    """

    def __init__(self, name: str, kind: ContainerKind, *, plain_bytes_max: int | None = None) -> None:
        self._name, self._kind = name, kind
        self._plain_bytes_left = math.inf if plain_bytes_max is None else plain_bytes_max
        self._head = bytearray()
        self._held = bytearray()  # the last bytes received: the checksum, if no more follow
        self._checksum = sha256()
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG).decompressobj()
        self._plain = bytearray()
        self._is_over = False

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Yield the completed frames; exhaust it before the next call."""
        self._held += data
        taken = bytes(self._held[:-HASH_BYTES])
        del self._held[: len(taken)]
        self._checksum.update(taken)
        lacking = _HEAD_BYTES - len(self._head)
        if lacking > 0:
            self._head += taken[:lacking]
            taken = taken[lacking:]
            self._check_head()
        for start in range(0, len(taken), _STEP_BYTES):
            self._decompress(taken[start : start + _STEP_BYTES])
            yield from self._frames()

    def finish(self) -> None:
        """End the object. On return, all frames that `receive` yielded are proved to be as sealed."""
        if not self._is_over or not self._decompressor.eof:
            raise self.refusal("it ends too early")
        if bytes(self._held) != self._checksum.digest():
            raise self.refusal("its checksum is wrong")

    def refusal(self, problem: str) -> UnreadableError:
        """Return the error to raise for a problem in the frames."""
        return UnreadableError(f"{self._name}: damaged: {problem}")

    def _check_head(self) -> None:
        magic, kind, version = bytes(self._head[:8]), bytes(self._head[8:9]), int.from_bytes(self._head[9:])
        if not MAGIC.startswith(magic):
            raise self.refusal("it does not begin like an object of mail-replicator")
        if kind not in {b"", self._kind.value}:
            raise self.refusal(f"it is no {self._kind.name.lower()}")
        if len(self._head) == _HEAD_BYTES and version != VERSION:
            raise UnreadableError(
                f"{self._name}: has format {version}, but this version of mail-replicator reads format {VERSION}"
            )

    def _decompress(self, data: bytes) -> None:
        if self._decompressor.eof:
            raise self.refusal("it has data after its end")
        try:
            plain = self._decompressor.decompress(data)
        except zstandard.ZstdError as error:
            raise self.refusal(str(error)) from None
        self._plain += plain
        self._plain_bytes_left -= len(plain)
        if self._plain_bytes_left < 0:
            raise self.refusal("it unpacks to more than it may")
        if self._decompressor.unused_data:
            raise self.refusal("it has data after its end")

    def _frames(self) -> Iterator[bytes]:
        start = 0
        while not self._is_over and len(self._plain) >= start + _LENGTH_BYTES:
            length = int.from_bytes(self._plain[start : start + _LENGTH_BYTES])
            if length > FRAME_BYTES_MAX:
                raise self.refusal(f"one of its frames has {length} bytes, which is more than the maximum")
            end = start + _LENGTH_BYTES + length
            if len(self._plain) < end:
                break
            self._is_over = length == 0
            if length:
                yield bytes(self._plain[start + _LENGTH_BYTES : end])
            start = end
        del self._plain[:start]
        if self._is_over and self._plain:
            raise self.refusal("it has data after its last frame")
