"""Range fingerprints: find the difference of two sets with traffic that grows with the difference (design section 7).

A set has items of a key (16 bytes: a message's GUID, a mailbox's id) and a hash (128 bits, over everything that belongs
to the key). The `Fingerprint` of a range of keys is the number of its items and the sum of their hashes. One side asks.
For a range whose fingerprints differ, the other side returns the fingerprints of its 16 parts or, if it holds few items
there, the items. A range is named by the hexadecimal digits with which its keys begin; "" means all keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from resync.entry import ID_BYTES
from resync.row import FINGERPRINT_BYTES, add, remove, to_bytes

LISTED_MAX = 24  # items of a range: about as many bytes as the fingerprints of its parts
QUESTIONS_AT_ONCE = 64  # some 40 KiB of answers
ITEMS_MAX = 1 << 24  # of a set, 512 MiB: more than a usable mailbox holds
DIGITS = "0123456789abcdef"

_ITEM_BYTES = ID_BYTES + FINGERPRINT_BYTES
_RUN = 16  # items between two running totals: costs 3 bytes per item and leaves few hashes to add up for a range


class Fingerprint(NamedTuple):
    """Fingerprint of a range: the number of its items, and the sum of their hashes modulo 2**128."""

    size: int
    total: int


class Split(NamedTuple):
    """An answer: the fingerprints of the 16 parts, in the order of their digits."""

    parts: tuple[Fingerprint, ...]


class Listing(NamedTuple):
    """An answer: all items, in the order of their keys."""

    items: tuple[tuple[bytes, int], ...]


Answer: TypeAlias = Split | Listing


class Fingerprints:
    """A set at one moment, in 35 bytes per item. Raises ValueError for a duplicate key or one of another size."""

    def __init__(self, items: Iterable[tuple[bytes, int]]) -> None:
        self._fill(sorted(key + to_bytes(value) for key, value in items))

    def _fill(self, packed: Sequence[bytes]) -> None:
        if any(len(item) != _ITEM_BYTES for item in packed) or any(a[:16] == b[:16] for a, b in pairwise(packed)):
            raise ValueError(f"the keys of a set must have {ID_BYTES} bytes each, and differ")
        self._packed = b"".join(packed)
        self._running = [0]  # the total of all items before each run
        for start in range(0, len(packed), _RUN):
            self._running.append(add(self._running[-1], *map(_hash, packed[start : start + _RUN])))

    def __len__(self) -> int:
        return len(self._packed) // _ITEM_BYTES

    def patched(self, changed: Mapping[bytes, int], gone: Container[bytes] = ()) -> Fingerprints:
        """Return the set with these hashes of old and new keys, and without the keys that are `gone`."""
        items = map(self._at, range(len(self)))
        kept = (item for item in items if (key := item[:ID_BYTES]) not in changed and key not in gone)
        made = Fingerprints(())
        made._fill(sorted((*kept, *(key + to_bytes(value) for key, value in changed.items()))))
        return made

    def of(self, prefix: str) -> Fingerprint:
        """Return the fingerprint of a range."""
        start, end = self._bounds(prefix)
        return Fingerprint(end - start, remove(self._before(end), self._before(start)))

    def items(self, prefix: str) -> Iterator[tuple[bytes, int]]:
        """Yield the items of a range, in the order of their keys."""
        return (_unpacked(self._at(index)) for index in range(*self._bounds(prefix)))

    def hash_of(self, key: bytes) -> int | None:
        """Return the hash of a key, or None if the key is not in the set."""
        item = self._at(bisect_left(range(len(self)), key, key=lambda index: self._at(index)[:ID_BYTES]))
        return _hash(item) if item[:ID_BYTES] == key else None

    def answer(self, prefix: str) -> Answer:
        """Return the answer for the side that asks about a range."""
        start, end = self._bounds(prefix)
        if end - start <= LISTED_MAX:
            return Listing(tuple(self.items(prefix)))
        edges = [start, *(self._first(prefix + digit, start, end) for digit in DIGITS[1:]), end]
        totals = [self._before(edge) for edge in edges]
        sizes = (after - before for before, after in pairwise(edges))
        return Split(tuple(map(Fingerprint, sizes, (remove(after, before) for before, after in pairwise(totals)))))

    def _at(self, index: int) -> bytes:
        return self._packed[index * _ITEM_BYTES : (index + 1) * _ITEM_BYTES]

    def _bounds(self, prefix: str) -> tuple[int, int]:
        """Return the first and the last index, exclusive, of a range. Raises ValueError if `prefix` names no range."""
        if len(prefix) > 2 * ID_BYTES or not set(prefix) <= set(DIGITS):
            raise ValueError(f"{prefix!r} is not a range of keys")
        high = bytes.fromhex(prefix.ljust(2 * ID_BYTES, "f"))
        start = self._first(prefix, 0, len(self))
        end = bisect_left(range(len(self)), high, lo=start, key=lambda index: self._at(index)[:ID_BYTES])
        return start, end + (end < len(self) and self._at(end)[:ID_BYTES] == high)

    def _first(self, prefix: str, low: int, high: int) -> int:
        """Return the index, from `low` to `high`, of the first item in a range or after it."""
        key = bytes.fromhex(prefix.ljust(2 * ID_BYTES, "0"))
        return bisect_left(range(len(self)), key, low, high, key=lambda index: self._at(index)[:ID_BYTES])

    def _before(self, index: int) -> int:
        run = index // _RUN
        return add(self._running[run], *(_hash(self._at(at)) for at in range(run * _RUN, index)))


class Difference(NamedTuple):
    """Keys, each in order: those that only one side has, and those that both have with different hashes."""

    only_ours: tuple[bytes, ...]
    only_theirs: tuple[bytes, ...]
    differing: tuple[bytes, ...]


@dataclass(slots=True)
class Comparison:
    """The comparison, run by the side that asks. `theirs`: the fingerprint of the whole other set.

    Pass the answer to each of the `questions` to `take` until there are no more; then `difference` is complete.
    """

    ours: Fingerprints
    theirs: Fingerprint
    _known: dict[str, Fingerprint] = field(init=False)  # theirs, of differing ranges that are not yet answered
    _to_ask: deque[str] = field(init=False)
    _ours: list[bytes] = field(init=False, default_factory=list)
    _theirs: list[bytes] = field(init=False, default_factory=list)
    _differing: list[bytes] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Raise ValueError if the set is too large."""
        if self.theirs.size > ITEMS_MAX:
            raise ValueError(f"a set of {self.theirs.size} items is too large; at most {ITEMS_MAX} can be compared")
        self._known, self._to_ask = {}, deque()
        self._look("", self.theirs)

    def questions(self) -> tuple[str, ...]:
        """Return the ranges to ask for next; empty if there are none, or if they depend on answers still due."""
        return tuple(self._to_ask.popleft() for _ in range(min(QUESTIONS_AT_ONCE, len(self._to_ask))))

    @property
    def is_done(self) -> bool:
        """True if every question is answered."""
        return not self._known

    def take(self, prefix: str, answer: Answer) -> None:
        """Take in the answer for a range that was asked for. Raises ValueError if it does not add up."""
        known = self._known.pop(prefix, None)
        if known is None:
            raise ValueError(f"the range {prefix!r} was not asked for")
        match answer:
            case Split(parts):
                if len(parts) != len(DIGITS) or len(prefix) == 2 * ID_BYTES or _sum(parts) != known:
                    raise ValueError(f"the parts of the range {prefix!r} do not add up")
                for digit, part in zip(DIGITS, parts, strict=True):
                    self._look(prefix + digit, part)
            case Listing(items):
                keys = [key for key, _ in items]
                is_sound = all(len(key) == ID_BYTES and key.hex().startswith(prefix) for key in keys)
                is_sound = is_sound and all(one < other for one, other in pairwise(keys))
                if not is_sound or Fingerprint(len(items), add(0, *(value for _, value in items))) != known:
                    raise ValueError(f"the items of the range {prefix!r} do not add up")
                self._compare(dict(self.ours.items(prefix)), dict(items))

    @property
    def lacking(self) -> int:
        """The number of keys found so far that only the other side has, or has with another hash."""
        return len(self._theirs) + len(self._differing)

    def difference(self) -> Difference:
        """Return the differences found so far."""
        return Difference(*(tuple(sorted(keys)) for keys in (self._ours, self._theirs, self._differing)))

    def _look(self, prefix: str, theirs: Fingerprint) -> None:
        if self.ours.of(prefix) == theirs:
            return
        if theirs.size == 0:
            self._ours += (key for key, _ in self.ours.items(prefix))
            return
        self._known[prefix] = theirs
        self._to_ask.append(prefix)

    def _compare(self, ours: dict[bytes, int], theirs: dict[bytes, int]) -> None:
        self._ours += ours.keys() - theirs.keys()
        self._theirs += theirs.keys() - ours.keys()
        self._differing += (key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key])


def _sum(parts: Sequence[Fingerprint]) -> Fingerprint:
    return Fingerprint(sum(part.size for part in parts), add(0, *(part.total for part in parts)))


def _hash(item: bytes) -> int:
    return int.from_bytes(item[ID_BYTES:])


def _unpacked(item: bytes) -> tuple[bytes, int]:
    return item[:ID_BYTES], _hash(item)
