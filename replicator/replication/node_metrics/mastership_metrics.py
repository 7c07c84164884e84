"""Metrics of terms and masters, as they are now."""

from __future__ import annotations

from replicator.replication.coordinator import Coordinator
from replicator.replication.node_metrics.families import Families


class MastershipMetrics:
    """Metrics of the present term. What happens to masters is counted where it happens."""

    def __init__(self, families: Families, coordinator: Coordinator) -> None:
        gauge = families.gauge
        self._elections, self._mastership = coordinator.elections, coordinator.mastership
        self._term = gauge("term", "Number of the present term; all nodes that reach each other have the same.")
        self._root = gauge("root", "1 if this node is the root of its component, which knows all masters, else 0.")
        self._settled = gauge(
            "term_settled",
            "1 if masters can be found now. 0 while a term begins: then changes wait, usually for less than a second.",
        )
        self._reachable = gauge(
            "nodes_reachable", "Nodes that this node can reach, over any number of links, with this one."
        )
        self._mastered = gauge(
            "mailboxes_mastered",
            "Mailboxes and folder trees that this node is master of, or groups of them by `mastership.scope`.",
        )

    def refresh(self) -> None:
        """Show the present state."""
        machine = self._elections.machine
        self._term.set(machine.term)
        self._root.set(machine.is_root)
        self._settled.set(machine.settled)
        self._reachable.set(len(self._mastership.table.component))
        self._mastered.set(self._mastership.masters.own_count)
