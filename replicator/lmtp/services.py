"""Services of the node that the LMTP door uses."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from replicator.config import LimitsConfig
from replicator.mail.mailstore import MESSAGE_BYTES_MAX, BodySink, NewMessage, SavedMessage
from replicator.runtime.environment import wall_clock_ms
from replicator.runtime.metrics import LmtpMetrics, RefusalMetrics
from replicator.runtime.places import Doorkeeper, Limit, PlaceLimits, Places
from replicator.runtime.sessions import Sessions
from replicator.users import Recipients

TRACE_ID_BYTES = 8
"""Bytes of a trace id: enough that no id occurs twice in a log."""


def new_trace_id() -> str:
    """Return an id for one message's delivery, an atom of RFC 5321 section 4.4, for its header and the log."""
    return secrets.token_hex(TRACE_ID_BYTES)


class Inboxes(Protocol):
    """The part of `replicator.mail.mailstore.MailStore` that delivery uses."""

    def receive(self) -> AbstractAsyncContextManager[BodySink]:
        """Receive one body. Whatever was not saved within the block is discarded on leaving it."""
        ...

    async def deliver(self, user: str, message: NewMessage) -> SavedMessage:
        """Store one message in the user's INBOX; on return it is as durable as configured."""
        ...


@dataclass(frozen=True, slots=True)
class LmtpServices:
    """Services for connections. `node_name` is used in the greeting and in `Received:` headers (`trace.host_name`)."""

    mail: Inboxes
    recipients: Recipients
    node_name: str
    tls: Callable[[], ssl.SSLContext | None] = lambda: None  # for STARTTLS
    max_message_bytes: int = MESSAGE_BYTES_MAX
    metrics: LmtpMetrics = field(default_factory=LmtpMetrics)
    clock_ms: Callable[[], int] = wall_clock_ms
    new_id: Callable[[], str] = new_trace_id
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    refusals: RefusalMetrics = field(default_factory=RefusalMetrics)
    doorkeeper: Doorkeeper | None = None  # None: the limits hold for this server alone
    sessions: Sessions = field(default_factory=Sessions)


def places_of(limits: LimitsConfig, refusals: RefusalMetrics) -> Places:
    """Return the places of an LMTP door."""
    most = PlaceLimits(
        total=Limit(limits.lmtp_connections, "lmtp_connections"),
        per_address=Limit(limits.lmtp_connections_per_address, "lmtp_connections_per_address"),
    )
    return Places(most, partial(refusals.refused, "lmtp"))
