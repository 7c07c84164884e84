"""The node's own metrics for Prometheus: what it looks up at each heartbeat, and what it counts at each commit.

`node_metrics` runs it all; each other module has the series of one topic. They may be read at any time and must never
hold up the node: what is looked up at a heartbeat costs the same however much mail there is, and what has to be counted
row by row is counted at leisure (`backlog_counts`). What is counted where it happens, such as deliveries, is in
`runtime/metrics`. docs/monitoring.md describes every series.
"""

from replicator.replication.node_metrics.node_metrics import NodeMetrics

__all__ = ["NodeMetrics"]
