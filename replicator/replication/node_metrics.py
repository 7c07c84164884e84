"""The node's metrics for Prometheus; `node_status` refreshes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Info

from protocol.values import Dot
from replicator.replication.bodies import AttachmentTotals
from replicator.status import CertificateStatus, CheckpointStatus, LinkStatus, SearchTextStatus
from replicator.store.db.transaction import Commit
from resync.entry import MailAdd


class NodeMetrics:
    """The node's metrics. Names follow Prometheus: base units, counters end in `_total`."""

    def __init__(self, registry: CollectorRegistry, data: str) -> None:

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"replicator_{name}", text, labels, registry=registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"replicator_{name}", text, registry=registry)

        unknown = "NaN if this node has not heard from the peer since it started."
        lacking = "the log entries at this node that the peer has not confirmed to have on disk"
        self._up = gauge("link_up", "1 if the link to the peer is up, 0 if it is down.", "peer")
        self._entries = gauge("lag_entries", f"Number of {lacking}; {unknown}", "peer")
        self._bytes = gauge("lag_bytes", f"Size of {lacking}, with message bodies; {unknown}", "peer")
        self._seconds = gauge("lag_seconds", f"Age of the oldest of {lacking}; 0 if there are none, {unknown}", "peer")
        self._round_trip = gauge(
            "round_trip_seconds", "Round-trip time of the last heartbeat to the peer; 0 if there is none.", "peer"
        )
        self._waiting = gauge(
            "waiting_entries",
            "Log entries that are not applied yet: a predecessor is missing, or their branch has yet to be merged.",
        )
        self._overdue = gauge(
            "overdue_entries",
            "Log entries that have waited for more than 30 seconds with all nodes linked: for a missing"
            " predecessor, or for the merge of their branch.",
            "for",
        )
        self._doubts = gauge(
            "doubts", "How often this node has asked all peers again for what it lacks because of overdue entries."
        )
        self._abandoned = counter(
            "abandoned_entries_total",
            "Log entries abandoned because no node still has what they depend on: their mail was saved again, and"
            " their other changes are lost.",
        )
        self._mismatches = counter(
            "history_mismatches_total",
            "Log entries that named another history of their predecessor than this node had when it tried to apply"
            " them: a node was damaged.",
        )
        self._mismatched: set[Dot] = set()  # those that have been counted and still wait
        self._needs_sync = gauge(
            "peer_needs_sync",
            "1 if the peer lacks entries that have left this node's log: it has to get them from another node, or"
            " by comparing all that both show.",
            "peer",
        )
        self._postponed = gauge(
            "mailboxes_postponed",
            "Mailboxes and folder trees that could not be made equal to a peer's when this node last caught up"
            " without the log; it tries again every minute.",
        )
        self._texts_lacking = gauge(
            "texts_lacking", "Bodies of messages shown here that this node has yet to fetch from other nodes."
        )
        self._expunged = gauge("expunged_kept_messages", "Expunged messages that are kept and can be restored.")
        self._expunged_bytes = gauge(
            "expunged_kept_bytes",
            "Size of the bodies of expunged messages that are kept; several messages may share a body.",
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
        self._serving = gauge(
            "serving", "1 if this node serves clients, 0 while it turns them away: `status` says why."
        )
        self._data = data
        self._without_room = gauge(
            "entries_without_room",
            "Log entries of other nodes that wait because the disk of this directory has no room for them.",
            "directory",
        )
        self._certificate_expires = gauge(
            "certificate_expires_timestamp_seconds",
            "Time at which the certificate in this file expires, in seconds since the epoch.",
            "file",
        )
        self._copies = gauge("copies_reachable", "Nodes that can take changes to disk now, including this one.")
        self._joined = counter(
            "merges_total", "Merges of branches that this node has applied, its own and other nodes'."
        )
        self._mastered = gauge(
            "mailboxes_mastered",
            "Mailboxes and folder trees that this node is master of, or groups of them by `mastership.scope`.",
        )
        self._kept = gauge("log_kept_entries", "Entries in the log now.")
        self._kept_bytes = gauge(
            "log_kept_bytes", "Size of the entries in the log, without message bodies; `log.max_size` limits it."
        )
        self._checkpoint_age = gauge(
            "checkpoint_age_seconds", "Time since the last round of checkpoints was written; NaN if there is none."
        )
        self._pending = gauge(
            "checkpoint_waits_for_nodes",
            "Nodes that have yet to take in what the last checkpoints cover; the log before the checkpoints is kept"
            " for them.",
        )
        self._failing = gauge("checkpoints_failing", "1 while no checkpoints can be written, 0 otherwise.")
        self._info = Info("replicator", "The node, its version, its root and the root's term.", registry=registry)
        self._logged = counter("log_entries_total", "Entries written to the log, from this node and from others.")
        self._applied = counter("applied_entries_total", "Log entries that this node has applied and so shows.")
        self._messages = counter("messages_added_total", "Messages that appeared in a mailbox of this node.")
        self._commits = counter("commits_total", "Database transactions, each with one fsync.")

    def refresh_certificates(self, certificates: Sequence[CertificateStatus]) -> None:
        """Show the certificates in use."""
        for certificate in certificates:
            self._certificate_expires.labels(certificate.file).set(certificate.expires_ms / 1000)

    def committed(self, commit: Commit) -> None:
        """Count a transaction that is on disk."""
        self._commits.inc()
        self._logged.inc(len(commit.logged))
        self._applied.inc(len(commit.applied))
        self._abandoned.inc(len(commit.abandoned))
        self._mismatches.inc(len(commit.mismatched.keys() - self._mismatched))
        self._mismatched |= commit.mismatched.keys()
        self._mismatched.difference_update((entry.dot for entry in commit.applied), commit.absorbed)
        self._joined.inc(sum(entry.is_merge for entry in commit.applied))
        self._messages.inc(sum(isinstance(change, MailAdd) for entry in commit.applied for change in entry.changes))

    def refresh(
        self,
        links: Sequence[LinkStatus],
        *,
        waiting: int,
        postponed: int,
        texts_lacking: int,
        mastered: int,
        copies: int,
        info: dict[str, str],
    ) -> None:
        """Set the metrics of links, masters and waiting entries."""
        self._postponed.set(postponed)
        self._texts_lacking.set(texts_lacking)
        self._copies.set(copies)
        self._waiting.set(waiting)
        self._mastered.set(mastered)
        self._info.info(info)
        for link in links:
            self._up.labels(link.peer).set(link.up)
            self._needs_sync.labels(link.peer).set(link.needs_sync)
            self._entries.labels(link.peer).set(_or_nan(link.lag_entries))
            self._bytes.labels(link.peer).set(_or_nan(link.lag_bytes))
            self._seconds.labels(link.peer).set(_or_nan(link.lag_s))
            self._round_trip.labels(link.peer).set((link.round_trip_us or 0) / 1e6)

    def refresh_overdue(self, *, predecessor: int, join: int, doubts: int) -> None:
        """Set the metrics of overdue entries."""
        self._overdue.labels("predecessor").set(predecessor)
        self._overdue.labels("join").set(join)
        self._doubts.set(doubts)

    def refresh_serving(self, *, serving: bool, without_room: int) -> None:
        """Set the metrics of serving clients and of room on disk."""
        self._serving.set(serving)
        self._without_room.labels(self._data).set(without_room)

    def refresh_expunged(self, messages: int, size_bytes: int) -> None:
        """Set the metrics of kept expunged messages."""
        self._expunged.set(messages)
        self._expunged_bytes.set(size_bytes)

    def refresh_attachments(self, held: AttachmentTotals | None, to_heal: int) -> None:
        """Set the metrics of attachments, to the last counts."""
        self._held.set(_or_nan(held.attachments if held else None))
        self._held_bytes.set(_or_nan(held.size_bytes if held else None))
        self._to_heal.set(to_heal)

    def refresh_search_texts(self, status: SearchTextStatus | None) -> None:
        """Set the metrics of search texts."""
        self._search_texts.set(_or_nan(status.bodies if status else None))
        self._search_texts_waiting.set(_or_nan(status.waiting if status else None))
        self._search_texts_bytes.set(_or_nan(status.size_bytes if status else None))

    def refresh_log(self, entries: int, checkpoint: CheckpointStatus, now_ms: int) -> None:
        """Set the metrics of the log and checkpoints."""
        made_ms = checkpoint.made_ms
        self._kept.set(entries)
        self._kept_bytes.set(checkpoint.log_bytes)
        self._checkpoint_age.set(_or_nan(None if made_ms is None else max(0, now_ms - made_ms) / 1000))
        self._pending.set(len(checkpoint.waits_for))
        self._failing.set(checkpoint.error is not None)


def _or_nan(value: float | None) -> float:
    """Return the value, or NaN, which Prometheus takes for unknown."""
    return math.nan if value is None else value
