"""What doors and attachments count, and how all metrics of a node are written down for Prometheus.

Each has its own object. Without a registry that counts for nobody, so that nobody need ask. Names follow Prometheus:
base units, counters end in `_total`; labels have few values, none of them chosen by a stranger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest

DELIVERY_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
"""From one fsync to what a sender waits for; above the last, most have given up."""


class LmtpMetrics:
    """What the LMTP door counts."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._deliveries = Counter(
            "replicator_lmtp_deliveries_total",
            "Answers to message texts by LMTP, one for each recipient, by the class of their code: 2xx is delivered.",
            ["code"],
            registry=registry,
        )
        self._rejections = Counter(
            "replicator_lmtp_rejected_recipients_total",
            "Recipients refused by LMTP before the message text, by the class of their code.",
            ["code"],
            registry=registry,
        )
        self._seconds = Histogram(
            "replicator_lmtp_delivery_seconds",
            "Time from the end of a message text by LMTP to its answers, which say that it is durable.",
            buckets=DELIVERY_BUCKETS_S,
            registry=registry,
        )

    def delivered(self, codes: Iterable[int], seconds: float) -> None:
        """A message was answered with these codes, one for each recipient."""
        self._seconds.observe(seconds)
        for code in codes:
            self._deliveries.labels(_class(code)).inc()

    def rejected(self, code: int) -> None:
        """A RCPT was refused."""
        self._rejections.labels(_class(code)).inc()


class ImapMetrics:
    """What the IMAP door counts."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.connections = Gauge(
            "replicator_imap_connections", "IMAP connections that are open now.", registry=registry
        )
        self._logins = Counter(
            "replicator_imap_logins_total",
            "Attempts to log in by IMAP with a name and a password, by their result.",
            ["result"],
            registry=registry,
        )
        self._commands = Counter(
            "replicator_imap_commands_total",
            "IMAP commands answered, by command and by the condition of the answer: OK, NO or BAD.",
            ["command", "condition"],
            registry=registry,
        )

    def login(self, *, ok: bool) -> None:
        """Somebody has tried to log in."""
        self._logins.labels("ok" if ok else "failed").inc()

    def command(self, name: str, condition: str) -> None:
        """A command of the grammar was answered."""
        self._commands.labels(name, condition).inc()


class HttpMetrics:
    """What the HTTP door counts."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._requests = Counter(
            "replicator_http_requests_total",
            "HTTP requests answered, by route (none: there is no such route) and status code.",
            ["route", "code"],
            registry=registry,
        )

    def answered(self, route: str, status: int) -> None:
        """A request to a route of ours was answered."""
        self._requests.labels(route, str(status)).inc()


class AttachmentMetrics:
    """What happens to parts of large messages at this node."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.damaged = Counter(
            "replicator_attachments_damaged_total",
            "Attachments that were found damaged or missing when they were read.",
            registry=registry,
        )
        self.healed = Counter(
            "replicator_attachments_healed_total",
            "Attachments that have whole content again, from other nodes.",
            registry=registry,
        )
        self.lost = Counter(
            "replicator_texts_lost_total",
            "Large messages that came from other nodes without their text, since no node in reach had all parts of it.",
            registry=registry,
        )


def exposition(registry: CollectorRegistry) -> bytes:
    """All metrics in Prometheus's text format, but for `_created` series, which repeat when this process began."""
    return generate_latest(_WithoutCreated(registry))


class _WithoutCreated(CollectorRegistry):
    """What another registry has, in part. A setting of the library does the same, for all registries of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """The families that are to be written."""
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


def _class(code: int) -> str:
    return f"{code // 100}xx"
