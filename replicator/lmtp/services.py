"""What the LMTP door needs of the node."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from replicator.environment import wall_clock_ms
from replicator.mailstore import MESSAGE_BYTES_MAX, Folder, NewMessage, SavedMessage, TextSink
from replicator.metrics import LmtpMetrics
from replicator.users import UserNames

TRACE_ID_BYTES = 8
"""As many as let nobody meet the same id twice in a log."""


def new_trace_id() -> str:
    """A name for one message's delivery, an atom of RFC 5321 section 4.4: in its header and in the log."""
    return secrets.token_hex(TRACE_ID_BYTES)


class Inboxes(Protocol):
    """That part of `replicator.mailstore.MailStore` which delivery takes."""

    async def folder(self, user: str, name: str) -> Folder:
        """One folder."""
        ...

    def receive(self) -> AbstractAsyncContextManager[TextSink]:
        """Take in one text. What was not saved within the block is forgotten on leaving it."""
        ...

    async def save(self, folder: Folder, message: NewMessage) -> SavedMessage:
        """Store one message; when it returns, the message is as safe as was configured."""
        ...


@dataclass(frozen=True, slots=True)
class LmtpServices:
    """What a connection may use. `node_name` stands in the greeting and in `Received:` headers (`trace.host_name`)."""

    mail: Inboxes
    users: UserNames
    node_name: str
    max_message_bytes: int = MESSAGE_BYTES_MAX
    metrics: LmtpMetrics = field(default_factory=LmtpMetrics)
    clock_ms: Callable[[], int] = wall_clock_ms
    new_id: Callable[[], str] = new_trace_id
