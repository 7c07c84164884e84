"""Metrics of replication that are counted where things happen."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

DURABLE_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
"""Upper bounds in seconds: from an fsync of a fast disk to the longest that a client waits."""

MASTER_WAIT_BUCKETS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30)
"""Upper bounds in seconds: from a master that is known to the longest that a client waits."""


class AttachmentMetrics:
    """Metrics of this node's attachments."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.damaged = Counter(
            "replicator_attachments_damaged_total",
            "Attachments found damaged or missing when they were read.",
            registry=registry,
        )
        self.healed = Counter(
            "replicator_attachments_healed_total",
            "Attachments repaired with content from other nodes.",
            registry=registry,
        )
        self.lost = Counter(
            "replicator_texts_lost_total",
            "Large messages that arrived from other nodes without their body, because no reachable node had all"
            " parts of it.",
            registry=registry,
        )


class MastershipMetrics:
    """Metrics of terms, and of masters that move."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.terms = Counter(
            "replicator_terms_total",
            "Terms that have begun at this node, each with an election: the nodes that it can reach have changed.",
            registry=registry,
        )
        moves = Counter(
            "replicator_master_moves_total",
            "Mailboxes and folder trees, or groups of them by `mastership.scope`, whose master has moved to this node"
            " (here) or from it (away) within a term.",
            ["direction"],
            registry=registry,
        )
        self.moved_here, self.moved_away = moves.labels("here"), moves.labels("away")
        self.refused = Counter(
            "replicator_master_move_refusals_total",
            "Requests for a move that this node refused as master: its own clients use the mailbox, or the mailbox was"
            " moving already.",
            registry=registry,
        )


class ChangeMetrics:
    """Metrics of clients' changes on their way to enough disks."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.master_wait = Histogram(
            "replicator_master_wait_seconds",
            "Time for which a change of mail or folders, of a client or passed on by a peer, waited in all for a master"
            " that could be reached.",
            buckets=MASTER_WAIT_BUCKETS_S,
            registry=registry,
        )
        self.durable = Histogram(
            "replicator_durable_write_seconds",
            "Time from the turn of a change at its master, this node, until it was on as many disks as clients wait"
            " for, or nobody waited any more.",
            buckets=DURABLE_BUCKETS_S,
            registry=registry,
        )


class ReplicationMetrics:
    """All of these."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.attachments = AttachmentMetrics(registry)
        self.mastership = MastershipMetrics(registry)
        self.changes = ChangeMetrics(registry)
