"""Metrics of the log: its entries, those that wait, merges and conflicts, and checkpoints."""

from __future__ import annotations

from protocol.values import Dot
from replicator.replication.coordinator import Coordinator
from replicator.replication.node_metrics.backlog_counts import BacklogCounts
from replicator.replication.node_metrics.families import Families, or_nan
from replicator.store.db.transaction import Commit
from replicator.store.store import Store
from resync.conflicts import Conflicts
from resync.entry import MailAdd


class LogMetrics:
    """Metrics of the log and of what becomes of its entries."""

    def __init__(self, families: Families, coordinator: Coordinator, store: Store) -> None:
        gauge, counter, total = families.gauge, families.counter, families.total
        self._coordinator, self._store = coordinator, store
        self._mismatched: set[Dot] = set()  # those that have been counted and still wait
        # ---- entries
        self._logged = counter("log_entries_total", "Entries written to the log, from this node and from others.")
        self._applied = counter("applied_entries_total", "Log entries that this node has applied and so shows.")
        self._messages = counter("messages_added_total", "Messages that appeared in a mailbox of this node.")
        self._abandoned = counter(
            "abandoned_entries_total",
            "Log entries abandoned because no node still has what they depend on: their mail was saved again, and their"
            " other changes are lost.",
        )
        self._mismatches = counter(
            "history_mismatches_total",
            "Log entries that named another history of their predecessor than this node had when it tried to apply"
            " them: a node was damaged.",
        )
        # ---- entries that wait
        self._waiting = gauge(
            "waiting_entries",
            "Log entries that are not applied yet: a predecessor is missing, or their branch has yet to be merged.",
        )
        self._forks = gauge(
            "forks_waiting",
            "Mailboxes and folder trees that have such entries: those that nodes have changed apart and that are not"
            " merged yet and, for moments, those whose entries come in another order than they were numbered in.",
        )
        self._oldest_fork = gauge(
            "oldest_fork_seconds",
            "Time since the first of these began to have such entries, or since this node's start; 0 if there is none.",
        )
        self._overdue = gauge(
            "overdue_entries",
            "Log entries that have waited for more than 30 seconds with all nodes linked: for a missing predecessor, or"
            " for the merge of their branch.",
            "for",
        )
        self._doubts = total(
            "doubts_total",
            "How often this node has asked all peers again for what it lacks because of overdue entries.",
        )
        # ---- merges
        self._merges = counter("merges_total", "Merges that this node has applied, its own and other nodes'.")
        self._merges_made = counter("merges_made_total", "Merges of two branches that this node has made, as master.")
        conflicts = counter(
            "conflicts_total",
            "What the merges that this node has made had to decide, by kind: messages with another UID than a side"
            " showed (uid), messages of which both sides had changed one flag (flags), messages that came on both sides"
            " (delivery), folders whose name both sides had used (folder_name), mailboxes whose UIDVALIDITY has risen"
            " (uidvalidity).",
            "kind",
        )
        self._conflicts = [conflicts.labels(kind) for kind in Conflicts._fields]
        # ---- what is compared with other nodes
        self._to_compare = gauge(
            "mailboxes_to_compare",
            "Mailboxes and folder trees of which other nodes have reported more than this node, their master, shows.",
        )
        self._postponed = gauge(
            "mailboxes_postponed",
            "Mailboxes and folder trees that could not be made equal to a peer's when this node last caught up without"
            " the log; it tries again every minute. NaN until they are counted, a moment after the start.",
        )
        self._to_take_over = gauge(
            "mailboxes_to_take_over",
            "Mailboxes and folder trees that this node has yet to take over from checkpoints, or from a peer whose log"
            " begins too late.",
        )
        # ---- the log on disk, and checkpoints
        self._kept = gauge("log_kept_entries", "Entries in the log now.")
        self._kept_bytes = gauge(
            "log_kept_bytes", "Size of the entries in the log, without message bodies; `log.max_size` limits it."
        )
        self._unsaved_bytes = gauge(
            "checkpoint_unsaved_bytes", "Size of the entries that came after the last round of checkpoints began."
        )
        self._checkpoint_age = gauge(
            "checkpoint_age_seconds",
            "Time since the last round of checkpoints; NaN if there was none. It grows while nothing changes.",
        )
        self._pending = gauge(
            "checkpoint_waits_for_nodes",
            "Nodes that have yet to take in what the last checkpoints cover; the log before the checkpoints is kept for"
            " them.",
        )
        self._failing = gauge("checkpoints_failing", "1 while no checkpoints can be written, 0 otherwise.")

    def committed(self, commit: Commit) -> None:
        """Count a transaction that is on disk."""
        self._logged.inc(len(commit.logged))
        self._applied.inc(len(commit.applied))
        self._messages.inc(sum(isinstance(change, MailAdd) for entry in commit.applied for change in entry.changes))
        if merges := sum(entry.is_merge for entry in commit.applied):
            self._merges.inc(merges)
        if commit.abandoned:
            self._abandoned.inc(len(commit.abandoned))
        if commit.mismatched or self._mismatched:
            self._count_mismatches(commit)
        for decided in commit.merged:
            self._merges_made.inc()
            for counted, number in zip(self._conflicts, decided, strict=True):
                counted.inc(number)

    def _count_mismatches(self, commit: Commit) -> None:
        """Count entries that name another history, each once, however often they are tried."""
        self._mismatches.inc(len(commit.mismatched.keys() - self._mismatched))
        self._mismatched |= commit.mismatched.keys()
        self._mismatched.difference_update((entry.dot for entry in commit.applied), commit.absorbed)

    def refresh(self, now_ms: int) -> None:
        """Show the present state."""
        waiting, overdue = self._store.waiting, self._coordinator.overdue_entries
        self._waiting.set(len(waiting))
        self._forks.set(waiting.chains)
        self._oldest_fork.set(waiting.oldest_s)
        self._overdue.labels("predecessor").set(overdue.entries(of_branches=False))
        self._overdue.labels("join").set(overdue.entries(of_branches=True))
        self._doubts.follow(overdue.doubts)
        self._to_compare.set(self._coordinator.fork_scheduler.to_compare)
        done, all_of_them = self._coordinator.taken_over
        self._to_take_over.set(all_of_them - done)
        self._kept.set(sum(self._store.context.values()) - sum(self._store.collected.values()))
        truncation = self._coordinator.log_truncation
        checkpoint = truncation.checkpoint_status()
        made_ms = checkpoint.made_ms
        self._kept_bytes.set(checkpoint.log_bytes)
        self._unsaved_bytes.set(truncation.unsaved_bytes)
        self._checkpoint_age.set(or_nan(None if made_ms is None else max(0, now_ms - made_ms) / 1000))
        self._pending.set(len(checkpoint.waits_for))
        self._failing.set(checkpoint.error is not None)

    def refresh_counts(self, counts: BacklogCounts | None) -> None:
        """Show what was last counted at leisure; None: nothing was yet."""
        self._postponed.set(or_nan(counts and counts.postponed))
