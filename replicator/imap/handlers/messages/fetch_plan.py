"""Plan of a FETCH: its items, under the names that answers give them, and the sources that they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from replicator.imap.rendering.summaries import is_summary
from replicator.imap.wire.fetch_items import Attribute, FetchItem, needs_body, needs_structure, response_name

NamedItems: TypeAlias = Sequence[tuple[bytes, FetchItem]]
"""Items with the names that answers give them."""


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Data to send for each message. `is_summary`: rows and outlines of most messages tell all of it."""

    items: NamedItems
    with_body: bool
    with_structure: bool
    with_preview: bool
    with_lazy_preview: bool
    is_summary: bool
    tells_flags: bool
    tells_modseq: bool
    tells_uid: bool


def plan_of(wanted: Iterable[FetchItem]) -> FetchPlan:
    """Return the plan for these items, each once."""
    items = list(dict.fromkeys(wanted))
    return FetchPlan(
        items=[(response_name(item).encode("ascii"), item) for item in items],
        with_body=any(needs_body(item) for item in items),
        with_structure=any(needs_structure(item) for item in items),
        with_preview=Attribute.PREVIEW in items,
        with_lazy_preview=Attribute.PREVIEW_LAZY in items,
        is_summary=all(is_summary(item) for item in items),
        tells_flags=Attribute.FLAGS in items,
        tells_modseq=Attribute.MODSEQ in items,
        tells_uid=Attribute.UID in items,
    )
