"""A parser under test, what it must keep to, and the bounds of its work and memory."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from protocol.units import MIB

LONGEST_INPUT = 8192
"""Octets of the longest input: enough for whole sessions, and for work that grows faster than the input to show."""

PIECE_SIZES = (1, 2, 3, 5, 8, 13, 64, 512)
"""Octets: small pieces end within markers of all kinds."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parser. `check` raises AssertionError, or an error that nobody documents, if an input breaks a rule.

    `seeds` are inputs to begin with, most of them valid; `words` are what its language is made of. The bounds are
    function calls and octets of memory, for any input and for each octet of it.
    """

    name: str
    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...]
    calls: int = 20_000
    calls_per_octet: int = 1_000
    memory: int = MIB
    memory_per_octet: int = 2_000
    is_cut: bool = True  # the first octet of an input says how the rest is cut into pieces (`pieces_of`)

    def warm_up(self) -> None:
        """Check the seeds without bounds, so that grammars and caches are there."""
        for seed in self.seeds:
            self.check(seed)

    def run(self, data: bytes) -> None:
        """Check an input, and the number of function calls that this takes.

        What takes too many is counted again: the first of its kind may fill a cache, or compile a regular expression.
        """
        most = self.calls + self.calls_per_octet * len(data)
        calls = self._counted(data)
        if calls > most:
            calls = self._counted(data)
        assert calls <= most, f"{calls} calls for {len(data)} octets; the bound is {most}"

    def _counted(self, data: bytes) -> int:
        with counted_calls() as work:
            self.check(data)
        return work.calls

    def run_measured(self, data: bytes) -> None:
        """Do the same, and check the most memory that it holds at once. Slower."""
        tracemalloc.start()
        try:
            self.run(data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        most = self.memory + self.memory_per_octet * len(data)
        assert peak <= most, f"{peak} octets of memory for {len(data)} octets; the bound is {most}"


class Work:
    """Number of calls of Python's functions. Counts do not depend on how fast the machine is, nor on who watches."""

    def __init__(self) -> None:
        self.calls = 0

    def note(self, _frame: FrameType, event: str, _argument: object) -> None:
        """Count a call; called by the interpreter."""
        if event == "call":
            self.calls += 1


@contextmanager
def counted_calls() -> Iterator[Work]:
    """Count the calls in this block."""
    work = Work()
    sys.setprofile(work.note)
    try:
        yield work
    finally:
        sys.setprofile(None)


def pieces_of(data: bytes) -> tuple[bytes, list[bytes]]:
    """Return the octets after the first one, whole and in pieces whose size the first one chooses."""
    return data[1:], pieces(data[1:], piece_size(data))


def piece_size(data: bytes) -> int:
    """Return the size of pieces that the first octet chooses."""
    return PIECE_SIZES[data[0] % len(PIECE_SIZES)] if data else 1


def pieces(data: bytes, size: int) -> list[bytes]:
    """Return the octets in pieces of a size."""
    return [data[start : start + size] for start in range(0, len(data), size)]
