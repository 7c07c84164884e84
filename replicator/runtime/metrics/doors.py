"""Metrics of the doors, and of what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

DELIVERY_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
"""Upper bounds in seconds: from one fsync to the longest that a sender waits; most senders give up after the last."""


SOURCE_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
"""Upper bounds in seconds: from a server on this machine to the longest deadline of a request to one."""


class RefusalMetrics:
    """Metrics of what all doors refuse because of a limit in the configuration's section `[limits]`."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._refusals = Counter(
            "replicator_refusals_total",
            "Requests refused because they exceed a limit, by door and by the limit's key in [limits].",
            ["door", "limit"],
            registry=registry,
        )

    def refused(self, door: str, limit: str) -> None:
        """Count a refusal at a door (imap, lmtp, http, peer) by a key of `[limits]`."""
        self._refusals.labels(door, limit).inc()


class QuotaMetrics:
    """Metrics of users' quotas."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._refusals = Counter(
            "replicator_quota_refusals_total",
            "Messages, COPYs and APPENDs refused because the user's quota has no room for them, by what is used up:"
            " storage or messages.",
            ["resource"],
            registry=registry,
        )

    def refused(self, resource: str) -> None:
        """Count a refusal."""
        self._refusals.labels(resource).inc()


class LmtpMetrics:
    """Metrics of the LMTP door."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._deliveries = Counter(
            "replicator_lmtp_deliveries_total",
            "Replies to messages received by LMTP, one for each recipient, by class of the reply code: 2xx is"
            " delivered.",
            ["code"],
            registry=registry,
        )
        self._rejections = Counter(
            "replicator_lmtp_rejected_recipients_total",
            "Recipients that LMTP refused before the message came, by class of the reply code.",
            ["code"],
            registry=registry,
        )
        self._seconds = Histogram(
            "replicator_lmtp_delivery_seconds",
            "Time from the end of a message received by LMTP to the replies, which confirm that it is durable.",
            buckets=DELIVERY_BUCKETS_S,
            registry=registry,
        )

    def delivered(self, codes: Iterable[int], seconds: float) -> None:
        """Count a message that was answered with these codes, one for each recipient."""
        self._seconds.observe(seconds)
        for code in codes:
            self._deliveries.labels(_class(code)).inc()

    def rejected(self, code: int) -> None:
        """Count a refused RCPT."""
        self._rejections.labels(_class(code)).inc()


class SocketmapMetrics:
    """Metrics of the door at which MTAs ask for recipients."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._answers = Counter(
            "replicator_socketmap_answers_total",
            "Answers to MTAs that ask for recipients: OK, NOTFOUND, TEMP while users are unknown, or PERM.",
            ["answer"],
            registry=registry,
        )

    def answered(self, answer: str) -> None:
        """Count an answer by its word."""
        self._answers.labels(answer).inc()


class DoveadmMetrics:
    """Metrics of the door at which Dovecots sync mail."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._syncs = Counter(
            "replicator_doveadm_syncs_total",
            "Syncs with Dovecots, by result: done, different (but for some folders), cut (the Dovecot left, an operator"
            " has ended it, or the node stops), failed, or refused.",
            ["result"],
            registry=registry,
        )

    def ended(self, result: str) -> None:
        """Count a sync by its result."""
        self._syncs.labels(result).inc()


class DovecotMetrics:
    """Metrics of syncs that the node begins, by the Dovecot's address."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._syncs = Counter(
            "replicator_dovecot_syncs_total",
            "Syncs that this node has begun with a Dovecot, by result: done, different (but for some folders), failed,"
            " or unknown (the Dovecot does not know the user).",
            ["dovecot", "result"],
            registry=registry,
        )
        self._due = Gauge(
            "replicator_dovecot_users_due",
            "Users whose changes wait to be synced with a Dovecot.",
            ["dovecot"],
            registry=registry,
        )
        self._reachable = Gauge(
            "replicator_dovecot_reachable",
            "1 if the last connection to a Dovecot has succeeded, else 0.",
            ["dovecot"],
            registry=registry,
        )

    def follow(self, dovecot: str, due: Callable[[], int], is_reachable: Callable[[], bool]) -> None:
        """Show these values of a Dovecot whenever somebody asks."""
        self._due.labels(dovecot).set_function(due)
        self._reachable.labels(dovecot).set_function(is_reachable)
        for result in ("done", "different", "failed", "unknown"):
            self._syncs.labels(dovecot, result)

    def ended(self, dovecot: str, result: str) -> None:
        """Count a sync by its result."""
        self._syncs.labels(dovecot, result).inc()


class ImapMetrics:
    """Metrics of the IMAP door."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.connections = Gauge("replicator_imap_connections", "IMAP connections that are open.", registry=registry)
        self.sessions = Gauge(
            "replicator_imap_sessions", "IMAP connections of clients that are logged in.", registry=registry
        )
        self._logins = Counter(
            "replicator_imap_logins_total",
            "IMAP login attempts, by result.",
            ["result"],
            registry=registry,
        )
        self._master_logins = Counter(
            "replicator_imap_master_logins_total",
            "Logins of master users, who act as others.",
            ["master"],
            registry=registry,
        )
        self._commands = Counter(
            "replicator_imap_commands_total",
            "IMAP commands answered, by command and by the condition of the answer: OK, NO or BAD.",
            ["command", "condition"],
            registry=registry,
        )

    def login(self, *, ok: bool) -> None:
        """Count an attempt to log in."""
        self._logins.labels("ok" if ok else "failed").inc()

    def master_login(self, master: str) -> None:
        """Count a login of a master user."""
        self._master_logins.labels(master).inc()

    def command(self, name: str, condition: str) -> None:
        """Count an answered command of the grammar."""
        self._commands.labels(name, condition).inc()


class OauthMetrics:
    """Metrics of the identity provider's keys."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._reads = Counter(
            "replicator_oauth_key_reads_total",
            "Readings of the identity provider's keys, by result: ok, or failed and the last keys stay in force.",
            ["result"],
            registry=registry,
        )

    def read(self, *, ok: bool) -> None:
        """Count a reading."""
        self._reads.labels("ok" if ok else "failed").inc()


class UserSourceMetrics:
    """Metrics of the server that knows the users, if they come from one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._seconds = Histogram(
            "replicator_user_source_seconds",
            "Time of requests to the server that knows the users, by request (look_up, check) and result: found,"
            " missing, right, wrong, unusable (what it says of one user), failed, or busy (too many others waited).",
            ["request", "result"],
            buckets=SOURCE_BUCKETS_S,
            registry=registry,
        )
        self._up = Gauge(
            "replicator_user_source_up",
            "1 if the server that knows the users answered the last request, 0 if it failed.",
            registry=registry,
        )

    def asked(self, request: str, result: str, took_s: float) -> None:
        """Count a request."""
        self._seconds.labels(request, result).observe(took_s)
        if result != "busy":
            self._up.set(result != "failed")


class HttpMetrics:
    """Metrics of the HTTP door."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._requests = Counter(
            "replicator_http_requests_total",
            "HTTP requests answered, by route (none: unknown route) and status code.",
            ["route", "code"],
            registry=registry,
        )

    def answered(self, route: str, status: int) -> None:
        """Count an answered request to a known route."""
        self._requests.labels(route, str(status)).inc()


def _class(code: int) -> str:
    return f"{code // 100}xx"
