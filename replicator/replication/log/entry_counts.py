"""The count of entries that went over the links to one peer since this node's start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EntryCounts:
    """The entries sent and received, by all links to the peer so far; one that came twice counts twice."""

    sent: int = 0
    received: int = 0
