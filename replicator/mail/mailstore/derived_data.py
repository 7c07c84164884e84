"""Data that doors derive from bodies, and want to be kept, so that few bodies must be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from replicator.mime.skeleton import Gap, Skeleton


@dataclass(frozen=True, slots=True)
class Outliner:
    """Maker of outlines: the data of bodies that a door wants to be kept, so that it can answer without reading them.

    `outline` returns the outline of a body, or nothing if the body is always to be read. `wanted` returns the gap of
    the skeleton whose beginning the outline also needs. Both run in a thread, keep no state, and raise
    nothing. `version` rises with each change of what `outline` returns.
    """

    version: int
    outline: Callable[[Skeleton], bytes]
    wanted: Callable[[Skeleton], Gap | None]


@dataclass(frozen=True, slots=True)
class SearchTextMaker:
    """Maker of search texts: data of bodies that a door wants to be kept, so that it can search without reading them.

    `lacks_text` returns True if a skeleton lacks a part that the search text is made of. `make` returns the search text
    of a skeleton that lacks nothing; or nothing if the body is always to be read. They run in a thread, keep no state,
    and raise nothing. `version` rises with each change of what `make` returns.
    """

    version: int
    lacks_text: Callable[[Skeleton], bool]
    make: Callable[[Skeleton], bytes]


class SearchTextSlice(NamedTuple):
    """The search texts of the first `messages` requested messages, by content hash. A message without one is read."""

    texts: Mapping[bytes, bytes]
    messages: int


@dataclass(frozen=True, slots=True)
class MessageIdReader:
    """Reads the Message-ID of a message (RFC 5322 section 3.6.4), without its angle brackets; None if it has none.

    `of_outline` takes an outline of this `version`, `of_skeleton` any message. Both run in a thread, keep no state, and
    raise nothing.
    """

    version: int
    of_outline: Callable[[bytes], str | None]
    of_skeleton: Callable[[Skeleton], str | None]
