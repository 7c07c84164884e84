"""A message text without its attachments: what is to be known to tell its structure, and small however large it is.

Each attachment is cut out of the body of one part and leaves a gap. No line in it begins or ends a part, so that the
skeleton has the structure of the whole text; only offsets, sizes and line counts beyond a gap are other ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Gap(NamedTuple):
    """What was cut out before octet `at` of the skeleton: so many octets, with so many line feeds."""

    at: int
    size_bytes: int
    lines: int


@dataclass(frozen=True, slots=True)
class Skeleton:
    """`raw` is the text without what was in the gaps, which ascend.

    `header_only`: delimiters are in the last gap, too; the message's own header is all that it tells of its structure.
    `lacks_header`: not even that: the header, too, ends in the gap.
    """

    raw: bytes = field(repr=False)
    gaps: tuple[Gap, ...] = ()
    header_only: bool = False
    lacks_header: bool = False

    @property
    def size_bytes(self) -> int:
        """Of the whole text."""
        return self.end(len(self.raw))

    def start(self, at: int) -> int:
        """Where in the text something begins that begins at `at` in the skeleton: before a gap that is there."""
        return at + sum(gap.size_bytes for gap in self.gaps if gap.at < at)

    def end(self, at: int) -> int:
        """Where in the text something ends that ends at `at` in the skeleton: after a gap that is there."""
        return at + sum(gap.size_bytes for gap in self.gaps if gap.at <= at)

    def lines(self, start: int, end: int) -> int:
        """Line feeds in what begins and ends there in the skeleton."""
        return self.raw.count(b"\n", start, end) + sum(gap.lines for gap in self.gaps if start <= gap.at <= end)

    def is_whole(self, start: int, end: int) -> bool:
        """Whether nothing is cut out of what begins and ends there in the skeleton."""
        return not any(start <= gap.at <= end for gap in self.gaps)
