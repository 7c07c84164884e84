"""Prometheus metrics that are counted where things happen, and the output of all metrics of a node.

Each part that counts has a metrics object of its own, which its constructor takes. Without a registry the object
counts for nothing, so that callers need no check. Names follow Prometheus's rules: base units, counters end in
`_total`. Labels have few values, none of them chosen by a client. What a node only looks up, such as lags and sizes, is
in `replication/node_metrics`.
"""

from replicator.runtime.metrics.doors import (
    DoveadmMetrics,
    DovecotMetrics,
    HttpMetrics,
    ImapMetrics,
    LmtpMetrics,
    OauthMetrics,
    QuotaMetrics,
    RefusalMetrics,
    SocketmapMetrics,
    UserSourceMetrics,
)
from replicator.runtime.metrics.event_loop import LoopMetrics
from replicator.runtime.metrics.exposition import exposition
from replicator.runtime.metrics.replication import (
    AttachmentMetrics,
    ChangeMetrics,
    MastershipMetrics,
    ReplicationMetrics,
)

__all__ = [
    "AttachmentMetrics",
    "ChangeMetrics",
    "DoveadmMetrics",
    "DovecotMetrics",
    "HttpMetrics",
    "ImapMetrics",
    "LmtpMetrics",
    "LoopMetrics",
    "MastershipMetrics",
    "OauthMetrics",
    "QuotaMetrics",
    "RefusalMetrics",
    "ReplicationMetrics",
    "SocketmapMetrics",
    "UserSourceMetrics",
    "exposition",
]
