"""A message body without its attachments: small however large the message is, and enough to tell its structure.

Each attachment is cut out of the content of one part and leaves a gap. No line in it begins or ends a part, so the
skeleton has the structure of the whole message; only offsets, sizes and line counts beyond a gap differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from protocol.units import KIB

BEGIN_BYTES = 128 * KIB
"""Octets of a text in which its preview is looked for: newsletters begin with long style sheets."""


class Gap(NamedTuple):
    """Octets cut out before octet `at` of the skeleton: their number, and their number of line feeds.

    `begin`: the first `BEGIN_BYTES` of them, if they are known.
    """

    at: int
    size_bytes: int
    lines: int
    begin: bytes | None = None


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A message body without the octets of its gaps: `raw`, and the `gaps` in ascending order.

    `header_only`: the last gap contains delimiters too, so of the structure only the message's own header is known.
    `lacks_header`: not even that is complete, because the header ends in the gap.
    """

    raw: bytes = field(repr=False)
    gaps: tuple[Gap, ...] = ()
    header_only: bool = False
    lacks_header: bool = False

    @property
    def size_bytes(self) -> int:
        """Size of the whole message in octets."""
        return self.end(len(self.raw))

    def knowing(self, gap: Gap, begin: bytes) -> Self:
        """Return this skeleton with the first octets of one of its gaps."""
        return replace(self, gaps=tuple(one._replace(begin=begin) if one == gap else one for one in self.gaps))

    def start(self, at: int) -> int:
        """Return the offset in the message of a range that begins at `at` in the skeleton: before a gap at `at`."""
        return at + sum(gap.size_bytes for gap in self.gaps if gap.at < at)

    def end(self, at: int) -> int:
        """Return the offset in the message of a range that ends at `at` in the skeleton: after a gap at `at`."""
        return at + sum(gap.size_bytes for gap in self.gaps if gap.at <= at)

    def lines(self, start: int, end: int) -> int:
        """Return the number of line feeds in this range of the skeleton, including its gaps."""
        return self.raw.count(b"\n", start, end) + sum(gap.lines for gap in self.gaps if start <= gap.at <= end)

    def is_whole(self, start: int, end: int) -> bool:
        """Return True if this range of the skeleton has no gaps."""
        return not any(start <= gap.at <= end for gap in self.gaps)
