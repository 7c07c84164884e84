"""Sort criteria (RFC 5256 section 3, RFC 5957 section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SortKey(Enum):
    """Values by which messages are compared."""

    ARRIVAL = "ARRIVAL"
    CC = "CC"
    DATE = "DATE"
    DISPLAYFROM = "DISPLAYFROM"
    DISPLAYTO = "DISPLAYTO"
    FROM = "FROM"
    SIZE = "SIZE"
    SUBJECT = "SUBJECT"
    TO = "TO"


@dataclass(frozen=True, slots=True)
class SortCriterion:
    """A key, in ascending order or, if `reverse`, in descending order."""

    key: SortKey
    reverse: bool = False
