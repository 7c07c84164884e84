"""Metrics of message bodies: what is kept, and what the tasks in the background have yet to do."""

from __future__ import annotations

from typing import NamedTuple

from replicator.replication.coordinator import Coordinator
from replicator.replication.node_metrics.backlog_counts import BacklogCounts
from replicator.replication.node_metrics.families import Families, or_nan
from replicator.store.bodies.outline_rows import new_count
from replicator.store.db.queries import Connection
from replicator.store.gc import expunged


class BodyFigures(NamedTuple):
    """Totals that the database tells at once, however much there is."""

    bodies_without_outline: int
    oldest_expunged_ms: int | None


def body_figures(connection: Connection) -> BodyFigures:
    """Return these figures."""
    return BodyFigures(new_count(connection), expunged.oldest_ms(connection))


class BodyMetrics:
    """Metrics of bodies."""

    def __init__(self, families: Families, coordinator: Coordinator) -> None:
        gauge = families.gauge
        self._bodies = coordinator.bodies
        self._keep_s = coordinator.config.content.keep_expunged_s
        later = "NaN until they are counted, a moment after the start."
        self._texts_lacking = gauge(
            "texts_lacking", f"Bodies of messages shown here that this node has yet to fetch from other nodes; {later}"
        )
        self._outlines_waiting = gauge(
            "outlines_waiting",
            "Bodies of which no outline has been made yet, so that FETCH reads them; some of them may have gone.",
        )
        self._outlines_outdated = gauge(
            "outlines_outdated", f"Bodies whose outline is of an earlier version, and is made anew; {later}"
        )
        self._expunged = gauge(
            "expunged_kept_messages", f"Expunged messages that are kept and can be restored; {later}"
        )
        self._expunged_bytes = gauge(
            "expunged_kept_bytes",
            f"Size of the bodies of expunged messages that are kept; several messages may share a body; {later}",
        )
        self._expunged_overdue = gauge(
            "expunged_overdue_seconds",
            "Time by which the oldest expunged message is kept for longer than `content.keep_expunged`; 0 if none is.",
        )
        self._candidates = gauge(
            "deletion_candidates", f"Bodies that are removed unless a message turns out to have them; {later}"
        )
        counted = "as counted by the last sweep or scrub; NaN until the first one, some minutes after the start."
        self._held = gauge("attachments", f"Attachments of this node's bodies, each counted once, {counted}")
        self._held_bytes = gauge("attachments_bytes", f"Size of the attachments of this node's bodies, {counted}")
        self._to_heal = gauge(
            "attachments_to_heal",
            "Attachments known to be damaged or missing, which this node fetches from other nodes.",
        )
        unknown = "NaN if this node keeps none now."
        self._search_texts = gauge("search_texts", f"Bodies that SEARCH need not read: their text is kept; {unknown}")
        self._search_texts_waiting = gauge(
            "search_texts_waiting", f"Bodies whose text is yet to be kept for SEARCH, which reads them; {unknown}"
        )
        self._search_texts_bytes = gauge(
            "search_texts_bytes", f"Size on disk of the texts that are kept for SEARCH; {unknown}"
        )

    def refresh(self, figures: BodyFigures, now_ms: int) -> None:
        """Show the present state."""
        self._outlines_waiting.set(figures.bodies_without_outline)
        oldest_ms = figures.oldest_expunged_ms
        kept_s = 0.0 if oldest_ms is None else (now_ms - oldest_ms) / 1000
        self._expunged_overdue.set(max(0.0, kept_s - self._keep_s))
        held, texts = self._bodies.attachments_held, self._bodies.search_texts.status
        self._held.set(or_nan(held.attachments if held else None))
        self._held_bytes.set(or_nan(held.size_bytes if held else None))
        self._to_heal.set(self._bodies.attachments_to_heal)
        self._search_texts.set(or_nan(texts.bodies if texts else None))
        self._search_texts_waiting.set(or_nan(texts.waiting if texts else None))
        self._search_texts_bytes.set(or_nan(texts.size_bytes if texts else None))

    def refresh_counts(self, counts: BacklogCounts | None) -> None:
        """Show what was last counted at leisure; None: nothing was yet."""
        self._texts_lacking.set(or_nan(counts and counts.texts_lacking))
        self._expunged.set(or_nan(counts and counts.expunged_messages))
        self._expunged_bytes.set(or_nan(counts and counts.expunged_bytes))
        self._candidates.set(or_nan(counts and counts.deletion_candidates))
        self._outlines_outdated.set(or_nan(counts and counts.outdated_outlines))
