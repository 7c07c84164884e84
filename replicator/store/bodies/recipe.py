"""Recipes: a message body as a sequence of octets in the recipe itself and of attachments.

A recipe comes from this node's database or from another node, so everything read is checked: each body has exactly one
recipe that `BodyWriter` makes, and each recipe one packed form. Reading yields a plan without I/O: octets, and slices
of attachments for others to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias, cast

import msgpack

from protocol.units import MIB
from replicator.mime.base64_lines import Coding
from replicator.mime.header import Header
from replicator.mime.skeleton import Gap, Skeleton
from replicator.store.bodies.attachment_ranges import CHUNK_BYTES, CHUNK_HASH_BYTES, HASH_BYTES, Attached, AttachedSlice

INLINE_TOTAL_MAX = MIB
"""Maximum number of inline octets of a body, all of which are in memory to tell its structure."""

PACKED_MAX = 4 * MIB
"""Maximum size of a packed recipe: inline octets, 16 bytes per attachment chunk, and some 60 per attachment."""

Piece: TypeAlias = bytes | Attached


@dataclass(frozen=True, slots=True)
class Recipe:
    """The pieces of a body in their order. Raises ValueError if they cannot be the pieces of one."""

    pieces: tuple[Piece, ...] = field(repr=False)

    def __post_init__(self) -> None:
        inline = [piece for piece in self.pieces if isinstance(piece, bytes)]
        if not all(inline) or sum(map(len, inline)) > INLINE_TOTAL_MAX:
            raise ValueError(f"an inline piece is empty, or the inline pieces have more than {INLINE_TOTAL_MAX} octets")
        if any(isinstance(one, bytes) and isinstance(other, bytes) for one, other in pairwise(self.pieces)):
            raise ValueError("adjacent inline pieces must be joined into one")
        if any(isinstance(piece, Attached) and piece.opaque for piece in self.pieces[:-1]):
            raise ValueError("an opaque piece must be the last one")

    @property
    def length(self) -> int:
        """Length of the body, in octets."""
        return sum(_length(piece) for piece in self.pieces)

    @property
    def attached(self) -> tuple[Attached, ...]:
        """The pieces that are attachments; several may be of one attachment."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Attached))

    @property
    def distinct(self) -> tuple[Attached, ...]:
        """The attachments, each once, however often it occurs in the body."""
        return tuple({attached.hash: attached for attached in self.attached}.values())

    def skeleton(self) -> Skeleton:
        """Return the body without its attachments."""
        raw, gaps, is_opaque = bytearray(), [], False
        for piece in self.pieces:
            if isinstance(piece, bytes):
                raw += piece
            else:
                gaps.append(Gap(len(raw), piece.length, piece.lines))
                is_opaque = piece.opaque
        skeleton = Skeleton(bytes(raw), tuple(gaps), header_only=is_opaque)
        return replace(skeleton, lacks_header=is_opaque and not _has_header(skeleton))

    def slices(self, start: int, end: int) -> Iterator[bytes | AttachedSlice]:
        """Yield the octets of the body from `start` up to `end`, at most `CHUNK_BYTES` at a time."""
        at = 0
        for piece in self.pieces:
            first, behind = max(start - at, 0), min(end - at, _length(piece))
            at += _length(piece)
            if first >= behind:
                continue
            if isinstance(piece, Attached):
                yield from piece.slices(first, behind)
            else:
                for cut in range(first, behind, CHUNK_BYTES):
                    yield piece[cut : min(cut + CHUNK_BYTES, behind)]

    def pack(self) -> bytes:
        """Return the recipe as MessagePack."""
        return cast("bytes", msgpack.packb([_packed(piece) for piece in self.pieces]))

    @classmethod
    def unpack(cls, packed: bytes) -> Recipe:
        """Return the recipe that `pack` packed. Raises ValueError for anything else."""
        if len(packed) > PACKED_MAX:
            raise ValueError(f"a recipe has at most {PACKED_MAX} bytes, not {len(packed)}")
        try:
            fields = msgpack.unpackb(packed, use_list=False)
        except (msgpack.UnpackException, ValueError) as error:
            raise ValueError(f"{len(packed)} bytes are not MessagePack: {error!r}") from None
        if not isinstance(fields, tuple):
            raise ValueError(f"a recipe is an array, not {type(fields).__name__}")  # noqa: TRY004  # bytes are no type
        recipe = cls(tuple(_piece(values) for values in fields))
        if recipe.pack() != packed:
            raise ValueError("the recipe is not packed in the canonical form")
        return recipe


def _has_header(skeleton: Skeleton) -> bool:
    """Return True if a whole line separates the header from the part cut out, which thus has nothing of the header."""
    behind = skeleton.gaps[0].at
    return b"\n" in skeleton.raw[Header.at(skeleton.raw, 0, behind).end : behind]


def _length(piece: Piece) -> int:
    return piece.length if isinstance(piece, Attached) else len(piece)


def _packed(piece: Piece) -> object:
    if isinstance(piece, bytes):
        return piece
    coding = piece.coding and (piece.coding.width, piece.coding.line_end, piece.coding.is_closed)
    return (piece.hash, piece.size_bytes, piece.lines, piece.chunk_hashes, coding, piece.opaque)


def _piece(values: object) -> Piece:
    # A value that `int` converts here, such as a bool, packs differently and fails the check in `unpack`.
    match values:
        case bytes():
            return values
        case (bytes(digest), int(size), int(lines), bytes(chunk_hashes), None, bool(opaque)):
            return _checked(Attached(digest, int(size), int(lines), chunk_hashes, None, opaque))
        case (bytes(digest), int(size), int(lines), bytes(chunk_hashes), (int(width), bytes(end), bool(closed)), False):
            return _checked(Attached(digest, int(size), int(lines), chunk_hashes, Coding(int(width), end, closed)))
        case _:
            raise ValueError("a piece of a recipe has values of wrong types")


def _checked(piece: Attached) -> Attached:
    if len(piece.hash) != HASH_BYTES or piece.size_bytes < 1:
        raise ValueError(f"an attachment must have a hash of {HASH_BYTES} bytes and at least one octet")
    if len(piece.chunk_hashes) != -(-piece.size_bytes // CHUNK_BYTES) * CHUNK_HASH_BYTES:
        raise ValueError(f"{len(piece.chunk_hashes)} bytes of chunk hashes do not fit {piece.size_bytes} octets")
    most = piece.size_bytes if piece.coding is None else piece.coding.lines(piece.size_bytes)
    least = 0 if piece.coding is None else most
    if not least <= piece.lines <= most:
        raise ValueError(f"{piece.lines} line feeds do not fit into {piece.length} octets")
    return piece
