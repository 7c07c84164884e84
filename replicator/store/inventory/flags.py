"""Conversion of many messages' flags from the rows' MessagePack into columns, with as little work as possible.

Most messages have no flag or one. The blobs of one flag differ in the time only; the rest, which many share, is looked
up. So a blob is unpacked only if it has several flags, or is of a kind not seen before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias, cast

import msgpack

KINDS_MAX = 1 << 14  # kinds kept in memory: some MiB
TIME_MAX = (1 << 63) - 1

# https://github.com/msgpack/msgpack/blob/master/spec.md: {flag: [time, sid, set]} of one flag begins with a map of one,
# a string of less than 32 bytes, an array of three, and a number of 64 bits, big-endian.
_NONE, _ONE = b"\x80", 0x81
_SHORT, _SHORT_MASK = 0b101 << 5, 0b111 << 5
_THREE_AND_TIME = b"\x93\xcf"
_TIME_BYTES = 8

Kind: TypeAlias = tuple[str, str, bool]
"""A flag, the SID of its last change's stamp, and whether it is set."""


class FlagColumns(NamedTuple):
    """Flags of many messages: message n has those from `ends[n]` to `ends[n + 1]`; `ends` begins with 0.

    `kinds` are indexes into the reader's table, `times` those of the stamps.
    """

    ends: list[int]
    kinds: list[int]
    times: list[int]


class FlagReader:
    """The reader of blobs. `table` maps the numbers in `FlagColumns.kinds` to kinds, until the next `read`."""

    def __init__(self) -> None:
        self.table: list[Kind] = []
        self._numbers: dict[Kind, int] = {}
        self._known: dict[bytes, int] = {}  # one-flag blob without its time -> kind

    def read(self, blobs: Iterable[bytes]) -> FlagColumns:
        """Read flags.

        Raises ValueError, TypeError, AttributeError or LookupError for a blob that is not a map of flags.
        """
        if len(self.table) > KINDS_MAX or len(self._known) > KINDS_MAX:
            self.table, self._numbers, self._known = [], {}, {}
        known, from_bytes = self._known, int.from_bytes
        ends, kinds, times = [0], list[int](), list[int]()
        for blob in blobs:
            if blob != _NONE:
                at = (blob[1] & 31) + 4
                if (kind := known.get(blob[:at] + blob[at + _TIME_BYTES :])) is not None:
                    kinds.append(kind)
                    times.append(from_bytes(blob[at : at + _TIME_BYTES]))
                else:
                    for time, kind in self._unpacked(blob, at):
                        kinds.append(kind)
                        times.append(time)
            ends.append(len(times))
        return FlagColumns(ends, kinds, times)

    def _unpacked(self, blob: bytes, at: int) -> list[tuple[int, int]]:
        states = states_of(blob)
        found = [(time, self._number((flag, sid, is_set))) for flag, time, sid, is_set in states]
        is_short = blob[0] == _ONE and blob[1] & _SHORT_MASK == _SHORT
        if is_short and blob[at - 2 : at] == _THREE_AND_TIME and found:
            self._known[blob[:at] + blob[at + _TIME_BYTES :]] = found[0][1]
        return found

    def _number(self, kind: Kind) -> int:
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = len(self.table)
            self.table.append(kind)
        return number


def states_of(blob: bytes) -> list[tuple[str, int, str, bool]]:
    """Unpack a blob into tuples of flag, time, SID and is-set, by flag.

    Raises ValueError, TypeError or AttributeError.
    """
    flags = cast("dict[str, tuple[int, str, bool]]", msgpack.unpackb(blob, use_list=False))
    states = [(flag, time, sid, is_set) for flag, (time, sid, is_set) in sorted(flags.items())]
    if not all(map(_is_state, states)):
        raise ValueError("not a map of flags")
    return states


def _is_state(state: tuple[object, ...]) -> bool:
    flag, time, sid, is_set = state
    is_time = isinstance(time, int) and not isinstance(time, bool) and abs(time) <= TIME_MAX
    return isinstance(flag, str) and is_time and isinstance(sid, str) and isinstance(is_set, bool)
