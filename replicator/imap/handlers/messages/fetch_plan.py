"""Plan of a FETCH: its items, under the names that answers give them, and the sources that they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from replicator.imap.matching.message_reader import PREVIEW_VALUES
from replicator.imap.rendering.summaries import is_summary
from replicator.imap.wire.fetch_items import (
    Attribute,
    FetchItem,
    is_preview,
    needs_body,
    needs_structure,
    response_name,
)

QUICK_VALUES = 4
"""Items, previews aside, that are made of a small body in some ten microseconds."""

NamedItems: TypeAlias = Sequence[tuple[bytes, FetchItem]]
"""Items with the names that answers give them."""


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Data to send for each message.

    `with_preview`: the preview is worth reading a body. `previews`: it is told, or it is where the body is read anyway.
    `values`: work of making all values, as `Parsing` counts it. `is_summary`: rows and outlines of most messages tell
    all of it.
    """

    items: NamedItems
    with_body: bool
    with_structure: bool
    with_preview: bool
    previews: bool
    values: int
    is_summary: bool
    tells_flags: bool
    tells_modseq: bool
    tells_uid: bool

    @property
    def is_quick(self) -> bool:
        """True if the values of a small body take no longer than copying its octets."""
        return self.values <= QUICK_VALUES and not self.with_structure


def plan_of(wanted: Iterable[FetchItem]) -> FetchPlan:
    """Return the plan for these items, each once."""
    items = list(dict.fromkeys(wanted))
    previews = any(is_preview(item) for item in items)
    return FetchPlan(
        items=[(response_name(item).encode("ascii"), item) for item in items],
        with_body=any(needs_body(item) for item in items),
        with_structure=any(needs_structure(item) for item in items),
        with_preview=Attribute.PREVIEW in items,
        previews=previews,
        values=len(items) + PREVIEW_VALUES * previews,
        is_summary=all(is_summary(item) for item in items),
        tells_flags=Attribute.FLAGS in items,
        tells_modseq=Attribute.MODSEQ in items,
        tells_uid=Attribute.UID in items,
    )
