"""Rows and digests: a mailbox's state in the form in which two nodes can be compared (design sections 2 and 7).

A row's fingerprint is a 128-bit hash of all its fields; a mailbox's is the sum of its rows' modulo 2**128, so that a
change costs one subtraction and one addition. A digest adds the head's own numbers: two nodes that show the same state
have the same digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeAlias, cast

import msgpack

from protocol.values import Dot, Stamp

FINGERPRINT_BYTES = 16
_MODULUS = 1 << (8 * FINGERPRINT_BYTES)

FlagStates: TypeAlias = Mapping[str, tuple[int, str, bool]]
"""Flag -> (time and SID of the stamp of its last change, set?). A cleared flag keeps its stamp."""


Placement: TypeAlias = tuple[Dot, int]
"""Dot of the entry that put a message into a mailbox, and the index of the change that did."""


class Row(NamedTuple):
    """One message of a mailbox, with everything that a merge needs to know of it.

    `dot` and `change` name its placement. Where merges have made one message of several placements of a GUID, that is
    the earliest of them, and `also` has the others, by age. `saved_ms` is the save date (design section 3), which stays
    with the UID; None: an earlier version has numbered the placement whose date it is.
    """

    uid: int
    dot: Dot
    change: int
    guid: bytes
    claim: Dot
    modseq: int
    flags: FlagStates
    received_ms: int
    size_bytes: int
    content_hash: bytes
    also: tuple[Placement, ...] = ()
    saved_ms: int | None = None

    def placements(self) -> tuple[Placement, ...]:
        """Return all placements that the message stands for, by age."""
        return (self.dot, self.change), *self.also

    def dots(self) -> Iterator[Dot]:
        """Yield the entries that the row names: its placements' and its claim."""
        yield from (dot for dot, _ in self.placements())
        yield self.claim

    def packed(self) -> tuple[object, ...]:
        """Return the row as plain values, without the last ones that are empty, as earlier versions have them."""
        if self.saved_ms is not None:
            return self
        return self[:-1] if self.also else self[:-2]

    def fingerprint(self) -> int:
        """Return a 128-bit hash over every field."""
        return fingerprint((*self[:6], sorted(self.flags.items()), *self.packed()[7:]))

    def visible_flags(self) -> frozenset[str]:
        """Return the flags that are set."""
        return frozenset(flag for flag, state in self.flags.items() if state[2])


def age(placement: Placement) -> tuple[int, str, int]:
    """Return a sort key by which a message's earliest placement comes first; the same at all nodes."""
    dot, change = placement
    return dot.seq, dot.origin, change


def shares_placement(one: Row, other: Row) -> bool:
    """Return True if two rows of one GUID stand for a common placement.

    On Spark: `spark.comparison.versions.share_placement`.
    """
    return not set(one.placements()).isdisjoint(other.placements())


def fingerprint(values: Sequence[object]) -> int:
    """Return a 128-bit hash over plain values, equal on all nodes for equal values."""
    packed = cast("bytes", msgpack.packb(values))
    return int.from_bytes(blake2b(packed, digest_size=FINGERPRINT_BYTES).digest())


def add(total: int, *fingerprints: int) -> int:
    """Return the sum of a set after these members were added."""
    return (total + sum(fingerprints)) % _MODULUS


def remove(total: int, *fingerprints: int) -> int:
    """Return the sum of a set after these members were removed."""
    return (total - sum(fingerprints)) % _MODULUS


def to_bytes(total: int) -> bytes:
    """Return a sum or digest as 16 bytes."""
    return total.to_bytes(FINGERPRINT_BYTES)


def set_flags(
    flags: FlagStates, names: Sequence[str], stamp: Stamp, *, value: bool
) -> dict[str, tuple[int, str, bool]]:
    """Return the flags after an entry with this stamp has set or cleared `names`."""
    return {**flags, **dict.fromkeys(names, (stamp.time, stamp.sid, value))}
