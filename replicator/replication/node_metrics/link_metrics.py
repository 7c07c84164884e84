"""Metrics of each peer: its link, what goes over that, and what the peer lacks."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Gauge

from replicator.replication.log.feeds import Feeds
from replicator.replication.node_metrics.families import Families, Total
from replicator.replication.node_status import PeerLag

PEER = "peer"


class LinkMetrics:
    """Metrics with the label `peer`, one for each peer that is configured now."""

    def __init__(self, families: Families, feeds: Feeds) -> None:
        gauge, total = families.gauge, families.total
        self._feeds = feeds
        self._shown: set[str] = set()
        self._up = gauge("link_up", "1 if the link to the peer is up, 0 if it is down.", PEER)
        self._established = total("link_established_total", "How often the link to the peer has come up.", PEER)
        self._round_trip = gauge(
            "round_trip_seconds", "Round-trip time of the last heartbeat to the peer; 0 if there is none.", PEER
        )
        plain = "without compression and the checksums of blocks"
        self._sent_bytes = total(
            "link_sent_bytes_total", "Bytes sent to the peer, as on the line; TLS adds some.", PEER
        )
        self._sent_plain_bytes = total("link_sent_plain_bytes_total", f"Bytes sent to the peer, {plain}.", PEER)
        self._received_bytes = total(
            "link_received_bytes_total", "Bytes received from the peer, as on the line; TLS adds some.", PEER
        )
        self._received_plain_bytes = total(
            "link_received_plain_bytes_total", f"Bytes received from the peer, {plain}.", PEER
        )
        self._output = gauge(
            "link_output_bytes", "Bytes that wait to be sent to the peer, behind those that are being sent.", PEER
        )
        self._entries_sent = total(
            "entries_sent_total", "Log entries sent to the peer; one that was sent again counts again.", PEER
        )
        self._entries_received = total(
            "entries_received_total", "Log entries received from the peer; one that came again counts again.", PEER
        )
        self._backlog = gauge(
            "send_backlog_entries",
            "Log entries that this node has yet to send to the peer, while their link is up. What the peer gets from"
            " other nodes does not count.",
            PEER,
        )
        lacking = (
            "the log entries at this node that the peer is not known to have on disk, by what it has confirmed or,"
            " until it is heard from after this node's start, by what it had settled before"
        )
        self._entries = gauge("lag_entries", f"Number of {lacking}.", PEER)
        self._bytes = gauge(
            "lag_bytes", f"Size of {lacking}; with message bodies, and without entries that have left the log.", PEER
        )
        self._seconds = gauge(
            "lag_seconds",
            f"Age of the oldest of {lacking}; 0 if there are none. If all of them have left the log, the time since the"
            " link last came up or went down, or since this node's start.",
            PEER,
        )
        self._needs_sync = gauge(
            "peer_needs_sync",
            "1 if the peer lacks entries that have left this node's log: it has to get them from another node, or by"
            " comparing all that both show.",
            PEER,
        )

    def refresh(self, lags: Iterable[PeerLag], *, now_ms: int, started_ms: int) -> None:
        """Show the present state. Times are in ms of the wall clock."""
        before, self._shown = self._shown, set()
        for lag in lags:
            self._show(lag, now_ms, started_ms)
            self._shown.add(lag.state.config.id)
        for peer in before - self._shown:
            self._forget(peer)

    def _forget(self, peer: str) -> None:
        """Show nothing of a peer that was removed: alerts would take it for one that is away."""
        for metric in vars(self).values():
            if isinstance(metric, Gauge):
                metric.remove(peer)
            elif isinstance(metric, Total):
                metric.forget(peer)

    def _show(self, lag: PeerLag, now_ms: int, started_ms: int) -> None:
        state = lag.state
        peer, link, feed, traffic = state.config.id, state.link, self._feeds.get(state.config.id), state.traffic
        self._up.labels(peer).set(link is not None)
        self._established.follow(state.established, peer)
        self._round_trip.labels(peer).set(link.round_trip_us / 1e6 if link else 0)
        self._sent_bytes.follow(traffic.sent_bytes, peer)
        self._sent_plain_bytes.follow(traffic.sent_plain_bytes, peer)
        self._received_bytes.follow(traffic.received_bytes, peer)
        self._received_plain_bytes.follow(traffic.received_plain_bytes, peer)
        self._output.labels(peer).set(link.output_bytes if link else 0)
        counts = self._feeds.counts(peer)
        self._entries_sent.follow(counts.sent, peer)
        self._entries_received.follow(counts.received, peer)
        self._backlog.labels(peer).set(feed.sender.backlog if feed else 0)
        self._entries.labels(peer).set(lag.lag.entries)
        self._bytes.labels(peer).set(lag.lag.size_bytes or 0)
        since_ms = lag.lag.oldest_ms
        if since_ms is None:
            since_ms = (state.since_ms or started_ms) if lag.lag.entries else now_ms
        self._seconds.labels(peer).set(max(0, now_ms - since_ms) / 1000)
        self._needs_sync.labels(peer).set(lag.needs_sync)
